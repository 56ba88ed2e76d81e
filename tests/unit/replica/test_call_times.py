"""How long calls wait at a replica, and run there: the scheduler's account, by a clock that the test moves."""

from __future__ import annotations

import pytest

from replica_service.core.events import BatchEnded, CallsEnded, RunsReceived, TurnEnded, TurnsEnded
from replica_service.core.runs import RouterPeer
from slotmesh.histogram import CALL_TIMES, Histogram
from tests.unit.replica.scheduler_notes import batch_of, run, scheduler, turn_of


def total(histogram: Histogram) -> tuple[int, float]:
    """Calls, and the sum of their times."""
    return sum(histogram.counts), histogram.total


def test_a_call_runs_from_its_permit_to_its_end_and_waits_from_its_arrival() -> None:
    core, link = scheduler(max_ongoing=1, prefetch=1), RouterPeer()
    first, second = run(link, 1, 1, arrived=10.0), run(link, 2, 1, arrived=10.0)
    core.step(RunsReceived([first, second]), 10.0)
    core.step(CallsEnded(first, 1), 12.0)
    core.step(CallsEnded(second, 1, waited=True), 17.0)
    times = core.call_times
    assert total(times.runs) == (2, 2.0 + 5.0)
    assert total(times.waits) == (2, 0.0 + 2.0)
    assert [times.runs.counts[CALL_TIMES.index(bound)] for bound in (2.0, 5.0)] == [1, 1]


def test_calls_of_a_run_that_start_at_different_times_keep_their_time() -> None:
    """The run had room for two of its four calls at first: those that start later are not taken for all of them."""
    core, link = scheduler(max_ongoing=2, prefetch=2), RouterPeer()
    sent = run(link, 1, 4)
    core.step(RunsReceived([sent]), 0.0)
    core.step(CallsEnded(sent, 1, waited=True), 10.0)
    core.step(CallsEnded(sent, 1, waited=True), 10.0)
    core.step(CallsEnded(sent, 1, waited=True), 20.0)
    core.step(CallsEnded(sent, 1, waited=True), 20.0)
    times = core.call_times
    assert sum(times.runs.counts) == 4
    assert times.runs.total == pytest.approx(40.0), "each ran for 10 s"
    assert sum(times.waits.counts) == 4
    assert times.waits.total == pytest.approx(20.0), "two waited for 10 s"


def test_calls_of_a_lane_share_the_time_of_their_turn() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 4, key="k")]), 0.0))
    core.step(TurnEnded(turn, 4), 2.0)
    assert core.call_times.runs.counts[CALL_TIMES.index(0.5)] == 4


def test_calls_of_a_turn_that_ended_early_count_in_the_next_one() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 3, key="k")]), 0.0))
    turn = turn_of(core.step(TurnEnded(turn, 1), 2.0))
    core.step(TurnEnded(turn, 3), 4.0)
    times = core.call_times
    assert total(times.runs) == (3, 4.0)
    assert total(times.waits) == (3, 2.0 + 2.0)


def test_a_turn_that_ended_without_a_call_counts_none() -> None:
    core, link = scheduler(), RouterPeer()
    turn = turn_of(core.step(RunsReceived([run(link, 1, 1, key="k")]), 0.0))
    core.step(TurnEnded(turn, 0), 2.0)
    assert total(core.call_times.runs) == total(core.call_times.waits) == (0, 0.0)


def test_turns_that_end_together_count_call_by_call() -> None:
    core, link = scheduler(), RouterPeer()
    started = core.step(RunsReceived([run(link, 1, 1, key="a"), run(link, 2, 1, key="b")]), 0.0)
    turns = [turn_of([each]) for each in started]
    core.step(TurnsEnded(turns), 3.0)
    assert core.call_times.runs.counts[CALL_TIMES.index(3.0)] == 2


def test_a_batch_runs_from_its_cut_and_its_calls_waited_until_then() -> None:
    core, link = scheduler(max_batch_size=3), RouterPeer()
    core.step(RunsReceived([run(link, 1, 2, method="batch")]), 0.0)
    batch = batch_of(core.step(RunsReceived([run(link, 3, 1, method="batch", arrived=0.25)]), 0.25))
    core.step(BatchEnded(batch), 5.25)
    times = core.call_times
    assert times.runs.counts[CALL_TIMES.index(5.0)] == 3
    assert total(times.waits) == (3, 0.5)
