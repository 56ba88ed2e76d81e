"""Calls that wait until it is too late for them to be answered in time."""

from __future__ import annotations

import pytest

from router_service.core.limits.estimates import ServiceTime
from slotmesh.errors import Executed, Reason
from tests.unit.router.world import World


def test_nothing_is_reserved_before_anything_is_known() -> None:
    assert ServiceTime().reserve_s(10.0) == 0.0


def test_it_follows_what_replicas_take_and_how_much_that_varies() -> None:
    steady, varied = ServiceTime(), ServiceTime()
    for turn in range(200):
        steady.observe(0.1)
        varied.observe(0.05 if turn % 2 else 0.15)
    assert steady.reserve_s(10.0) == pytest.approx(0.1, rel=0.01)
    assert varied.reserve_s(10.0) == pytest.approx(0.2, rel=0.1)


def test_it_never_takes_more_than_half_of_a_calls_time() -> None:
    slow = ServiceTime()
    slow.observe(60.0)
    assert slow.reserve_s(1.0) == 0.5


def test_a_call_ends_when_too_little_of_its_time_is_left() -> None:
    world = World({"b1": ["r1"]}, slots=1)
    world.submit([1])
    world.at(0.2)
    world.complete("r1")
    world.submit([2])
    world.submit([3], timeout_s=1.0)
    world.submit([4], timeout_s=5.0)
    world.at(0.99)
    assert 3 not in world.outcomes
    world.at(1.01)
    failure = world.failures[3]
    assert (failure.reason, failure.executed) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)
    assert "0.19 s were left of the timeout of 1 s" in failure.message
    assert world.queued == {"b1": 1}
    assert 4 not in world.outcomes


def test_a_call_that_can_be_sent_at_once_is_sent_however_little_time_it_has() -> None:
    world = World({"b1": ["r1"]}, slots=1)
    world.submit([1])
    world.at(0.2)
    world.complete("r1")
    world.submit([2], timeout_s=0.05)
    assert world.at_replica("r1") == [2]
