"""Decisions that a scenario shows best; the property test covers the interleavings."""

from __future__ import annotations

from math import inf

import pytest

from replica_service.core import verdicts
from replica_service.core.batch_weight import Weighed
from replica_service.core.call_options import CallOptions
from replica_service.core.calls import Link, Run, StartTurn
from replica_service.core.commands import Command, Fail, Grant, Refuse, StartBatch, StartCalls, TellCapacity
from replica_service.core.lanes import MAX_TURN_CALLS
from replica_service.core.scheduler import Scheduler
from replica_service.core.vacancies import CAPACITY_GAP_S
from replica_service.core.waiting import DEFAULT_KEYED_WINDOW
from slotmesh.errors import Reason
from slotmesh.handlers import BatchControl, BatchSettings

GATHER_S = 0.5


def scheduler(
    max_ongoing: int = 4, prefetch: int = 0, keyed_window: int = DEFAULT_KEYED_WINDOW, max_batch_size: int = 3
) -> Scheduler:
    settings = BatchSettings(max_batch_size=max_batch_size, batch_wait_timeout_s=GATHER_S)
    methods = {"plain": None, "batch": BatchControl(settings)}
    return Scheduler(methods, max_ongoing=max_ongoing, prefetch=prefetch, keyed_window=keyed_window)


def run(
    link: Link,
    first: int,
    count: int,
    *,
    method: str = "plain",
    key: str = "",
    deadline: float = inf,
    epoch: int = 1,
    arrived: float = 0.0,
) -> Run:
    made = Run(link, first, [b""] * count, CallOptions(method=method, ordering_key=key), "e", arrived, deadline)
    made.owner_epoch = epoch
    return made


def told(commands: list[Command]) -> list[str]:
    """The commands, as a person would note them down: run ids, first and last."""
    lines = []
    for command in commands:
        match command:
            case StartBatch(parts=parts):
                spans = [f"{part.first + lo}-{part.first + hi - 1}" for part, lo, hi in parts]
                lines.append("batch " + ",".join(spans))
            case TellCapacity():
                lines.append("tell capacity")
            case Grant(run=run):
                lines.append(f"grant {run.first}")
            case Refuse() | Fail():
                word = "refuse" if isinstance(command, Refuse) else "fail"
                lines.append(f"{word} {span(command)} {command.failure.reason.value}")
            case StartCalls() | StartTurn():
                lines.append(f"{'calls' if isinstance(command, StartCalls) else 'turn'} {span(command)}")
    return lines


def span(command: StartCalls | StartTurn | Refuse | Fail) -> str:
    return f"{command.run.first + command.lo}-{command.run.first + command.hi - 1}"


def turn_of(commands: list[Command]) -> StartTurn:
    (turn,) = [command for command in commands if isinstance(command, StartTurn)]
    return turn


def batch_of(commands: list[Command]) -> StartBatch:
    (batch,) = [command for command in commands if isinstance(command, StartBatch)]
    return batch


# -- unkeyed calls -----------------------------------------------------------------------------------------------


def test_calls_start_as_far_as_permits_go_wait_as_far_as_prefetch_goes_and_the_rest_is_refused() -> None:
    core, link = scheduler(max_ongoing=4, prefetch=2), Link()
    sent = run(link, 1, 10)
    assert told(core.submit([sent], 0.0)) == ["refuse 7-10 QUEUE_FULL", "calls 1-4"]
    assert (core.in_use, core.waiting) == (4, 2)
    assert told(core.calls_ended(sent, 1, 0.0)) == ["calls 5-5"]
    assert told(core.calls_ended(sent, 4, 0.0)) == ["calls 6-6"]
    assert told(core.calls_ended(sent, 1, 0.0)) == []
    assert core.is_idle


def test_unknown_methods_fail_before_they_take_room() -> None:
    core, link = scheduler(), Link()
    (unknown,) = core.submit([run(link, 1, 1, method="nope")], 0.0)
    assert isinstance(unknown, Fail)
    assert unknown.failure.reason is Reason.METHOD_NOT_FOUND
    assert "'nope'; it has batch, plain" in unknown.failure.message
    assert core.is_idle


def test_calls_past_their_deadline_never_start() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=5), Link()
    first = run(link, 1, 1)
    core.submit([first, run(link, 2, 2, deadline=1.0), run(link, 4, 1)], 0.0)
    assert told(core.calls_ended(first, 1, 1.0)) == ["fail 2-3 DEADLINE_IN_QUEUE", "calls 4-4"]


def test_a_router_that_heard_full_hears_of_room() -> None:
    core, mine, other = scheduler(max_ongoing=2), Link(), Link()
    theirs = run(other, 1, 2)
    core.submit([theirs], 0.0)
    capacity = core.capacity(mine)
    assert (capacity.ongoing, capacity.others) == (2, 2)
    assert core.capacity(other).others == 0
    assert told(core.calls_ended(theirs, 1, 0.0)) == []
    told_at = core.next_deadline()
    assert told_at == CAPACITY_GAP_S
    assert told(core.passed(told_at)) == ["tell capacity"]
    assert told(core.calls_ended(theirs, 1, told_at)) == []
    assert core.next_deadline() is None


# -- taking back -------------------------------------------------------------------------------------------------


def test_a_cancel_of_a_whole_run_answers_what_waits() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=5), Link()
    core.submit([run(link, 1, 3), run(link, 4, 2)], 0.0)
    assert told(core.cancel(link, [(4, 5)], 0.0)) == ["fail 4-5 CANCELLED"]
    assert told(core.cancel(link, [(1, 3)], 0.0)) == ["fail 2-3 CANCELLED"]
    assert (core.in_use, core.waiting) == (1, 0)


def test_a_cancel_may_cut_a_run_in_two_and_go_on_after_it() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=20), Link()
    running = run(link, 1, 1)
    core.submit([running, run(link, 2, 10), run(link, 12, 10)], 0.0)
    assert told(core.cancel(link, [(5, 6)], 0.0)) == ["fail 5-6 CANCELLED"]
    # 7-11 is a run of its own now, and 7 is not where its payloads begin: 7-16 is not the whole of it.
    assert sorted(told(core.cancel(link, [(7, 16)], 0.0))) == ["fail 12-16 CANCELLED", "fail 7-11 CANCELLED"]
    assert told(core.cancel(link, [(2, 11)], 0.0)) == ["fail 2-4 CANCELLED"]
    assert told(core.calls_ended(running, 1, 0.0)) == ["calls 17-17"]


def test_a_cancel_of_a_run_whose_middle_is_gone_reaches_its_end() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=20), Link()
    core.submit([run(link, 1, 1), run(link, 2, 10)], 0.0)
    core.cancel(link, [(5, 6)], 0.0)
    assert told(core.cancel(link, [(2, 11)], 0.0)) == ["fail 2-4 CANCELLED", "fail 7-11 CANCELLED"]


def test_a_cancel_of_many_ranges_takes_just_these() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=40), Link()
    running = run(link, 1, 1)
    core.submit([running, run(link, 2, 10), run(link, 12, 10)], 0.0)
    gone = told(core.cancel(link, [(15, 15), (3, 4), (8, 13), (7, 9), (21, 30)], 0.0))
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
    while commands := [each for each in core.calls_ended(ended, 1, 0.0) if isinstance(each, StartCalls)]:
        left += told(list(commands))
        ended = commands[0].run
    assert left == [f"calls {each}-{each}" for each in (2, 5, 6, 14, 16, 17, 18, 19, 20)]


def test_calls_of_a_turn_that_are_taken_back_are_the_executors_to_answer() -> None:
    core, link = scheduler(), Link()
    commands = core.submit([run(link, 1, 5, key="k")], 0.0)
    assert told(core.cancel(link, [(3, 4)], 0.0)) == []
    assert turn_of(commands).run.withdrawn == {2, 3}


def test_calls_that_a_turn_did_not_come_to_are_answered_when_it_ends() -> None:
    core, link = scheduler(), Link()
    turn = turn_of(core.submit([run(link, 1, 5, key="k")], 0.0))
    core.cancel(link, [(3, 4)], 0.0)
    assert told(core.turn_ended(turn, 2, 0.0)) == ["fail 4-4 CANCELLED", "fail 3-3 CANCELLED", "turn 5-5"]


def test_calls_in_a_batcher_can_be_taken_back_and_free_their_permits() -> None:
    core, link = scheduler(max_ongoing=2, prefetch=1), Link()
    core.submit([run(link, 1, 1, method="batch"), run(link, 2, 1)], 0.0)
    core.submit([run(link, 3, 1)], 0.0)
    assert told(core.cancel(link, [(1, 1)], 0.0)) == ["fail 1-1 CANCELLED", "calls 3-3"]


def test_the_end_of_a_stream_takes_back_what_it_left() -> None:
    core, link, other = scheduler(max_ongoing=1, prefetch=3), Link(), Link()
    mine, theirs = run(link, 1, 3), run(other, 1, 1)
    core.submit([mine, theirs], 0.0)
    core.close(link, 0.0)
    assert told(core.calls_ended(mine, 1, 0.0)) == ["calls 1-1"]


# -- lanes -------------------------------------------------------------------------------------------------------


def test_a_lane_has_one_turn_at_a_time_and_goes_to_the_back() -> None:
    core, link = scheduler(max_ongoing=1), Link()
    long = run(link, 1, MAX_TURN_CALLS + 10, key="a")
    first = core.submit([long, run(link, 1000, 1, key="b")], 0.0)
    assert told(first) == [f"turn 1-{MAX_TURN_CALLS}"]
    second = core.turn_ended(turn_of(first), MAX_TURN_CALLS, 0.0)
    assert told(second) == ["turn 1000-1000"]
    third = core.turn_ended(turn_of(second), 1, 0.0)
    assert told(third) == [f"turn {MAX_TURN_CALLS + 1}-{MAX_TURN_CALLS + 10}"]


def test_a_turn_that_ended_early_goes_on_before_later_runs() -> None:
    core, link = scheduler(max_ongoing=1), Link()
    first = core.submit([run(link, 1, 4, key="a"), run(link, 5, 1, key="a")], 0.0)
    second = core.turn_ended(turn_of(first), 2, 0.0)
    assert told(second) == ["turn 3-4"]
    assert told(core.turn_ended(turn_of(second), 4, 0.0)) == ["turn 5-5"]


def test_freed_permits_serve_lanes_and_unkeyed_calls_in_turn() -> None:
    core, link = scheduler(max_ongoing=4, prefetch=8), Link()
    running = run(link, 1, 4)
    core.submit([running], 0.0)
    keyed = [run(link, 100 + index, 1, key=f"k{index}") for index in range(8)]
    core.submit([run(link, 5, 8), *keyed], 0.0)
    assert told(core.calls_ended(running, 4, 0.0)) == ["turn 100-100", "turn 101-101", "calls 5-6"]
    assert told(core.calls_ended(running, 1, 0.0)) == ["calls 7-7"]
    assert told(core.calls_ended(running, 1, 0.0)) == ["turn 102-102"]


def test_past_the_window_nothing_of_a_key_overtakes_what_was_refused() -> None:
    core, link = scheduler(max_ongoing=1, keyed_window=4), Link()
    turn = turn_of(core.submit([run(link, 1, 1, key="a"), run(link, 2, 3, key="b")], 0.0))
    assert told(core.submit([run(link, 5, 2, key="b"), run(link, 7, 1, key="b")], 0.0)) == [
        "refuse 5-6 QUEUE_FULL",
        "refuse 7-7 QUEUE_FULL",
    ]
    turn = turn_of(core.turn_ended(turn, 1, 0.0))
    assert told(core.submit([run(link, 8, 1, key="b")], 0.0)) == ["refuse 8-8 QUEUE_FULL"]
    core.turn_ended(turn, 3, 0.0)
    assert told(core.submit([run(link, 9, 1, key="b")], 0.0)) == ["turn 9-9"]


def test_runs_of_an_overtaken_epoch_are_refused_and_stay_refused() -> None:
    core, link = scheduler(), Link()
    core.submit([run(link, 1, 1, key="a", epoch=7)], 0.0)
    assert told(core.submit([run(link, 2, 1, key="a", epoch=6)], 0.0)) == ["refuse 2-2 STALE_TABLE"]
    core.revoke("e", {0: 7}, 0.0)
    assert told(core.submit([run(link, 3, 1, key="a", epoch=7)], 0.0)) == ["refuse 3-3 STALE_TABLE"]


def test_a_revoked_partition_hands_back_what_waits_and_is_empty_when_its_turn_is_over() -> None:
    core, link = scheduler(), Link()
    turn = turn_of(core.submit([run(link, 1, 2, key="a"), run(link, 3, 2, key="a")], 0.0))
    assert told(core.revoke("e", {0: 1}, 0.0)) == ["refuse 3-4 STALE_TABLE"]
    assert not core.is_emptied("e", 0)
    core.turn_ended(turn, 2, 0.0)
    assert core.is_emptied("e", 0)


def test_a_revoked_partition_is_empty_when_the_last_of_its_keys_is() -> None:
    core, link = scheduler(), Link()
    keys = [run(link, first, 1, key=key) for first, key in ((1, "a"), (2, "b"))]
    one, other = (command for command in core.submit(keys, 0.0) if isinstance(command, StartTurn))
    core.revoke("e", {0: 1}, 0.0)
    core.revoke("e", {0: 1}, 0.0)
    core.turn_ended(one, 1, 0.0)
    assert not core.is_emptied("e", 0)
    core.turn_ended(other, 1, 0.0)
    assert core.is_emptied("e", 0)


def test_a_revoked_partition_of_which_nothing_runs_is_empty_though_no_permit_is_free() -> None:
    core, link = scheduler(max_ongoing=1), Link()
    core.submit([run(link, 1, 1), run(link, 2, 1, key="a")], 0.0)
    assert told(core.revoke("e", {0: 1}, 0.0)) == ["refuse 2-2 STALE_TABLE"]
    assert core.is_emptied("e", 0)


@pytest.mark.parametrize("how", ["closed", "cancelled", "handed back"])
def test_a_partition_that_left_is_empty_once_its_calls_were_taken_back_though_no_permit_is_free(how: str) -> None:
    core, other, link = scheduler(max_ongoing=1), Link(), Link()
    newer = run(link, 1, 1, key="a", epoch=5)
    core.submit([run(other, 1, 1), newer], 0.0)
    core.revoke("e", {0: 4}, 0.0)
    assert not core.is_emptied("e", 0)
    if how == "closed":
        core.close(link, 0.0)
    elif how == "cancelled":
        core.cancel(link, [(1, 1)], 0.0)
    else:
        core.hand_back([newer], verdicts.FENCED, 0.0)
    assert core.is_emptied("e", 0)


def test_what_a_turn_has_not_reached_when_its_partition_was_revoked_is_handed_back() -> None:
    core, link = scheduler(), Link()
    turn = turn_of(core.submit([run(link, 1, 9, key="a")], 0.0))
    assert told(core.revoke("e", {0: 1}, 0.0)) == []
    assert told(core.turn_ended(turn, 4, 0.0)) == ["refuse 5-9 STALE_TABLE"]
    assert core.is_emptied("e", 0)
    assert core.is_idle


def test_a_fence_ends_all_epochs_up_to_its_own_of_all_endpoints() -> None:
    core, link = scheduler(), Link()
    turn = turn_of(core.submit([run(link, 1, 1, key="a", epoch=7), run(link, 2, 1, key="a", epoch=7)], 0.0))
    assert told(core.fence(10, 0.0)) == ["refuse 2-2 STALE_TABLE"]
    assert core.busy() == {"e": {0}}
    core.turn_ended(turn, 1, 0.0)
    assert core.busy() == {}
    later = run(link, 3, 1, key="b", epoch=10)
    later.partition = 5
    assert told(core.submit([later, run(link, 4, 1, key="a", epoch=10)], 0.0)) == [
        "refuse 3-3 STALE_TABLE",
        "refuse 4-4 STALE_TABLE",
    ]
    core.fence(3, 0.0)  # an older one changes nothing
    assert told(core.submit([run(link, 5, 1, key="a", epoch=10)], 0.0)) == ["refuse 5-5 STALE_TABLE"]
    assert told(core.submit([run(link, 6, 1, key="a", epoch=11)], 0.0)) == ["turn 6-6"]


# -- batches -----------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_others_from_its_first_call_on() -> None:
    core, link = scheduler(), Link()
    assert told(core.submit([run(link, 1, 1, method="batch", arrived=1.0)], 1.0)) == []
    assert core.next_deadline() == 1.0 + GATHER_S
    assert told(core.submit([run(link, 2, 1, method="batch", arrived=1.2)], 1.2)) == []
    assert core.next_deadline() == 1.0 + GATHER_S
    assert told(core.passed(1.4)) == []
    assert told(core.passed(1.5)) == ["batch 1-1,2-2"]


def test_a_batch_waits_no_longer_where_the_first_call_of_a_lane_was_taken_back() -> None:
    core, link = scheduler(max_batch_size=8, max_ongoing=8), Link()
    core.submit([run(link, 1, 1, key="a", method="batch", arrived=1.0)], 1.0)
    core.submit([run(link, 2, 1, method="batch", arrived=1.1)], 1.1)
    core.submit([run(link, 3, 1, key="a", method="batch", arrived=1.3)], 1.3)
    assert core.next_deadline() == 1.0 + GATHER_S
    core.cancel(link, [(1, 1)], 1.4)
    assert core.next_deadline() == 1.1 + GATHER_S
    core.cancel(link, [(2, 2)], 1.4)
    assert core.next_deadline() == 1.3 + GATHER_S


def test_permits_in_another_order_than_calls_came_prolong_no_wait() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=4), Link()
    (start,) = core.submit([run(link, 1, 1)], 0.0)
    assert isinstance(start, StartCalls)
    core.submit([run(link, 2, 1, method="batch", arrived=0.1)], 0.1)
    core.submit([run(link, 3, 1, key="a", method="batch", arrived=0.3)], 0.3)
    core.configure(max_ongoing=3, prefetch=4, now=0.31)
    assert core.next_deadline() == 0.1 + GATHER_S


def test_a_full_batch_is_cut_at_once_and_the_next_when_it_ends() -> None:
    core, link = scheduler(max_ongoing=9), Link()
    first = core.submit([run(link, 1, 5, method="batch")], 0.0)
    assert told(first) == ["batch 1-3"]
    assert core.next_deadline() is None
    assert told(core.submit([run(link, 6, 2, method="batch")], 0.1)) == []
    assert told(core.passed(9.0)) == []
    second = core.batch_ended(batch_of(first), 0.2)
    assert told(second) == ["batch 4-5,6-6"]


def test_consecutive_calls_of_a_key_share_a_batch_and_never_two() -> None:
    core, link = scheduler(max_ongoing=9), Link()
    commands = core.submit([run(link, 1, 1, method="batch", key="a"), run(link, 2, 4, method="batch", key="a")], 0.0)
    assert told(commands) == ["batch 1-1,2-3"]
    assert told(core.batch_ended(batch_of(commands), 1.0)) == ["batch 4-5"]


def test_calls_of_a_key_that_come_while_it_gathers_join_the_batch() -> None:
    core, link = scheduler(max_ongoing=9), Link()
    core.submit([run(link, 1, 1, method="batch", key="a")], 0.0)
    assert told(core.submit([run(link, 2, 2, method="batch", key="a")], 0.1)) == ["batch 1-1,2-3"]


def test_another_method_of_the_key_waits_for_the_batch() -> None:
    core, link = scheduler(max_ongoing=9), Link()
    runs = [
        run(link, 1, 1, method="batch", key="a"),
        run(link, 2, 1, key="a"),
        run(link, 3, 1, method="batch", key="a"),
    ]
    assert told(core.submit(runs, 0.0)) == []
    cut = core.passed(GATHER_S)
    assert told(cut) == ["batch 1-1"]
    turn = core.batch_ended(batch_of(cut), 1.0)
    assert told(turn) == ["turn 2-2"]
    assert told(core.turn_ended(turn_of(turn), 1, 2.0)) == ["batch 3-3"]


def test_a_batch_is_full_when_it_has_all_permits() -> None:
    core, link = scheduler(max_ongoing=2, prefetch=2), Link()
    assert told(core.submit([run(link, 1, 4, method="batch")], 0.0)) == ["batch 1-2"]


def test_a_call_that_does_not_fit_keeps_its_place_among_those_of_other_keys_and_of_none() -> None:
    weights = {1: 10, 2: 4, 3: 8, 4: 2, 5: 8}
    control = BatchControl(BatchSettings(max_batch_size=10, batch_wait_timeout_s=0.0))
    core = Scheduler(
        {"batch": control},
        max_ongoing=10,
        weigh={"batch": lambda part, index: Weighed(weights[part.first + index])},
    )
    link = Link()
    commands = core.submit([run(link, 1, 1, method="batch")], 0.0)
    for number in (2, 3, 4, 5):
        key = "a" if number == 3 else ""
        assert told(core.submit([run(link, number, 1, method="batch", key=key)], 0.0)) == []
    batches = []
    while commands:
        batches += told(commands)
        commands = core.batch_ended(batch_of(commands), 0.0)
    assert batches == ["batch 1-1", "batch 2-2", "batch 3-3,4-4", "batch 5-5"]


def test_a_call_that_was_parked_while_it_gathered_is_not_weighed_again() -> None:
    weighings = []

    def weigh(part: Run, index: int) -> Weighed:
        weighings.append(part.first + index)
        return Weighed(1)

    control = BatchControl(BatchSettings(max_batch_size=10, batch_wait_timeout_s=GATHER_S))
    core, link = Scheduler({"batch": control}, max_ongoing=10, weigh={"batch": weigh}), Link()
    link.fresh_until = GATHER_S
    core.submit([run(link, 1, 2, method="batch"), run(link, 3, 2, method="batch", key="a")], 0.0)
    assert told(core.passed(GATHER_S)) == []
    assert len(link.parked) == 2
    assert told(core.echoed(link, GATHER_S, GATHER_S)) == ["batch 3-4,1-2"]
    assert sorted(weighings) == [1, 2, 3, 4]


def test_calls_that_expire_in_a_batcher_free_their_permits_for_the_next_batch() -> None:
    core, link = scheduler(max_ongoing=2, prefetch=2), Link()
    running = core.submit([run(link, 1, 2, method="batch")], 0.0)
    core.submit([run(link, 3, 1, method="batch", deadline=0.3), run(link, 4, 1, method="batch")], 0.1)
    assert told(core.batch_ended(batch_of(running), 0.4)) == ["fail 3-3 DEADLINE_IN_QUEUE"]
    assert core.in_use == 1
    assert told(core.passed(0.1 + GATHER_S)) == ["batch 4-4"]


def test_permits_that_expired_calls_leave_start_what_is_due_in_the_same_turn() -> None:
    core, link = scheduler(max_ongoing=3, prefetch=3), Link()
    core.submit([run(link, 1, 2, method="batch", deadline=0.3), run(link, 3, 1)], 0.0)
    core.submit([run(link, 4, 3, method="batch")], 0.1)
    # At the end of the wait the two have expired; their permits go to two of the three, which have waited long, too.
    assert told(core.passed(0.9)) == ["fail 1-2 DEADLINE_IN_QUEUE", "batch 4-5"]


# -- the replica -------------------------------------------------------------------------------------------------


def test_a_drain_hands_back_what_has_not_started_and_ends_with_what_runs() -> None:
    core, link = scheduler(max_ongoing=3, prefetch=3), Link()
    unkeyed = run(link, 1, 3)
    commands = core.submit([run(link, 10, 4, key="a"), unkeyed, run(link, 20, 1, method="batch")], 0.0)
    assert told(commands) == ["turn 10-13", "calls 1-2"]
    assert told(core.drain(0.0)) == ["refuse 3-3 DRAINING", "refuse 20-20 DRAINING"]
    assert told(core.submit([run(link, 30, 1)], 0.0)) == ["refuse 30-30 DRAINING"]
    assert told(core.turn_ended(turn_of(commands), 1, 0.0)) == ["refuse 11-13 DRAINING"]
    assert not core.is_idle
    core.calls_ended(unkeyed, 2, 0.0)
    assert core.is_idle


def test_a_drain_empties_batchers() -> None:
    core, link = scheduler(), Link()
    core.submit([run(link, 1, 1, method="batch"), run(link, 2, 1, method="batch", key="a")], 0.0)
    assert told(core.drain(0.0)) == ["refuse 1-1 DRAINING", "refuse 2-2 DRAINING"]
    assert core.is_idle


def test_more_permits_start_what_waits_fewer_hold_back() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=5), Link()
    sent = run(link, 1, 6)
    core.submit([sent], 0.0)
    assert told(core.configure(max_ongoing=3, prefetch=5, now=0.0)) == ["calls 2-3"]
    core.configure(max_ongoing=1, prefetch=5, now=0.0)
    assert told(core.calls_ended(sent, 2, 0.0)) == []
    assert told(core.calls_ended(sent, 1, 0.0)) == ["calls 4-4"]


# -- links that are not fresh ------------------------------------------------------------------------------------


def fenced_link(fresh_until: float = 3.0) -> Link:
    link = Link()
    link.fresh_until = fresh_until
    return link


def test_calls_of_a_link_that_is_not_fresh_wait_for_its_echo_and_hold_nobody_up() -> None:
    core, silent, other = scheduler(max_ongoing=2), fenced_link(), Link()
    sent = [
        run(silent, 1, 2),
        run(silent, 3, 1, key="k"),
        run(silent, 4, 1, key="k"),
        run(silent, 5, 1, method="batch"),
    ]
    assert told(core.submit(sent, 3.0)) == ["refuse 5-5 QUEUE_FULL"]
    theirs = [run(other, 1, 1), run(other, 2, 1, key="k")]
    started = core.submit(theirs, 3.0)
    assert sorted(told(started)) == ["calls 1-1", "turn 2-2"]
    assert core.capacity(other).others == 1, "the lane's permit"
    assert told(core.echoed(silent, 0.0, 3.5)) == [], "the stamp is too old"
    core.calls_ended(theirs[0], 1, 3.5)
    core.turn_ended(turn_of(started), 1, 3.5)
    assert told(core.echoed(silent, 3.4, 3.5)) == ["turn 3-3", "calls 1-1"]


def test_parked_runs_of_a_key_start_in_order() -> None:
    core, link = scheduler(), fenced_link()
    core.submit([run(link, 1, 1, key="k"), run(link, 2, 1, key="k"), run(link, 3, 1, key="k")], 3.0)
    first = core.echoed(link, 3.0, 3.0)
    second = core.turn_ended(turn_of(first), 2, 3.0) if told(first) == ["turn 1-1"] else []
    assert told(second)[:1] == ["turn 2-2"]


def test_what_is_parked_is_taken_back_handed_back_and_dropped() -> None:
    for event, answer in (
        ("cancel", "fail 1-2 CANCELLED"),
        ("close", "fail 1-2 CANCELLED"),
        ("drain", "refuse 1-2 DRAINING"),
        ("hand back", "refuse 1-2 SESSION_FENCED"),
    ):
        for key in ("", "k"):
            core, link = scheduler(), fenced_link()
            sent = run(link, 1, 2, key=key)
            assert told(core.submit([sent], 3.0)) == []
            match event:
                case "cancel":
                    commands = core.cancel(link, [(1, 2)], 3.0)
                case "close":
                    commands = core.close(link, 3.0)
                case "drain":
                    commands = core.drain(3.0)
                case _:
                    commands = core.hand_back([sent], verdicts.FENCED, 3.0)
            assert told(commands) == [answer]
            assert core.is_idle
            assert (core.waiting, core.in_use, core.keyed, link.unkeyed, link.waiting) == (0, 0, 0, 0, {})


def test_a_turn_that_did_not_come_to_its_first_call_waits_again() -> None:
    core, link = scheduler(), fenced_link()
    turn = turn_of(core.submit([run(link, 1, 3, key="k")], 0.0))
    assert told(core.turn_ended(turn, 0, 3.0)) == []
    assert core.in_use == 0
    assert told(core.echoed(link, 3.0, 3.0)) == ["turn 1-3"]


def test_calls_that_executors_give_back_are_dropped_with_their_link() -> None:
    core, link = scheduler(), fenced_link()
    work, other = core.submit([run(link, 1, 2), run(link, 3, 2)], 0.0)
    assert isinstance(work, StartCalls)
    assert isinstance(other, StartCalls)
    core.close(link, 0.0)
    assert told(core.returned(work, 0.0)) == ["fail 1-2 CANCELLED"]
    core.calls_ended(other.run, 2, 0.0)
    assert core.is_idle
