"""Lanes that stop: the replica that has a call decides whether it was in time; then its caller gets the outcome."""

from __future__ import annotations

import pytest

from router_service.core.lifecycle.deadlines_and_cancellation import PATIENCE_S
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Reason
from slotmesh.streams.limits import MAX_INLINE_BYTES
from tests.unit.router.world import OK, World

ENDINGS = ("timeout", "cancel")


def world_of(window: int = 2, timeout_s: float = 1.0) -> tuple[World, Caller]:
    """Calls 1 and 2 are at the replica, 3 waits; 1 has a timeout."""
    world = World({"b": ["r"]}, owner=("r", 1))
    world.report("r", keyed_window=window)
    client = world.connect()
    world.submit([1], by=client, ordering_key="k", stop_generation=1, timeout_s=timeout_s)
    world.submit([2, 3], by=client, ordering_key="k", stop_generation=1)
    return world, client


def give_up(world: World, client: Caller, how: str) -> None:
    """The time of call 1 is over, or its caller takes it back."""
    if how == "timeout":
        world.at(world.now + 1.0)
    else:
        world.cancel((1, 1), by=client)


@pytest.mark.parametrize("how", ENDINGS)
def test_the_caller_hears_of_the_failure_when_nothing_starts_behind_it_any_more(how: str) -> None:
    world, client = world_of()
    give_up(world, client, how)
    assert not world.outcomes
    assert world.asked_stops == [(1, 1)]
    world.stopped("r", (1, 1))
    assert world.outcomes[1] == (Reason.DEADLINE_RUNNING if how == "timeout" else Reason.CANCELLED)
    assert world.failures[1].executed is Executed.UNKNOWN
    assert world.outcomes[3] == Reason.PREDECESSOR_FAILED
    assert world.at_replica("r") == [1, 2], "its window is not free before it has answered"
    world.fail("r", 2, reason=Reason.PREDECESSOR_FAILED, executed=Executed.NO)
    world.complete("r", 1)
    assert world.got("r") == [1, 2]


@pytest.mark.parametrize("how", ENDINGS)
def test_what_had_ended_when_the_replica_was_asked_has_its_own_outcome_and_the_lane_goes_on(how: str) -> None:
    world, client = world_of()
    give_up(world, client, how)
    world.complete("r", 1)
    world.stopped("r", (1, 1))
    world.complete("r", 2)
    world.complete("r", 3)
    assert world.outcomes == {1: OK, 2: OK, 3: OK}


@pytest.mark.parametrize(
    ("how", "reason"), [("timeout", Reason.DEADLINE_IN_QUEUE), ("cancel", Reason.CANCELLED)], ids=ENDINGS
)
def test_what_had_not_started_is_said_not_to_have_been_executed(how: str, reason: Reason) -> None:
    world, client = world_of()
    give_up(world, client, how)
    world.fail("r", 1, reason=Reason.CANCELLED, executed=Executed.NO)
    assert (world.outcomes[1], world.failures[1].executed) == (reason, Executed.NO)


def test_its_own_failure_is_told_as_it_is() -> None:
    world, client = world_of()
    give_up(world, client, "timeout")
    world.fail("r", 1)
    assert (world.outcomes[1], world.failures[1].executed) == (Reason.HANDLER_ERROR, Executed.YES)


@pytest.mark.parametrize("how", ENDINGS)
def test_a_replica_that_does_not_say_is_not_waited_for_for_long(how: str) -> None:
    world, client = world_of(timeout_s=1.0 if how == "timeout" else 60.0)
    give_up(world, client, how)
    due = world.scheduler.next_deadline()
    assert due == world.now + PATIENCE_S
    world.at(due)
    assert world.failures[1].executed is Executed.UNKNOWN
    assert world.asked_stops == [(1, 1)], "it is asked once"
    world.complete("r", 1)
    assert world.outcomes[1] != OK


def test_the_rest_of_a_run_still_has_its_deadline() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect()
    world.submit([1, 2], by=client, ordering_key="k", stop_generation=1, timeout_s=1.0)
    world.cancel((2, 2), by=client)
    world.at(world.now + PATIENCE_S)
    assert world.outcomes == {2: Reason.CANCELLED}
    world.at(world.now + 1.0)
    world.stopped("r", (1, 2))
    assert world.outcomes[1] == Reason.DEADLINE_RUNNING


def test_a_call_that_is_handed_back_after_its_time_goes_nowhere_else() -> None:
    world, client = world_of()
    give_up(world, client, "timeout")
    world.refuse("r", 1, reason=Reason.DRAINING)
    assert (world.outcomes[1], world.failures[1].executed) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)


def test_a_call_that_is_lost_after_its_time_is_not_tried_again() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect()
    world.submit([1], by=client, ordering_key="k", stop_generation=1, timeout_s=1.0, idempotent=True)
    give_up(world, client, "timeout")
    world.lose("r")
    assert (world.outcomes[1], world.failures[1].executed) == (Reason.DEADLINE_RUNNING, Executed.UNKNOWN)


def test_calls_that_go_on_fail_at_once() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect()
    world.submit([1], by=client, ordering_key="k", timeout_s=1.0)
    give_up(world, client, "timeout")
    assert world.outcomes == {1: Reason.DEADLINE_RUNNING}
    assert not world.asked_stops


def test_nobody_is_asked_for_a_client_that_has_left() -> None:
    world, client = world_of()
    give_up(world, client, "timeout")
    world.disconnect(client)
    world.stopped("r", (1, 1))
    world.at(world.now + PATIENCE_S)
    world.complete("r", 1)
    assert not world.outcomes


def test_the_replica_knows_what_the_caller_takes_of_a_result() -> None:
    world = World({"b": ["r"]}, owner=("r", 1))
    client = world.connect()
    client.max_value_bytes = MAX_INLINE_BYTES
    world.submit([1], by=client, ordering_key="k", stop_generation=1)
    world.submit([2], ordering_key="k")
    assert [batch.max_result_bytes for batch in world.batches["r"]] == [MAX_INLINE_BYTES, 0]
