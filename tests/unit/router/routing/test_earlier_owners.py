"""Calls with a request id whose partition has moved: earlier owners are asked first, for a minute."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.lifecycle.intake import NOT_OWNED
from router_service.core.routing.earlier_owners import KEEP_S, MAX_MOVES, EarlierOwners
from router_service.core.routing_table import EndpointRoute, PartitionOwners
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.calls.request_ids import CallIdentity
from slotmesh.errors import Reason
from tests.unit.router.world import OK, World

REQUEST = CallIdentity("a", b"")
KEYED: dict[str, Any] = {"ordering_key": "k", "request": REQUEST}


@pytest.fixture
def world() -> World:
    """The partitions have moved from `a` to `b`."""
    world = World({"x": ["a", "b", "c"]}, owner=("a", 1))
    world.owner = ("b", 2)
    world.push()
    return world


def test_the_earlier_owner_answers_what_it_remembers(world: World) -> None:
    world.submit([1], **KEYED)
    assert (world.got("a"), world.got("b")) == ([1], [])
    assert world.batches["a"][0].owner_epoch == NOT_OWNED
    world.complete("a", 1)
    assert world.outcomes == {1: OK}


@pytest.mark.parametrize("reason", [Reason.STALE_TABLE, Reason.DRAINING])
def test_what_it_does_not_remember_goes_to_the_owner(world: World, reason: Reason) -> None:
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=reason)
    assert (world.got("a"), world.got("b")) == ([1], [1])
    assert world.batches["b"][0].owner_epoch == 2
    world.complete("b", 1)
    assert world.outcomes == {1: OK}


def test_each_earlier_owner_is_asked(world: World) -> None:
    world.owner = ("c", 3)
    world.push()
    world.submit([1], **KEYED)
    world.refuse("a", 1, reason=Reason.STALE_TABLE)
    world.refuse("b", 1, reason=Reason.STALE_TABLE)
    assert [world.got(name) for name in "abc"] == [[1], [1], [1]]


def test_an_epoch_that_skips_one_tells_of_a_missed_owner(world: World) -> None:
    world.at(KEEP_S)  # the move from `a` to `b` is forgotten
    world.owner_of["other"] = ("c", 2)
    world.push()
    world.owner = ("b", 4)
    world.push()
    world.submit([1], **KEYED)
    world.refuse("c", 1, reason=Reason.STALE_TABLE)
    assert [world.got(name) for name in "abc"] == [[], [1], [1]]


def test_other_calls_go_to_the_owner(world: World) -> None:
    world.submit([1], ordering_key="k")
    assert (world.got("a"), world.got("b")) == ([], [1])


def test_moves_are_forgotten_after_a_minute(world: World) -> None:
    world.at(KEEP_S)
    world.submit([1], **KEYED)
    assert (world.got("a"), world.got("b")) == ([], [1])


def test_what_waited_for_the_move_is_asked_for_too() -> None:
    world = World({"x": ["a", "b"]}, owner=("a", 1))
    world.submit([1, 2], ordering_key="k")
    world.refuse("a", 1, 2, reason=Reason.STALE_TABLE)
    world.submit([3], **KEYED)
    world.submit([4], ordering_key="k")
    world.owner = ("b", 2)
    world.push()
    assert world.got("a") == [1, 2, 3]
    world.refuse("a", 3, reason=Reason.STALE_TABLE)
    assert world.got("b") == [1, 2, 3, 4], "in order"


def test_an_earlier_owner_that_cannot_be_reached_may_remember_it(world: World) -> None:
    world.lose("a")
    world.submit([1], **KEYED)
    assert world.failures[1].reason is Reason.BACKEND_UNAVAILABLE
    assert (world.got("a"), world.got("b")) == ([], [])


def test_one_that_has_ended_is_not_asked(world: World) -> None:
    world.backends["x"].remove("a")
    world.push()
    world.submit([1], **KEYED)
    assert world.got("b") == [1]


def owned(number: int, epoch: int) -> dict[str, EndpointRoute]:
    owners = PartitionOwners.of([((f"r{number}", "life"), epoch)] * PARTITIONS)
    return {"e": EndpointRoute(name="e", owners=owners)}


def test_the_newest_moves_are_remembered_within_the_bound() -> None:
    moves = EarlierOwners()
    rounds = MAX_MOVES // PARTITIONS + 2
    for number in range(rounds):
        moves.changed(owned(number, number), owned(number + 1, number + 1), 0.0)
    known = moves.of("e", 0, 1.0)
    assert len(known) == MAX_MOVES // PARTITIONS
    assert known[-1] == (f"r{rounds - 1}", "life")
    assert moves.of("e", 0, KEEP_S) == ()
