"""What is done with slots that were given: only their replica can do it, once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from router_service.core.calls import LeasedSlot, ReleasedSlot, Renew
from router_service.core.events import RunsCompleted, SlotAbandoned, SlotOperationRequested
from router_service.core.features.slot_operations import MAX_FRAME_OPS, TABLE_WAIT_S
from router_service.core.rosters import KnownDeparture, ReplicaKey
from router_service.core.runs import Caller
from slotmesh.errors import Executed, Failure, Reason
from tests.unit.router.slot_world import SlotWorld, key_of, slot


def test_a_dispatch_goes_ahead_of_runs_and_needs_no_room() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1, lazy=True)
    world.submit([1])
    world.dispatch("r1")
    replica = world.replicas["r1"]
    assert (replica.own, replica.bound, replica.free) == (1, 1, 0)
    (op,) = world.cut_ops("r1")
    (batch,) = world.cut("r1")
    assert (op.op_id, batch.first_run_id) == (1, 2)


def test_its_result_is_that_of_a_call() -> None:
    world = SlotWorld({"b": ["r1"]})
    world.dispatch("r1")
    world.step(RunsCompleted(world.replicas["r1"], [([1], [b"result"], "")], [], None))
    assert world.outcomes == {1: "ok"}
    assert world.replicas["r1"].bound == 0


def test_a_token_that_is_not_honoured() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.dispatch("r1")
    failure = Failure(reason=Reason.SLOT_USED, message="used")
    world.step(RunsCompleted(world.replicas["r1"], [], [([1], failure)], None))
    assert world.reason(caller) is Reason.SLOT_USED


@pytest.mark.parametrize("idempotent", [True, False])
def test_sent_and_lost_it_is_unknown_and_never_sent_again(idempotent: bool) -> None:
    world = SlotWorld({"b": ["r1", "r2"]})
    caller = world.dispatch("r1", idempotent=idempotent)
    world.lose("r1")
    end = world.end(caller)
    assert isinstance(end, Failure)
    assert (end.reason, end.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)
    assert len(world.ops["r1"]) + len(world.ops["r2"]) == 1


def test_lost_before_it_was_sent_it_was_not_executed() -> None:
    world = SlotWorld({"b": ["r1"]}, lazy=True)
    callers = [world.dispatch("r1"), world.renew("r1"), world.release("r1")]
    world.lose("r1")
    assert_unproven(world, callers, Reason.BACKEND_UNAVAILABLE)


def names(world: SlotWorld, backends: dict[str, list[str]]) -> None:
    """There is a newer table."""
    world.backends = backends
    world.push()


def assert_unproven(world: SlotWorld, callers: Sequence[Caller], reason: Reason) -> None:
    """Each hears that nothing was executed, and when to come again: the slot may live."""
    for caller in callers:
        end = world.end(caller)
        assert isinstance(end, Failure)
        assert (end.reason, end.executed, end.retry_delay_s) == (reason, Executed.NO, 1.0)


def test_of_a_replica_that_is_known_to_have_left() -> None:
    world = SlotWorld({"b": ["r1", "r9"]})
    names(world, {"b": ["r1"]})
    assert world.reason(world.dispatch("r9")) is Reason.REPLICA_GONE
    assert world.reason(world.renew("r9")) is Reason.REPLICA_GONE
    assert world.end(world.release("r9")) == ReleasedSlot()
    assert not world.ops["r9"]


def test_of_a_replica_that_the_table_does_not_name_nothing_is_known() -> None:
    """A newer table may name it, or its next life: the slot may live."""
    world = SlotWorld({"b": ["r1"]})
    callers = [world.dispatch("r9"), world.renew("r9"), world.release("r9"), another := Caller(world.caller.window)]
    world.step(SlotOperationRequested(another, ("r1", "another life"), Renew(token="t")))
    world.at(TABLE_WAIT_S - 0.01)
    assert not world.ends
    world.at(TABLE_WAIT_S)
    assert_unproven(world, callers, Reason.STALE_TABLE)
    assert world.scheduler.next_deadline() is None


@pytest.mark.parametrize("order", [*permutations([("r1", "earlier"), ("r2", "life"), ("r3", "later")])])
def test_that_another_life_or_another_replica_has_ended_says_nothing_of_this_one(
    order: tuple[ReplicaKey, ...],
) -> None:
    """What is known to have departed is one life of one replica each."""
    world = SlotWorld({"b": ["r1"]})
    world.departed += [KnownDeparture(key, world.roster) for key in order]
    world.push()
    for key in order:
        world.step(SlotOperationRequested(gone := Caller(world.caller.window), key, Renew(token="t")))
        assert world.reason(gone) is Reason.REPLICA_GONE
    callers = []
    for key in [("r1", "later"), ("r2", "earlier"), ("r3", "life"), ("r4", "later")]:
        callers.append(Caller(world.caller.window))
        world.step(SlotOperationRequested(callers[-1], key, Renew(token="t")))
        assert world.end(callers[-1]) is None, key
    world.at(TABLE_WAIT_S)
    assert_unproven(world, callers, Reason.STALE_TABLE)


def test_a_newer_table_that_names_the_replica_is_waited_for() -> None:
    world = SlotWorld({"b": ["r1"]})
    world.dispatch("r9"), world.renew("r9"), world.release("r9")
    gone = world.renew("r8")
    world.at(TABLE_WAIT_S / 2)
    names(world, {"b": ["r1", "r9"]})
    world.link("r9")
    assert world.got_ops("r9") == ["Dispatch", "Renew", "Release"]
    world.at(TABLE_WAIT_S)
    assert world.reason(gone) is Reason.STALE_TABLE
    assert len(world.ends) == 1


def test_a_newer_table_may_also_know_that_the_replica_has_left() -> None:
    world = SlotWorld({"b": ["r1"]})
    dispatched, released = world.dispatch("r9"), world.release("r9")
    world.departed.append(KnownDeparture(key_of("r9"), world.roster))
    names(world, {"b": ["r1"]})
    assert world.reason(dispatched) is Reason.REPLICA_GONE
    assert world.end(released) == ReleasedSlot()


def test_who_waits_for_a_table_may_leave_or_run_out_of_time() -> None:
    world = SlotWorld({"b": ["r1"]})
    left, late = world.dispatch("r9"), world.dispatch("r9", timeout_s=0.5)
    world.leave(left)
    world.at(0.5)
    assert world.reason(late) is Reason.DEADLINE_IN_QUEUE
    names(world, {"b": ["r1", "r9"]})
    world.link("r9")
    world.at(10.0)
    assert not world.ops["r9"]


def test_a_link_that_is_not_up_yet_is_waited_for() -> None:
    world = SlotWorld({"b": ["r1"]}, links_at_once=False)
    caller = world.dispatch("r1")
    world.at(1.9)
    assert world.end(caller) is None
    world.link("r1")
    assert world.got_ops("r1") == ["Dispatch"]
    world.at(60.0)
    assert world.end(caller) is None


@pytest.mark.parametrize(("timeout_s", "until", "reason"), [
    (60.0, 2.0, Reason.BACKEND_UNAVAILABLE), (1.0, 1.0, Reason.DEADLINE_IN_QUEUE),
])  # fmt: skip
def test_but_not_for_long(timeout_s: float, until: float, reason: Reason) -> None:
    world = SlotWorld({"b": ["r1"]}, links_at_once=False)
    caller = world.dispatch("r1", timeout_s=timeout_s)
    world.at(until)
    assert world.reason(caller) is reason
    assert not world.replicas["r1"].ops
    assert world.replicas["r1"].bound == 0


def test_a_draining_replica_is_told_of_its_slots() -> None:
    world = SlotWorld({"b": ["r1"]})
    world.drain("r1")
    world.dispatch("r1")
    assert world.got_ops("r1") == ["Dispatch"]


def test_its_deadline_while_it_runs() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.dispatch("r1", timeout_s=3.0)
    world.at(3.0)
    assert world.reason(caller) is Reason.DEADLINE_RUNNING
    assert world.cancelled["r1"] == [1]


def test_renew_and_release_are_answered() -> None:
    world = SlotWorld({"b": ["r1"]})
    renewed = world.renew("r1")
    world.answer("r1", slot("r1", ttl_s=7.0))
    released = world.release("r1")
    world.answer("r1", ReleasedSlot(ongoing=3, max_ongoing=4))
    assert world.end(renewed) == slot("r1", ttl_s=7.0)
    assert world.end(released) == ReleasedSlot(ongoing=3, max_ongoing=4)


def test_another_answer_than_was_asked_for_is_a_failure() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.renew("r1")
    world.answer("r1", ReleasedSlot())
    assert world.reason(caller) is Reason.INTERNAL


def test_a_slot_that_nobody_will_use_is_given_back() -> None:
    world = SlotWorld({"b": ["r1"]})
    caller = world.reserve()
    world.grant("r1", "t1")
    assert isinstance(world.end(caller), LeasedSlot)
    world.step(SlotAbandoned(key_of("r1"), "t1"))
    assert world.got_ops("r1") == ["Reserve", "Release"]


def test_frames_are_bounded() -> None:
    world = SlotWorld({"b": ["r1"]}, slots=1000, lazy=True)
    for _ in range(MAX_FRAME_OPS + 1):
        world.reserve()
    assert len(world.cut_ops("r1")) == MAX_FRAME_OPS
    assert len(world.cut_ops("r1")) == 1
    for size in (60, 60, 200, 60):
        world.dispatch("r1", payload=b"0" * size)
    assert [len(world.cut_ops("r1", max_bytes=125)) for _ in range(3)] == [2, 1, 1]


def test_no_token_in_what_is_printed() -> None:
    world = SlotWorld({"b": ["r1"]}, lazy=True)
    for do in (world.dispatch, world.renew, world.release):
        do("r1", "secret")
    assert "secret" not in repr(world.cut_ops("r1"))
    assert "secret" not in repr(slot("r1", "secret"))
