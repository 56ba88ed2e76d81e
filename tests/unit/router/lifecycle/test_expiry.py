"""Deadlines and times in the queue: what expires never runs."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from slotmesh.errors import Executed, Reason
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields, caller

KEYED = [pytest.param({}, id="unkeyed"), pytest.param({"ordering_key": "k"}, id="keyed")]


def blocked(**table: Any) -> World:
    world = World({"b": ["r"]}, owner=("r", 1), **table)
    world.report("r", others=4, keyed_window=0)
    return world


@pytest.mark.parametrize("fields", KEYED)
def test_a_deadline_in_the_queue(fields: Fields) -> None:
    world = blocked()
    world.submit([1, 2], timeout_s=5.0, **fields)
    world.submit([3], **fields)
    assert world.scheduler.next_deadline() == 5.0
    world.at(4.999)
    assert not world.outcomes
    world.at(5.0)
    assert world.outcomes == {1: Reason.DEADLINE_IN_QUEUE, 2: Reason.DEADLINE_IN_QUEUE}
    assert world.failures[1].executed is Executed.NO
    assert "5 s" in world.failures[1].message
    assert len(world.failure_commands) == 1
    world.report("r")
    assert world.got("r") == [3]


@pytest.mark.parametrize("fields", KEYED)
def test_a_deadline_in_the_outbox(fields: Fields) -> None:
    world = World({"b": ["r"]}, owner=("r", 1), lazy=True)
    world.submit([1, 2], timeout_s=5.0, **fields)
    world.submit([3], **fields)
    world.now = 5.0
    frame = world.cut("r")  # the timer was late
    assert [list(batch.payloads) for batch in frame] == [[b"3"]]
    assert world.reasons([1, 2]) == {Reason.DEADLINE_IN_QUEUE}
    assert world.failures[1].executed is Executed.NO
    assert not world.cancelled["r"]


@pytest.mark.parametrize("fields", KEYED)
def test_room_that_expired_calls_leave_in_an_outbox_is_used(fields: Fields) -> None:
    world = World({"b": ["r"]}, slots=2, owner=("r", 1), lazy=True)
    world.report("r", keyed_window=2)
    world.submit([1, 2], timeout_s=5.0, **fields)
    world.submit([3], by=caller(), **fields)
    world.at(5.0)
    world.cut("r")
    assert world.got("r") == [3]


@pytest.mark.parametrize("fields", KEYED)
def test_a_deadline_at_the_replica(fields: Fields) -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    world.submit([1, 2, 3], timeout_s=5.0, **fields)
    world.complete("r", 2)
    world.at(5.0)
    assert world.outcomes == {1: Reason.DEADLINE_RUNNING, 2: OK, 3: Reason.DEADLINE_RUNNING}
    assert world.failures[1].executed is Executed.UNKNOWN
    assert world.failures[1].metadata["replica_id"] == "r"
    assert {world.held["r"][run_id] for run_id in world.cancelled["r"]} == {1, 3}
    world.complete("r")
    assert len(world.outcomes) == 3


def test_a_deadline_that_has_passed_at_arrival() -> None:
    world = World({"b": ["r"]}, shadows={"b": 1.0})
    world.submit([1], timeout_s=0.0)
    assert world.outcomes == {1: Reason.DEADLINE_IN_QUEUE}
    assert not world.got("r")
    assert not world.scheduler.counters.shadows


@pytest.mark.parametrize("fields", KEYED)
def test_the_time_in_the_queue_is_bounded(fields: Fields) -> None:
    world = blocked(settings={"max_queue_time_s": 3.0})
    world.submit([1], **fields)
    world.now = 1.0
    world.submit([2], **fields)
    world.at(3.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}
    assert world.failures[1].executed is Executed.NO
    assert "max_queue_time" in world.failures[1].message
    world.at(4.0)
    assert world.reasons([2]) == {Reason.QUEUE_TIMEOUT}
    assert world.scheduler.next_deadline() is None


@pytest.mark.parametrize("fields", KEYED)
def test_the_time_in_the_queue_ends_with_the_queue(fields: Fields) -> None:
    world = blocked(settings={"max_queue_time_s": 3.0})
    world.submit(range(5), **fields)
    world.report("r", keyed_window=4)
    assert world.at_replica("r") == [0, 1, 2, 3]
    world.at(3.0)
    assert world.outcomes == {4: Reason.QUEUE_TIMEOUT}
    world.at(100.0)
    world.complete("r")
    assert world.reasons(range(4)) == {OK}


def test_the_nearer_of_deadline_and_queue_time_counts() -> None:
    world = blocked(settings={"max_queue_time_s": 3.0})
    world.submit([1], timeout_s=2.0)
    world.submit([2], timeout_s=4.0)
    world.at(2.0)
    assert world.outcomes == {1: Reason.DEADLINE_IN_QUEUE}
    world.at(3.0)
    assert world.reasons([2]) == {Reason.QUEUE_TIMEOUT}


def test_a_longer_queue_time_holds_for_what_waits_already() -> None:
    world = blocked()
    world.submit([1])
    world.settings["max_queue_time_s"] = 60.0
    world.push()
    world.at(31.0)
    assert not world.outcomes
    assert world.scheduler.next_deadline() == 60.0
    world.at(60.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}


def test_time_without_a_policy_is_time_in_the_queue() -> None:
    world = World({"b": ["r"]}, weights=None)
    world.submit([1])
    world.at(30.0)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}


@pytest.mark.parametrize("fields", KEYED)
def test_time_counts_from_arrival_also_after_a_refusal(fields: Fields) -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    world.submit([1], timeout_s=20.0, **fields)
    world.now = 15.0
    world.refuse("r", others=4, keyed_window=0)
    assert world.scheduler.next_deadline() == 20.0
    world.at(20.0)
    assert world.outcomes == {1: Reason.DEADLINE_IN_QUEUE}


def test_an_slo_that_passes_drops_nothing() -> None:
    world = blocked()
    world.submit([1], slo_s=0.5)
    world.at(20.0)
    world.report("r")
    world.complete("r")
    assert world.outcomes == {1: OK}


def test_calls_that_are_due_first_leave_first() -> None:
    world = blocked()
    for call_id, slo_s in enumerate([None, 5.0, 0.2, None, 0.1]):
        world.submit([call_id], slo_s=slo_s)
    world.slots = 1
    world.report("r")
    for _ in range(4):
        world.complete("r")
    assert world.got("r") == [4, 2, 0, 3, 1]


def test_calls_of_one_key_stay_in_order_whatever_their_slo() -> None:
    world = blocked()
    for call_id, slo_s in enumerate([None, 5.0, 0.2, 0.1]):
        world.submit([call_id], slo_s=slo_s, ordering_key="k")
    world.report("r")
    assert world.got("r") == [0, 1, 2, 3]


@pytest.mark.parametrize("fields", KEYED)
def test_calls_that_no_queue_has_room_for_are_watched_no_more(fields: Fields) -> None:
    world = blocked(settings={"max_queued_calls": 1})
    gc.disable()  # a process collects seldom: what only that would free stays for long
    try:
        world.submit([1], timeout_s=5.0, **fields)
        world.submit([2], timeout_s=5.0, **fields)
        assert world.outcomes == {2: Reason.QUEUE_FULL}
        world.cancel((1, 1))
        assert world.scheduler.next_deadline() is None
    finally:
        gc.enable()
