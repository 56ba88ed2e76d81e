"""Decisions that a scenario shows best: the order of keyed calls, and partitions that leave."""

from __future__ import annotations

import pytest

from replica_service.core.events import (
    CallsEnded,
    EpochFenced,
    LinkClosed,
    PartitionsRevoked,
    RunsCancelled,
    RunsReceived,
    SessionsMoved,
    TurnEnded,
)
from replica_service.core.runs import RouterPeer, StartTurn
from replica_service.core.work import MAX_TURN_CALLS
from tests.unit.replica.scheduler_notes import run, scheduler, told, turn_of


def test_a_lane_has_one_turn_at_a_time_and_goes_to_the_back() -> None:
    core, link = scheduler(max_ongoing=1), RouterPeer()
    long = run(link, 1, MAX_TURN_CALLS + 10, key="a")
    first = core.step(RunsReceived([long, run(link, 1000, 1, key="b")]), 0.0)
    assert told(first) == [f"turn 1-{MAX_TURN_CALLS}"]
    second = core.step(TurnEnded(turn_of(first), MAX_TURN_CALLS), 0.0)
    assert told(second) == ["turn 1000-1000"]
    third = core.step(TurnEnded(turn_of(second), 1), 0.0)
    assert told(third) == [f"turn {MAX_TURN_CALLS + 1}-{MAX_TURN_CALLS + 10}"]


def test_a_turn_that_ended_early_goes_on_before_later_runs() -> None:
    core, link = scheduler(max_ongoing=1), RouterPeer()
    first = core.step(RunsReceived([run(link, 1, 4, key="a"), run(link, 5, 1, key="a")]), 0.0)
    second = core.step(TurnEnded(turn_of(first), 2), 0.0)
    assert told(second) == ["turn 3-4"]
    assert told(core.step(TurnEnded(turn_of(second), 4), 0.0)) == ["turn 5-5"]


def test_freed_permits_serve_lanes_and_unkeyed_calls_in_turn() -> None:
    core, link = scheduler(max_ongoing=4, prefetch=8), RouterPeer()
    running = run(link, 1, 4)
    core.step(RunsReceived([running]), 0.0)
    keyed = [run(link, 100 + index, 1, key=f"k{index}") for index in range(8)]
    after = run(link, 5, 8)
    core.step(RunsReceived([after, *keyed]), 0.0)
    assert told(core.step(CallsEnded(running, 4), 0.0)) == ["turn 100-100", "turn 101-101", "calls 5-6"]
    assert told(core.step(CallsEnded(after, 1), 0.0)) == ["calls 7-7"]
    assert told(core.step(CallsEnded(after, 1), 0.0)) == ["turn 102-102"]


def test_past_the_window_nothing_of_a_key_overtakes_what_was_refused() -> None:
    core, link = scheduler(max_ongoing=1, keyed_window=4), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 1, key="a"), run(link, 2, 3, key="b")]), 0.0))
    assert told(core.step(RunsReceived([run(link, 5, 2, key="b"), run(link, 7, 1, key="b")]), 0.0)) == [
        "refuse 5-6 QUEUE_FULL",
        "refuse 7-7 QUEUE_FULL",
    ]
    turn = turn_of(core.step(TurnEnded(turn, 1), 0.0))
    assert told(core.step(RunsReceived([run(link, 8, 1, key="b")]), 0.0)) == ["refuse 8-8 QUEUE_FULL"]
    core.step(TurnEnded(turn, 3), 0.0)
    assert told(core.step(RunsReceived([run(link, 9, 1, key="b")]), 0.0)) == ["turn 9-9"]


def test_runs_of_an_overtaken_epoch_are_refused_and_stay_refused() -> None:
    core, link = scheduler(), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1, key="a", epoch=7)]), 0.0)
    assert told(core.step(RunsReceived([run(link, 2, 1, key="a", epoch=6)]), 0.0)) == ["refuse 2-2 STALE_TABLE"]
    core.step(PartitionsRevoked({"e": {0: 7}}), 0.0)
    assert told(core.step(RunsReceived([run(link, 3, 1, key="a", epoch=7)]), 0.0)) == ["refuse 3-3 STALE_TABLE"]


def test_a_revoked_partition_hands_back_what_waits_and_is_empty_when_its_turn_is_over() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 2, key="a"), run(link, 3, 2, key="a")]), 0.0))
    assert told(core.step(PartitionsRevoked({"e": {0: 1}}), 0.0)) == ["refuse 3-4 STALE_TABLE"]
    assert not core.is_emptied("e", 0)
    core.step(TurnEnded(turn, 2), 0.0)
    assert core.is_emptied("e", 0)


def test_a_revoked_partition_is_empty_when_the_last_of_its_keys_is() -> None:
    core, link = scheduler(), RouterPeer()
    keys = [run(link, first, 1, key=key) for first, key in ((1, "a"), (2, "b"))]
    one, other = (command for command in core.step(RunsReceived(keys), 0.0) if isinstance(command, StartTurn))
    core.step(PartitionsRevoked({"e": {0: 1}}), 0.0)
    core.step(PartitionsRevoked({"e": {0: 1}}), 0.0)
    core.step(TurnEnded(one, 1), 0.0)
    assert not core.is_emptied("e", 0)
    core.step(TurnEnded(other, 1), 0.0)
    assert core.is_emptied("e", 0)


def test_a_revoked_partition_of_which_nothing_runs_is_empty_though_no_permit_is_free() -> None:
    core, link = scheduler(max_ongoing=1), RouterPeer()
    core.step(RunsReceived([run(link, 1, 1), run(link, 2, 1, key="a")]), 0.0)
    assert told(core.step(PartitionsRevoked({"e": {0: 1}}), 0.0)) == ["refuse 2-2 STALE_TABLE"]
    assert core.is_emptied("e", 0)


@pytest.mark.parametrize("how", ["closed", "cancelled", "handed back"])
def test_a_partition_that_left_is_empty_once_its_calls_were_taken_back_though_no_permit_is_free(how: str) -> None:
    core, other, link = scheduler(max_ongoing=1), RouterPeer(), RouterPeer()
    newer = run(link, 1, 1, key="a", epoch=5)
    core.step(RunsReceived([run(other, 1, 1), newer]), 0.0)
    core.step(PartitionsRevoked({"e": {0: 4}}), 0.0)
    assert not core.is_emptied("e", 0)
    if how == "closed":
        core.step(LinkClosed(link), 0.0)
    elif how == "cancelled":
        core.step(RunsCancelled(link, [(1, 1)]), 0.0)
    else:
        core.step(SessionsMoved([newer]), 0.0)
    assert core.is_emptied("e", 0)


def test_what_a_turn_has_not_reached_when_its_partition_was_revoked_is_handed_back() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 9, key="a")]), 0.0))
    assert told(core.step(PartitionsRevoked({"e": {0: 1}}), 0.0)) == []
    assert told(core.step(TurnEnded(turn, 4), 0.0)) == ["refuse 5-9 STALE_TABLE"]
    assert core.is_emptied("e", 0)
    assert core.is_idle


def test_a_fence_ends_all_epochs_up_to_its_own_of_all_endpoints() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 1, key="a", epoch=7), run(link, 2, 1, key="a", epoch=7)]), 0.0))
    assert told(core.step(EpochFenced(10), 0.0)) == ["refuse 2-2 STALE_TABLE"]
    assert core.busy() == {"e": {0}}
    core.step(TurnEnded(turn, 1), 0.0)
    assert core.busy() == {}
    later = run(link, 3, 1, key="b", epoch=10)
    later.partition = 5
    assert told(core.step(RunsReceived([later, run(link, 4, 1, key="a", epoch=10)]), 0.0)) == [
        "refuse 3-3 STALE_TABLE",
        "refuse 4-4 STALE_TABLE",
    ]
    core.step(EpochFenced(3), 0.0)  # an older one changes nothing
    assert told(core.step(RunsReceived([run(link, 5, 1, key="a", epoch=10)]), 0.0)) == ["refuse 5-5 STALE_TABLE"]
    assert told(core.step(RunsReceived([run(link, 6, 1, key="a", epoch=11)]), 0.0)) == ["turn 6-6"]
