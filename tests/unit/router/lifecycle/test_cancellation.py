"""Calls that their caller takes back, wherever they are."""

from __future__ import annotations

from typing import Any

import pytest

from router_service.core.commands import DeliverFailure
from router_service.core.events import CallerLeft, CallsCancelled
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields, caller

KEYED = [pytest.param({}, id="unkeyed"), pytest.param({"ordering_key": "k"}, id="keyed")]


def executed(world: World, ids: set[int]) -> set[Executed]:
    """What the callers of these cancelled calls hear about execution."""
    assert world.reasons(ids) <= {Reason.CANCELLED}
    return {world.failures[each].executed for each in ids}


def blocked(**table: Any) -> World:
    """A world in which whatever comes waits."""
    world = World({"b": ["r"]}, slots=5, owner=("r", 1), **table)
    world.report("r", others=5, keyed_window=0)
    return world


def unblock(world: World) -> None:
    world.report("r")


@pytest.mark.parametrize("fields", KEYED)
@pytest.mark.parametrize(
    ("ranges", "gone"),
    [
        ([(1, 5)], {1, 2, 3, 4, 5}),
        ([(1, 1)], {1}),
        ([(5, 5)], {5}),
        ([(2, 4)], {2, 3, 4}),
        ([(2, 2), (4, 4)], {2, 4}),
        ([(4, 9), (0, 2)], {1, 2, 4, 5}),
        ([(2, 4), (3, 5)], {2, 3, 4, 5}),
        ([(1, 5), (2, 3)], {1, 2, 3, 4, 5}),
        ([(0, 0), (6, 99)], set()),
        ([(4, 2)], set()),
        ([], set()),
    ],
)
class TestEachPlace:
    """The same ranges at each place on the way of a run of five calls."""

    def test_waiting(self, fields: Fields, ranges: list[tuple[int, int]], gone: set[int]) -> None:
        world = blocked()
        world.submit(range(1, 6), **fields)
        world.cancel(*ranges)
        assert set(world.outcomes) == gone
        assert executed(world, gone) <= {Executed.NO}
        assert world.queued.get("b", 0) == 5 - len(gone)
        unblock(world)
        assert world.got("r") == [each for each in range(1, 6) if each not in gone]

    def test_in_the_outbox(self, fields: Fields, ranges: list[tuple[int, int]], gone: set[int]) -> None:
        world = World({"b": ["r"]}, slots=5, owner=("r", 1), lazy=True)
        world.submit(range(1, 6), **fields)
        world.submit(range(6, 8), by=caller(), **fields)
        world.cancel(*ranges)
        assert set(world.outcomes) == gone
        assert executed(world, gone) <= {Executed.NO}
        world.lazy = False
        world.cut("r")
        if not fields:
            while world.held["r"] and len(world.got("r")) < 7 - len(gone):
                world.complete("r")
        assert world.got("r") == [each for each in range(1, 8) if each not in gone]
        assert not world.cancelled["r"], "the replica never hears of what it never got"
        world.complete("r")
        assert {each for each, outcome in world.outcomes.items() if outcome == OK} == set(range(1, 8)) - gone
        assert (world.replicas["r"].own, world.replicas["r"].keyed) == (0, 0)

    def test_at_the_replica(self, fields: Fields, ranges: list[tuple[int, int]], gone: set[int]) -> None:
        world = World({"b": ["r"]}, slots=5, owner=("r", 1))
        world.submit(range(1, 6), **fields)
        world.cancel(*ranges)
        assert set(world.outcomes) == gone
        assert executed(world, gone) <= {Executed.UNKNOWN}
        assert {world.held["r"][run_id] for run_id in world.cancelled["r"]} == gone
        assert len(world.cancelled["r"]) == len(gone)
        replica = world.replicas["r"]
        assert replica.own + replica.keyed == 5, "they take their place until the replica answers"
        world.complete("r")
        assert all(world.outcomes[each] == OK for each in range(1, 6) if each not in gone)
        assert replica.own + replica.keyed == 0

    def test_in_all_places_at_once(self, fields: Fields, ranges: list[tuple[int, int]], gone: set[int]) -> None:
        room = {"keyed_window": 4, "max_ongoing": 4}
        world = World({"b": ["r"]}, slots=4, owner=("r", 1))
        world.report("r", keyed_window=2, others=2)
        world.submit(range(1, 6), **fields)  # two run
        world.lazy = True
        world.report("r", **room)  # two in the outbox, one waits
        world.cancel(*ranges)
        assert set(world.outcomes) == gone
        for each in gone:
            assert world.failures[each].executed is (Executed.UNKNOWN if each < 3 else Executed.NO)
        world.lazy = False
        world.cut("r")
        while world.held["r"]:
            world.complete("r")
        assert world.got("r") == [each for each in range(1, 6) if each < 3 or each not in gone]
        assert set(world.outcomes) == set(range(1, 6))
        assert world.queued == {}
        assert not world.caller.runs


def test_what_has_ended_stays_so() -> None:
    world = World({"b": ["r"]}, slots=5)
    world.submit(range(1, 4))
    world.complete("r", 2)
    world.cancel((1, 3))
    assert world.outcomes == {1: Reason.CANCELLED, 2: OK, 3: Reason.CANCELLED}
    world.cancel((1, 3))
    world.complete("r")


def test_calls_of_others_with_the_same_ids_are_left_alone() -> None:
    world, other = World({"b": ["r"]}, slots=5), caller()
    world.submit([1], by=other)
    world.cancel((1, 1))
    assert not world.outcomes
    world.cancel((1, 1), by=other)
    assert world.outcomes == {1: Reason.CANCELLED}


@pytest.mark.parametrize("fields", KEYED)
def test_a_caller_that_leaves_takes_all_back(fields: Fields) -> None:
    world = World({"b": ["r"]}, slots=2, owner=("r", 1))
    world.report("r", keyed_window=2)
    other = caller()
    world.submit(range(1, 6), **fields)
    world.submit([9], by=other, **fields)
    world.step(CallerLeft(world.caller))
    assert set(world.outcomes) == {1, 2, 3, 4, 5}
    assert {world.held["r"][run_id] for run_id in world.cancelled["r"]} == {1, 2}
    assert not world.caller.runs
    world.complete("r")
    assert world.at_replica("r") == [9]


@pytest.mark.parametrize("fields", KEYED)
def test_room_in_an_outbox_goes_to_who_waits(fields: Fields) -> None:
    world = World({"b": ["r"]}, slots=2, owner=("r", 1), lazy=True)
    world.report("r", keyed_window=2)
    world.submit([1, 2], **fields)
    world.submit([3], by=caller(), **fields)
    assert world.queued == {"b": 1}
    world.cancel((1, 1))
    assert world.queued == {}
    world.cut("r")
    assert world.got("r") == [2, 3]


def test_what_survives_in_an_outbox_still_holds_back_the_next_owner() -> None:
    world = World({"b": ["old", "new"]}, owner=("old", 1), lazy=True)
    world.submit([1, 2, 3], ordering_key="k")
    world.cancel((2, 2))
    world.owner = ("new", 2)
    world.push()
    world.submit([4], ordering_key="k")
    world.cut("old")
    world.complete("old", 1)
    assert not world.cut("new")
    world.complete("old", 3)
    world.cut("new")
    assert (world.got("old"), world.got("new")) == ([1, 3], [4])


def test_bytes_of_what_was_taken_back_return_to_the_window() -> None:
    world = blocked()
    world.submit([10, 11, 100])
    world.cancel((11, 11))
    (command,) = world.failure_commands
    assert (list(command.ids), command.size) == ([11], 2)


def test_what_survives_in_an_outbox_still_has_its_deadline() -> None:
    world = World({"b": ["r"]}, slots=5, lazy=True)
    world.submit([1, 2, 3], timeout_s=5.0)
    world.cancel((2, 2))
    assert world.scheduler.next_deadline() == 5.0
    world.at(5.0)
    assert world.outcomes == {1: Reason.DEADLINE_IN_QUEUE, 2: Reason.CANCELLED, 3: Reason.DEADLINE_IN_QUEUE}
    assert world.cut("r") == []


def test_what_survives_in_the_queue_still_has_its_time() -> None:
    world = blocked()
    world.submit([1, 2, 3])
    world.cancel((2, 2))
    world.at(30.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT, 2: Reason.CANCELLED, 3: Reason.QUEUE_TIMEOUT}


def test_one_answer_for_all_that_wait() -> None:
    world = blocked()
    world.submit(range(1000))
    commands = world.scheduler.step(CallsCancelled(world.caller, [(0, 1000)]), 0.0)
    assert len([each for each in commands if isinstance(each, DeliverFailure)]) == 1
