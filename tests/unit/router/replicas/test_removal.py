"""Endpoints, backends and replicas go, in any order, with calls queued and running: each call has its outcome."""

from __future__ import annotations

import random
from typing import Any

import pytest

from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields

KEYED = [pytest.param({}, id="unkeyed"), pytest.param({"ordering_key": "k"}, id="keyed")]


def busy(fields: Fields, *, lazy: bool = False, **table: Any) -> World:
    """Calls 1 and 2 are at the replica, 3 and 4 wait."""
    world = World({"b": ["r"]}, slots=2, owner=("r", 1), lazy=lazy, **table)
    world.report("r", keyed_window=2)
    world.submit([1, 2], **fields)
    world.submit([3, 4], **fields)
    assert world.queued == {"b": 2}
    return world


@pytest.mark.parametrize("fields", KEYED)
def test_an_endpoint_that_goes_fails_what_waits_and_lets_end_what_runs(fields: Fields) -> None:
    world = busy(fields)
    world.endpoints = []
    world.push()
    assert world.outcomes == {3: Reason.ENDPOINT_NOT_FOUND, 4: Reason.ENDPOINT_NOT_FOUND}
    assert {failure.executed for failure in world.failures.values()} == {Executed.NO}
    assert world.queued == {}
    world.complete("r")
    assert world.reasons([1, 2]) == {OK}
    assert not world.caller.runs
    assert world.scheduler.next_deadline() is None


@pytest.mark.parametrize("fields", KEYED)
def test_what_comes_back_from_a_replica_after_its_endpoint_went_fails(fields: Fields) -> None:
    world = busy(fields)
    world.endpoints = []
    world.push()
    world.refuse("r", 2, reason=Reason.DRAINING)
    assert world.outcomes[2] == Reason.ENDPOINT_NOT_FOUND
    world.lose("r")
    assert world.outcomes[1] == Reason.REPLICA_LOST


def test_an_endpoint_that_waits_for_its_policy_may_go() -> None:
    world = World({"b": ["r"]}, weights=None)
    world.submit([1])
    world.endpoints = []
    world.push()
    assert world.outcomes == {1: Reason.ENDPOINT_NOT_FOUND}


def test_calls_of_other_endpoints_in_the_same_queue_stay() -> None:
    world = World({"b": ["r"]}, slots=1, endpoints=["e", "f"])
    for call_id, endpoint in enumerate(["f", "e", "f", "e", "f"]):
        world.submit([call_id], to=endpoint)
    world.endpoints = ["f"]
    world.push()
    assert world.outcomes == dict.fromkeys([1, 3], Reason.ENDPOINT_NOT_FOUND)
    assert world.queued == {"b": 2}
    while world.held["r"]:
        world.complete("r")
    assert world.got("r") == [0, 2, 4]


@pytest.mark.parametrize("fields", KEYED)
def test_a_backend_that_goes_gives_its_calls_to_the_next_policy(fields: Fields) -> None:
    world = busy(fields)
    world.backends = {"c": ["s"]}
    world.weights = {"c": 1.0}
    world.owner = ("s", 2)
    world.push()
    if not fields:
        assert world.at_replica("s") == [3, 4]
    else:
        assert not world.at_replica("s"), "the old owner has not answered"
    assert not world.closed
    world.complete("r")
    assert world.closed == ["r"]
    world.complete("s")
    assert world.reasons([1, 2, 3, 4]) == {OK}
    assert world.got("s") == [3, 4]


@pytest.mark.parametrize("fields", KEYED)
def test_a_backend_that_goes_before_the_policy_does_lets_calls_wait(fields: Fields) -> None:
    world = busy(fields)
    world.backends = {"c": ["s"]}
    world.owner = (None, 2)
    world.push()
    assert not world.outcomes
    world.complete("r")
    world.weights = {"c": 1.0}
    world.owner = ("s", 3)
    world.push()
    assert world.got("s") == [3, 4]


@pytest.mark.parametrize("fields", KEYED)
def test_nobody_left_at_all_ends_in_a_timeout(fields: Fields) -> None:
    world = busy(fields)
    world.backends = {}
    world.owner = (None, 2)
    world.push()
    world.complete("r")
    world.at(30.0)
    assert world.reasons([3, 4]) == {Reason.QUEUE_TIMEOUT}
    assert not world.caller.runs


@pytest.mark.parametrize("fields", KEYED)
def test_a_replica_that_goes_is_disconnected_with_its_last_answer(fields: Fields) -> None:
    world = busy(fields)
    world.backends["b"] = ["s"]
    world.owner = ("s", 2)
    world.push()
    world.complete("r", 1)
    assert not world.closed
    world.complete("r", 2)
    assert world.closed == ["r"]


@pytest.mark.parametrize("fields", KEYED)
def test_a_replica_that_goes_still_gets_what_was_put_aside_for_it(fields: Fields) -> None:
    world = busy(fields, lazy=True)
    world.backends["b"] = ["s"]
    world.owner = ("s", 2)
    world.push()
    assert not world.closed
    world.cut("r")
    world.complete("r")
    assert world.reasons([1, 2]) == {OK}
    assert world.closed == ["r"]
    world.cut("s")
    assert world.got("s") == [3, 4]


def test_a_replica_that_goes_and_breaks_is_disconnected() -> None:
    world = busy({})
    world.backends["b"] = []
    world.push()
    world.lose("r")
    assert world.closed == ["r"]
    assert world.reasons([1, 2]) == {Reason.REPLICA_LOST}


def test_a_link_that_comes_up_after_its_replica_went_takes_nothing() -> None:
    world = World({"b": ["r"]}, links_at_once=False)
    world.backends["b"] = ["s"]
    world.push()
    world.link("r")
    world.submit([1])
    assert not world.got("r")
    assert not world.replicas["r"].linked
    assert world.closed == ["r"]


@pytest.mark.parametrize("backends", [{"b": [], "c": ["r"]}, {"c": ["r"], "b": []}])
def test_a_replica_that_appears_under_another_backend_is_connected_anew(backends: dict[str, list[str]]) -> None:
    world = World({"b": ["r"]})
    world.submit([1])
    world.complete("r")
    world.backends, world.weights = backends, {"c": 1.0}
    world.push()
    assert world.closed == ["r"]
    assert len(world.scheduler.topology.replicas) == 1
    world.submit([2])
    assert world.outcomes == {1: OK}
    assert world.at_replica("r") == [2]


@pytest.mark.parametrize("seed", range(30))
def test_in_any_order_under_load_every_call_has_its_outcome(seed: int) -> None:
    draw = random.Random(seed)
    world = World({"b": ["r1"], "c": ["r2"]}, slots=3, owner=("r1", 1), seed=seed, links_at_once=False)
    for name in ("r1", "r2"):
        world.link(name)
    submitted = 0
    for step in range(150):
        match draw.randrange(9):
            case 0 | 1 | 2:
                count = draw.randrange(1, 6)
                ids = range(submitted, submitted + count)
                submitted += count
                world.submit(ids, ordering_key=draw.choice(("", "k", "j")), idempotent=draw.random() < 0.3)
            case 3:
                world.endpoints = [] if world.endpoints else ["e"]
            case 4:
                world.backends.pop(draw.choice(("b", "c")), None)
            case 5:
                world.backends.setdefault(draw.choice(("b", "c")), []).append(f"n{step}")
            case 6:
                world.weights = draw.choice((None, {"b": 1.0}, {"b": 0.5, "c": 0.5}, {"c": 1.0}))
            case 7:
                names = [each for names in world.backends.values() for each in names]
                world.owner = (draw.choice([None, *names]), world.owner[1] + 1)
            case _:
                linked = [name for name, each in world.replicas.items() if each.linked and name not in world.closed]
                if linked:
                    draw.choice((world.complete, world.lose, world.drain))(draw.choice(linked))
        world.push()
        for name, replica in list(world.replicas.items()):
            if replica.listed and not replica.linked and draw.random() < 0.5:
                world.link(name)
    world.backends, world.endpoints = {}, []
    world.push()
    for name in list(world.held):
        world.complete(name)
    assert set(world.outcomes) == set(range(submitted))
    assert not world.caller.runs
    assert world.queued == {}
    assert set(world.closed) == set(world.replicas)
    for replica in world.replicas.values():
        assert (replica.own, replica.keyed) == (0, 0)
        assert not replica.outbox
    assert world.scheduler.next_deadline() is None
