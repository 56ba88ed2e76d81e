"""Decisions that a scenario shows best: permits, refusals, cancels. The property test covers the interleavings."""

from __future__ import annotations

from replica_service.core.events import (
    CallsEnded,
    DrainBegan,
    Fail,
    LimitsChanged,
    LinkClosed,
    ReplicaTimePassed,
    RunsCancelled,
    RunsReceived,
    TurnEnded,
)
from replica_service.core.permits import CAPACITY_GAP_S
from replica_service.core.runs import RouterPeer
from replica_service.core.work import StartCalls
from slotmesh.errors import Reason
from tests.unit.replica.scheduler_notes import run, scheduler, told, turn_of

# -- unkeyed calls -----------------------------------------------------------------------------------------------


def test_calls_start_as_far_as_permits_go_wait_as_far_as_prefetch_goes_and_the_rest_is_refused() -> None:
    core, link = scheduler(max_ongoing=4, prefetch=2), RouterPeer()
    sent = run(link, 1, 10)
    assert told(core.step(RunsReceived([sent]), 0.0)) == ["refuse 7-10 QUEUE_FULL", "calls 1-4"]
    assert (core.in_use, core.waiting) == (4, 2)
    assert told(core.step(CallsEnded(sent, 1), 0.0)) == ["calls 5-5"]
    assert told(core.step(CallsEnded(sent, 4), 0.0)) == ["calls 6-6"]
    assert told(core.step(CallsEnded(sent, 1), 0.0)) == []
    assert core.is_idle


def test_while_lanes_wait_for_permits_an_unkeyed_call_may_wait_too_and_has_its_turn() -> None:
    core, link = scheduler(max_ongoing=1), RouterPeer()
    lanes = [run(link, number, 1, key=f"k{number}") for number in (1, 2, 3)]
    turn = turn_of(core.step(RunsReceived([lanes[0]]), 0.0))
    assert core.capacity(link).prefetch == 0, "no lane waits"
    core.step(RunsReceived(lanes[1:]), 0.0)
    assert core.capacity(link).prefetch == 1
    unkeyed = run(link, 10, 2)
    assert told(core.step(RunsReceived([unkeyed]), 0.0)) == ["refuse 11-11 QUEUE_FULL"]
    assert told(core.step(TurnEnded(turn, 1), 0.0)) == ["calls 10-10"]
    assert told(core.step(RunsReceived([run(link, 12, 1)]), 0.0)) == []
    turn = turn_of(core.step(CallsEnded(unkeyed, 1), 0.0))
    assert turn.run is lanes[1]
    assert told(core.step(TurnEnded(turn, 1), 0.0)) == ["calls 12-12"]


def test_routers_that_heard_full_hear_of_room_once_a_lane_waits() -> None:
    core, keyed, other = scheduler(max_ongoing=1), RouterPeer(), RouterPeer()
    core.step(RunsReceived([run(keyed, 1, 1, key="a")]), 0.0)
    assert core.capacity(other).prefetch == 0
    core.step(RunsReceived([run(keyed, 2, 1, key="b")]), 0.0)
    assert told(core.step(ReplicaTimePassed(), CAPACITY_GAP_S)) == ["tell capacity"]


def test_unknown_methods_fail_before_they_take_room() -> None:
    core, link = scheduler(), RouterPeer()
    (unknown,) = core.step(RunsReceived([run(link, 1, 1, method="nope")]), 0.0)
    assert isinstance(unknown, Fail)
    assert unknown.failure.reason is Reason.METHOD_NOT_FOUND
    assert "'nope'; it has batch, plain" in unknown.failure.message
    assert core.is_idle


def test_calls_past_their_deadline_never_start() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=5), RouterPeer()
    first = run(link, 1, 1)
    core.step(RunsReceived([first, run(link, 2, 2, deadline=1.0), run(link, 4, 1)]), 0.0)
    assert told(core.step(CallsEnded(first, 1), 1.0)) == ["fail 2-3 DEADLINE_IN_QUEUE", "calls 4-4"]


def test_a_router_that_heard_full_hears_of_room() -> None:
    core, mine, other = scheduler(max_ongoing=2), RouterPeer(), RouterPeer()
    theirs = run(other, 1, 2)
    core.step(RunsReceived([theirs]), 0.0)
    assert (core.in_use, core.capacity(mine).others) == (2, 2)
    assert core.capacity(other).others == 0
    assert told(core.step(CallsEnded(theirs, 1), 0.0)) == []
    told_at = core.next_deadline()
    assert told_at == CAPACITY_GAP_S
    assert told(core.step(ReplicaTimePassed(), told_at)) == ["tell capacity"]
    assert told(core.step(CallsEnded(theirs, 1), told_at)) == []
    assert core.next_deadline() is None


# -- taking back -------------------------------------------------------------------------------------------------


def test_a_cancel_of_a_whole_run_answers_what_waits() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=5), RouterPeer()
    core.step(RunsReceived([run(link, 1, 3), run(link, 4, 2)]), 0.0)
    assert told(core.step(RunsCancelled(link, [(4, 5)]), 0.0)) == ["fail 4-5 CANCELLED"]
    assert told(core.step(RunsCancelled(link, [(1, 3)]), 0.0)) == ["fail 2-3 CANCELLED"]
    assert (core.in_use, core.waiting) == (1, 0)


def test_a_cancel_may_cut_a_run_in_two_and_go_on_after_it() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=20), RouterPeer()
    running = run(link, 1, 1)
    core.step(RunsReceived([running, run(link, 2, 10), run(link, 12, 10)]), 0.0)
    assert told(core.step(RunsCancelled(link, [(5, 6)]), 0.0)) == ["fail 5-6 CANCELLED"]
    # 7-11 is a run of its own now, and 7 is not where its payloads begin: 7-16 is not the whole of it.
    assert sorted(told(core.step(RunsCancelled(link, [(7, 16)]), 0.0))) == [
        "fail 12-16 CANCELLED",
        "fail 7-11 CANCELLED",
    ]
    assert told(core.step(RunsCancelled(link, [(2, 11)]), 0.0)) == ["fail 2-4 CANCELLED"]
    assert told(core.step(CallsEnded(running, 1), 0.0)) == ["calls 17-17"]


def test_a_cancel_of_a_run_whose_middle_is_gone_reaches_its_end() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=20), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1), run(link, 2, 10)]), 0.0)
    core.step(RunsCancelled(link, [(5, 6)]), 0.0)
    assert told(core.step(RunsCancelled(link, [(2, 11)]), 0.0)) == ["fail 2-4 CANCELLED", "fail 7-11 CANCELLED"]


def test_a_cancel_of_many_ranges_takes_just_these() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=40), RouterPeer()
    running = run(link, 1, 1)
    core.step(RunsReceived([running, run(link, 2, 10), run(link, 12, 10)]), 0.0)
    gone = told(core.step(RunsCancelled(link, [(15, 15), (3, 4), (8, 13), (7, 9), (21, 30)]), 0.0))
    assert sorted(gone) == [
        "fail 12-13 CANCELLED",
        "fail 15-15 CANCELLED",
        "fail 21-21 CANCELLED",
        "fail 3-4 CANCELLED",
        "fail 7-11 CANCELLED",
    ]
    assert core.waiting == 20 - 2 - 5 - 2 - 1 - 1
    left = []
    ended = running
    while commands := [each for each in core.step(CallsEnded(ended, 1), 0.0) if isinstance(each, StartCalls)]:
        left += told(list(commands))
        ended = commands[0].run
    assert left == [f"calls {each}-{each}" for each in (2, 5, 6, 14, 16, 17, 18, 19, 20)]


def test_calls_of_a_turn_that_are_taken_back_are_the_executors_to_answer() -> None:
    core, link = scheduler(), RouterPeer()
    commands = core.step(RunsReceived([run(link, 1, 5, key="k")]), 0.0)
    assert told(core.step(RunsCancelled(link, [(3, 4)]), 0.0)) == []
    assert turn_of(commands).run.withdrawn == {2, 3}


def test_calls_that_a_turn_did_not_come_to_are_answered_when_it_ends() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 5, key="k")]), 0.0))
    core.step(RunsCancelled(link, [(3, 4)]), 0.0)
    assert told(core.step(TurnEnded(turn, 2), 0.0)) == ["fail 4-4 CANCELLED", "fail 3-3 CANCELLED", "turn 5-5"]


def test_calls_in_a_batcher_can_be_taken_back_and_free_their_permits() -> None:
    core, link = scheduler(max_ongoing=2, prefetch=1), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1, method="batch"), run(link, 2, 1)]), 0.0)
    core.step(RunsReceived([run(link, 3, 1)]), 0.0)
    assert told(core.step(RunsCancelled(link, [(1, 1)]), 0.0)) == ["fail 1-1 CANCELLED", "calls 3-3"]


def test_the_end_of_a_stream_takes_back_what_it_left() -> None:
    core, link, other = scheduler(max_ongoing=1, prefetch=3), RouterPeer(), RouterPeer()
    mine, theirs = run(link, 1, 3), run(other, 1, 1)
    core.step(RunsReceived([mine, theirs]), 0.0)
    core.step(LinkClosed(link), 0.0)
    assert told(core.step(CallsEnded(mine, 1), 0.0)) == ["calls 1-1"]


# -- the replica -------------------------------------------------------------------------------------------------


def test_a_drain_hands_back_what_has_not_started_and_ends_with_what_runs() -> None:
    core, link = scheduler(max_ongoing=3, prefetch=3), RouterPeer()
    unkeyed = run(link, 1, 3)
    commands = core.step(RunsReceived([run(link, 10, 4, key="a"), unkeyed, run(link, 20, 1, method="batch")]), 0.0)
    assert told(commands) == ["turn 10-13", "calls 1-2"]
    assert told(core.step(DrainBegan(), 0.0)) == ["refuse 3-3 DRAINING", "refuse 20-20 DRAINING"]
    assert told(core.step(RunsReceived([run(link, 30, 1)]), 0.0)) == ["refuse 30-30 DRAINING"]
    assert told(core.step(TurnEnded(turn_of(commands), 1), 0.0)) == ["refuse 11-13 DRAINING"]
    assert not core.is_idle
    core.step(CallsEnded(unkeyed, 2), 0.0)
    assert core.is_idle


def test_a_drain_empties_batchers() -> None:
    core, link = scheduler(), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1, method="batch"), run(link, 2, 1, method="batch", key="a")]), 0.0)
    assert told(core.step(DrainBegan(), 0.0)) == ["refuse 1-1 DRAINING", "refuse 2-2 DRAINING"]
    assert core.is_idle


def test_more_permits_start_what_waits_fewer_hold_back() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=5), RouterPeer()
    sent = run(link, 1, 6)
    core.step(RunsReceived([sent]), 0.0)
    assert told(core.step(LimitsChanged(max_ongoing=3, prefetch=5), 0.0)) == ["calls 2-3"]
    core.step(LimitsChanged(max_ongoing=1, prefetch=5), 0.0)
    assert told(core.step(CallsEnded(sent, 2), 0.0)) == []
    assert told(core.step(CallsEnded(sent, 1), 0.0)) == ["calls 4-4"]
