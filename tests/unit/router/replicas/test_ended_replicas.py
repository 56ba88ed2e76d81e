"""Replicas that have cancelled calls at the end of their grace: these are lost, and idempotent ones run elsewhere."""

from __future__ import annotations

import pytest

from slotmesh.errors import Executed, Reason
from tests.unit.router.lifecycle.test_lost_links import KEYED, earn_retries, move, pair
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import Fields


@pytest.mark.parametrize("fields", KEYED)
def test_callers_hear_that_the_replica_is_lost_and_why(fields: Fields) -> None:
    world = pair()
    world.submit([1, 2, 3], **fields)
    world.drain("r1")
    world.complete("r1", 1)
    world.cut_off("r1", 2, 3)
    move(world)
    assert world.outcomes == {1: OK, 2: Reason.REPLICA_LOST, 3: Reason.REPLICA_LOST}
    failure = world.failures[2]
    assert failure.executed is Executed.UNKNOWN
    assert failure.metadata == {"backend": "b", "replica_id": "r1"}
    assert "graceful_timeout" in failure.message
    assert not world.got("r2")


@pytest.mark.parametrize("fields", KEYED)
def test_idempotent_calls_are_executed_elsewhere_before_later_ones(fields: Fields) -> None:
    world = pair()
    earn_retries(world, 10)
    world.submit([1, 2, 3], idempotent=True, **fields)
    world.drain("r1")
    world.refuse("r1", 2, 3, reason=Reason.DRAINING)
    world.cut_off("r1", 1)
    world.submit([4], idempotent=True, **fields)
    assert not world.got("r2") or not fields, "its partition waits for a new owner"
    move(world)
    if fields:
        assert world.got("r2") == [1, 2, 3, 4]
    assert sorted(world.got("r2")) == [1, 2, 3, 4]
    world.complete("r2")
    assert world.reasons(range(1, 5)) == {OK}


def test_an_iteration_of_which_values_came_is_not_executed_again() -> None:
    world = pair()
    earn_retries(world, 10)
    world.submit([1, 2], idempotent=True, streaming=True)
    world.give("r1", c1=[b"value"])
    world.drain("r1")
    world.cut_off("r1", 1, 2)
    move(world)
    assert world.outcomes == {1: Reason.REPLICA_LOST} | {call: OK for call in world.outcomes if call >= 10_000}
    assert world.got("r2") == [2]


def test_whoever_has_left_hears_nothing() -> None:
    world = pair()
    world.submit([1], idempotent=True)
    world.cancel((1, 1))
    world.drain("r1")
    world.cut_off("r1", 1)
    move(world)
    assert world.outcomes == {1: Reason.CANCELLED}
    assert not world.got("r2")


def test_a_replica_that_refuses_because_it_drains_gets_nothing_more() -> None:
    world = World({"b": ["r0", "r1"]}, slots=2)
    world.submit([1])
    (drains,) = (name for name in ("r0", "r1") if world.at_replica(name))
    world.refuse(drains, 1, reason=Reason.DRAINING)
    world.submit([2, 3])
    assert not world.at_replica(drains)
    assert sum(world.queued.values()) == 1
