"""The simulations of batch queues."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.batch_queue import FinishedBatch, Station, cut_on_timer, waits_s, work_conserving

STATION = Station(most_calls=4, batch_s=1.0, call_s=0.25)
"""A batch of one takes 1.25 s, a full one 2 s."""

arrivals = st.lists(st.integers(0, 400), min_size=1, max_size=60).map(lambda ticks: sorted(t / 16 for t in ticks))


def test_a_full_batch_is_what_the_capacity_is_counted_in() -> None:
    assert STATION.takes_s(4) == 2.0
    assert STATION.capacity == 2.0


def test_a_free_station_takes_the_first_call_at_once_and_later_all_that_is_there() -> None:
    batches = work_conserving([0.0, 0.5, 1.0, 1.5, 9.0], STATION)
    assert batches == [FinishedBatch(1, 0.0), FinishedBatch(2, 1.25), FinishedBatch(1, 2.75), FinishedBatch(1, 9.0)]
    assert waits_s([0.0, 0.5, 1.0, 1.5, 9.0], batches) == [0.0, 0.75, 0.25, 1.25, 0.0]


def test_what_does_not_fit_waits_for_the_next_batch() -> None:
    assert work_conserving([0.0] * 6, STATION) == [FinishedBatch(4, 0.0), FinishedBatch(2, 2.0)]


def test_a_timer_cuts_small_batches_although_the_station_is_busy() -> None:
    # Every second a call: by the timer each is a batch of its own, which takes longer than a second.
    times = [float(at) for at in range(4)]
    assert cut_on_timer(times, STATION, 0.5) == [
        FinishedBatch(1, 0.5),
        FinishedBatch(1, 1.75),
        FinishedBatch(1, 3.0),
        FinishedBatch(1, 4.25),
    ]
    assert [batch.calls for batch in work_conserving(times, STATION)] == [1, 1, 1, 1]


def test_a_full_batch_does_not_wait_for_the_timer() -> None:
    assert cut_on_timer([0.0, 0.1, 0.2, 0.3, 0.4], STATION, 0.5) == [FinishedBatch(4, 0.3), FinishedBatch(1, 2.3)]


def test_the_call_at_the_very_end_of_the_timer_is_in() -> None:
    assert cut_on_timer([0.0, 0.5], STATION, 0.5) == [FinishedBatch(2, 0.5)]


def test_at_much_load_the_timer_is_overrun_and_the_free_station_is_not() -> None:
    station = Station(most_calls=32, batch_s=0.010, call_s=0.0001)
    draw = random.Random(1)
    times = [0.0]
    while times[-1] < 20:
        times.append(times[-1] + draw.expovariate(0.9 * station.capacity))
    conserving = waits_s(times, work_conserving(times, station))
    timer = waits_s(times, cut_on_timer(times, station, 0.010))
    half = len(times) // 2
    assert max(conserving) < 0.1
    assert max(timer[half:]) > 1.5 * max(timer[:half]) > 1


def test_waits_are_of_calls_that_arrived() -> None:
    with pytest.raises(ValueError, match="zip"):
        waits_s([0.0, 1.0], [FinishedBatch(1, 0.0)])


@given(arrivals)
def test_a_station_idles_only_while_nothing_waits(times: list[float]) -> None:
    batches = work_conserving(times, STATION)
    _is_sound(times, batches)
    begin = 0
    for before, after in pairwise(batches):
        begin += before.calls
        free_s = before.start_s + STATION.takes_s(before.calls)
        assert after.start_s == max(free_s, times[begin])
        is_there = sum(at <= after.start_s for at in times[begin:])
        assert after.calls == min(STATION.most_calls, is_there)


@given(arrivals, st.sampled_from([0.0, 0.25, 1.0, 3.0]))
def test_no_batch_waits_for_the_timer_longer_than_it_runs(times: list[float], wait_s: float) -> None:
    batches = cut_on_timer(times, STATION, wait_s)
    _is_sound(times, batches)
    begin = 0
    free_s = 0.0
    for batch in batches:
        assert batch.start_s <= max(free_s, times[begin] + wait_s)
        free_s = batch.start_s + STATION.takes_s(batch.calls)
        begin += batch.calls


def _is_sound(times: list[float], batches: list[FinishedBatch]) -> None:
    assert sum(batch.calls for batch in batches) == len(times)
    assert all(1 <= batch.calls <= STATION.most_calls for batch in batches)
    assert all(wait_s >= 0 for wait_s in waits_s(times, batches))
    for before, after in pairwise(batches):
        assert after.start_s >= before.start_s + STATION.takes_s(before.calls)
