"""Reservations at the router: they wait, are placed and end as calls do."""

from __future__ import annotations

import pytest

from router_service.core.calls import Flow, LeasedSlot
from router_service.core.features.slot_answers import GRANT_S
from router_service.core.queueing.run_queues import MAX_WAITING
from slotmesh.errors import Executed, Failure, Reason
from tests.unit.router.slot_world import SlotWorld, slot


def test_a_reservation_is_sent_and_granted() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.reserve(timeout_s=5.0)
    (op,) = world.ops["r1"]
    assert (op.op_id, op.deadline) == (1, 5.0)  # type: ignore[union-attr]  # a reservation
    world.grant("r1", "t1", others=1)
    assert isinstance(end := world.end(caller), LeasedSlot)
    assert end.token == "t1"
    assert world.replicas["r1"].own == 0
    assert not caller.runs


@pytest.mark.parametrize("request_id", ["", "id"])
@pytest.mark.parametrize("replica_id", ["", "r1"])
def test_with_a_timeout_of_0_it_takes_a_free_slot_or_fails(request_id: str, replica_id: str) -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    first = world.reserve(timeout_s=0.0, request_id=request_id, replica_id=replica_id)
    second = world.reserve(timeout_s=0.0, request_id=request_id and "other", replica_id=replica_id)
    assert (world.end(first), world.reason(second)) == (None, Reason.NO_SLOT)
    world.at(GRANT_S / 2)
    world.grant("r1", "t1")
    assert isinstance(world.end(first), LeasedSlot)
    assert len(world.ops["r1"]) == 1
    world.report("r1", others=0)
    assert len(world.ops["r1"]) == 1, "the one that has failed waits no more"


def test_with_a_timeout_of_0_older_ones_are_not_overtaken_and_a_silent_replica_is_not_awaited() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    silent = world.reserve(timeout_s=0.0)
    waiting = world.reserve(timeout_s=5.0)
    world.at(GRANT_S)
    assert (world.reason(silent), world.end(waiting)) == (Reason.NO_SLOT, None)
    world.grant("r1", op_id=1)
    assert world.got_ops("r1")[:2] == ["Reserve", "Release"], "what it grants later goes back"


def test_it_waits_among_calls_in_turn() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit([1, 2])
    caller = world.reserve(flow=world.caller.flow)
    world.complete("r1", 1)
    assert world.got("r1") == [1, 2]
    assert not world.ops["r1"]
    world.complete("r1", 2)
    world.grant("r1")
    assert isinstance(world.end(caller), LeasedSlot)


def test_what_was_granted_takes_room_until_the_replica_says_otherwise() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.reserve()
    world.submit([1])
    world.grant("r1")
    assert world.got("r1") == []
    world.report("r1", others=0)
    assert world.got("r1") == [1]


@pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.DRAINING])
def test_a_refused_one_goes_elsewhere(reason: Reason) -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    caller = world.reserve()
    first = "r1" if world.ops["r1"] else "r2"
    other = "r2" if first == "r1" else "r1"
    world.answer(first, Failure(reason=reason, message="no"), others=1)
    assert world.end(caller) is None
    world.grant(other)
    assert isinstance(world.end(caller), LeasedSlot)


def test_a_lost_link_is_no_failure_however_often() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.reserve(timeout_s=9.0)
    for _ in range(20):
        world.lose("r1")
        world.link("r1")
    assert len(world.ops["r1"]) == 21
    world.at(9.0)
    end = world.end(caller)
    assert isinstance(end, Failure)
    assert (end.reason, end.executed) == (Reason.NO_SLOT, Executed.NO)
    assert end.retry_delay_s


@pytest.mark.parametrize(("timeout_s", "until"), [(3.0, 3.0), (float("inf"), 30.0), (50.0, 30.0)])
def test_no_slot_in_time(timeout_s: float, until: float) -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit([1])
    caller = world.reserve(timeout_s=timeout_s)
    world.at(until - 0.1)
    assert world.end(caller) is None
    world.at(until)
    assert world.reason(caller) is Reason.NO_SLOT
    assert world.scheduler.next_deadline() is None or world.outcomes


def test_without_a_timeout_it_ends_at_a_silent_replica_too() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.reserve()
    world.at(30.0)
    assert world.reason(caller) is Reason.NO_SLOT
    assert world.cancelled["r1"] == [1]


@pytest.mark.parametrize("leaves", [True, False])
def test_granted_to_nobody_it_is_released_at_once(leaves: bool) -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.reserve(timeout_s=1.0)
    if leaves:
        world.leave(caller)
    else:
        world.at(1.0)
    assert world.cancelled["r1"] == [1]
    world.grant("r1", "t1")
    assert world.got_ops("r1") == ["Reserve", "Release"]
    assert world.ops["r1"][1].token == "t1"  # type: ignore[union-attr]  # a release
    assert isinstance(world.end(caller), Failure)


def test_granted_at_the_moment_in_which_its_time_is_over() -> None:
    """The grant is there, and nobody has looked at the clock since."""
    world = SlotWorld({"b": ["r1"]})
    caller = world.reserve(timeout_s=1.0)
    world.now += 1.0
    world.grant("r1", "t1")
    world.at(world.now)
    assert world.end(caller) == slot("r1", "t1")
    assert world.got_ops("r1") == ["Reserve"]


def test_taken_back_before_it_was_sent_it_leaves_no_trace() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit([1])
    world.leave(world.reserve())
    world.complete("r1")
    assert not world.ops["r1"]
    assert not world.queued


def test_a_full_queue_refuses() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1, settings={"max_queued_calls": 1})
    world.submit([1])
    world.reserve()
    refused = world.reserve()
    assert world.reason(refused) is Reason.QUEUE_FULL


def test_without_a_policy_it_waits_for_one() -> None:
    world = SlotWorld({"b": ["r1"]}, weights=None)
    plain, wanted = world.reserve(), world.reserve(replica_id="r1")
    world.weights = {"b": 1.0}
    world.push()
    assert world.got_ops("r1") == ["Reserve", "Reserve"]
    assert world.end(plain) is world.end(wanted) is None


# -- those that not every replica will do for ------------------------------------------------------------------------


def test_a_wanted_replica_is_waited_for_and_blocks_nobody() -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    world.report("r1", others=1)
    world.reserve(replica_id="r1")
    world.submit([1])
    assert world.got("r2") == [1]
    assert not world.ops["r1"]
    world.report("r1", others=0)
    assert world.got_ops("r1") == ["Reserve"]


def test_excluded_replicas_get_nothing() -> None:
    world = SlotWorld({"b": ["r1", "r2", "r3"]}, slots=2)
    for _ in range(2):
        world.reserve(excluded={"r1", "r3"})
    waits = world.reserve(excluded={"r1", "r3"})
    assert world.got_ops("r2") == ["Reserve", "Reserve"]
    assert not world.ops["r1"]
    assert not world.ops["r3"]
    assert world.end(waits) is None


def test_where_the_drawn_backend_has_excluded_ones_only_another_is_taken() -> None:
    world = SlotWorld({"b": ["r1"], "c": ["r2"]}, weights={"b": 1 - 1e-9, "c": 1e-9})
    world.reserve(excluded={"r1"})
    assert world.got_ops("r2") == ["Reserve"]


def test_a_wanted_replica_that_is_nowhere() -> None:
    world = SlotWorld({"b": ["r1"], "c": ["r2"]})
    assert world.reason(world.reserve(replica_id="r2")) is Reason.REPLICA_GONE


def test_a_wanted_replica_that_leaves() -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    world.report("r1", others=1)
    caller = world.reserve(replica_id="r1")
    world.backends["b"].remove("r1")
    world.push()
    assert world.reason(caller) is Reason.REPLICA_GONE


def test_turns_with_the_queue_starve_neither() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit(range(1, 11))
    for _ in range(10):
        world.reserve(replica_id="r1")
    order = []
    for _ in range(20):
        if world.held["r1"]:
            order.append("call")
            world.complete("r1")
        else:
            order.append("slot")
            world.grant("r1", f"t{len(order)}", others=0)
    assert order == ["call", "slot"] * 10


def test_the_oldest_is_first() -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    world.submit([1, 2])
    first, second = world.reserve(replica_id="r1"), world.reserve(excluded={"r2"})
    third = world.reserve(replica_id="r1")
    for token in ("t1", "t2", "t3"):
        if world.held["r1"]:
            world.complete("r1")
        world.grant("r1", token, others=0)
    ends = [world.end(each) for each in (first, second, third)]
    assert [end.token for end in ends if isinstance(end, LeasedSlot)] == ["t1", "t2", "t3"]


def test_one_that_comes_back_stands_behind_older_ones() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=2)
    world.reserve(replica_id="r1", ttl_s=1.0)
    world.reserve(replica_id="r1", ttl_s=2.0)
    older, younger = world.ops["r1"]
    refusal = Failure(reason=Reason.QUEUE_FULL, message="no")
    world.answer("r1", refusal, older.op_id, others=2)
    world.answer("r1", refusal, younger.op_id, others=1)
    assert [op.ttl_s for op in world.ops["r1"]] == [1.0, 2.0, 1.0]  # type: ignore[union-attr]  # reservations


def test_only_so_many_wait_for_replicas() -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    world.report("r1", others=1)
    for _ in range(MAX_WAITING):
        world.reserve(replica_id="r1")
    refused = world.reserve(replica_id="r1")
    assert world.reason(refused) is Reason.QUEUE_FULL
    world.reserve(flow=Flow())
    assert world.got_ops("r2") == ["Reserve"]


def test_what_ended_makes_room_for_others() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.submit([1])
    callers = [world.reserve(replica_id="r1") for _ in range(MAX_WAITING)]
    world.leave(callers[7])
    assert world.end(world.reserve(replica_id="r1")) is None


def test_those_who_want_the_same_cost_one_look() -> None:
    world = SlotWorld({"b": ["r1", "r2"]}, slots=1)
    world.reserve(replica_id="r1")
    waiting = [world.reserve(replica_id="r1", timeout_s=60.0) for _ in range(8)]
    waiting += [world.reserve(excluded=["r2"], timeout_s=60.0) for _ in range(8)]
    constrained = world.scheduler.topology.backends["b"].constrained
    assert len(constrained._alike) == 2
    for caller in waiting[1:]:
        world.leave(caller)
    assert [run.caller for run in constrained] == [waiting[0]]
    world.leave(waiting[0])
    assert not constrained
    assert not constrained._alike


def test_who_comes_and_goes_behind_somebody_leaves_nothing() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1)
    world.reserve(replica_id="r1")
    world.reserve(replica_id="r1", timeout_s=60.0)
    for _ in range(100):
        world.leave(world.reserve(replica_id="r1", timeout_s=60.0))
    (runs,) = world.scheduler.topology.backends["b"].constrained._alike.values()
    assert len(runs) <= 2
