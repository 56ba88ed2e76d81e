"""A router keeps nothing of endpoints that no call has used: a table of thousands costs it no step for each of them."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.routing.catalog import callable_methods
from router_service.shell.reports import endpoint_loads_of
from slotmesh.errors import Reason
from slotmesh.spec.model import Prospect
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields

NAMES = [f"e{at}" for at in range(1_000)]


def crowded(**table: Any) -> World:
    world = World({"good": ["g"], "canary": ["c"]}, weights={"good": 0.5, "canary": 0.5}, slots=10**4, **table)
    world.endpoints = ["e", *NAMES]
    world.push()
    return world


def test_only_endpoints_that_calls_have_used_are_kept() -> None:
    world = crowded()
    assert world.scheduler.topology.endpoints == {}
    world.submit([1], to="e7")
    world.submit([2], to="no such endpoint")
    world.submit([3], to="e9", ordering_key="k")
    assert set(world.scheduler.topology.endpoints) == {"e7", "e9"}
    assert world.outcomes == {2: Reason.ENDPOINT_NOT_FOUND}
    world.push()
    assert set(world.scheduler.topology.endpoints) == {"e7", "e9"}
    world.endpoints = ["e", *NAMES[8:]]
    world.push()
    assert set(world.scheduler.topology.endpoints) == {"e9"}


def test_all_endpoints_are_listed_used_or_not() -> None:
    world = crowded()
    world.submit([1], to="e7")
    scheduler = world.scheduler
    assert sorted(name for name, _ in callable_methods(scheduler.topology)) == sorted(world.endpoints)
    assert [name for name, _ in callable_methods(scheduler.topology, "e8")] == ["e8"]
    world.endpoints = world.endpoints[:20]
    world.push()
    loads = endpoint_loads_of(scheduler.topology, scheduler.counters, scheduler.tenants, world.now)
    assert sorted(each.endpoint for each in loads) == sorted(world.endpoints)
    assert {each.endpoint: each.accepted for each in loads if each.accepted} == {"e7": 1}


@pytest.mark.parametrize("fields", [{}, {"ordering_key": "k"}], ids=["unkeyed", "keyed"])
def test_an_endpoint_that_is_used_first_after_its_backends_failed_knows_that(fields: Fields) -> None:
    world = crowded(owner=("g", 1), prospects=dict.fromkeys(("good", "canary"), Prospect.FAILING))
    world.submit([1], to="e1")
    for name in "gc":
        world.complete(name)
    assert world.outcomes == {1: OK}
    world.lose("c")
    for at in range(10):
        world.submit([10 + at], to=f"e{10 + at}", **fields)
    assert world.got("g")[-10:] == [*range(10, 20)], "the backend without a replica gets nothing"


def test_partitions_of_an_endpoint_that_returns_are_not_overtaken() -> None:
    world = World({"b": ["r"], "other": ["s"]}, owner=("r", 1))
    world.submit([1], ordering_key="k")
    world.endpoints = []
    world.push()
    world.endpoints, world.owner = ["e"], ("s", 2)
    world.push()
    world.submit([2], ordering_key="k")
    assert (world.got("r"), world.got("s")) == ([1], [])
    world.complete("r")
    assert world.got("s") == [2]
