"""What is made of measurements."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics import Sample, percentile, summarise


def sample(calls: int, elapsed_s: float, *latencies_s: float) -> Sample:
    return Sample(calls, elapsed_s, array("d", latencies_s or (elapsed_s,)))


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (1, 1), (50, 2), (50.1, 3), (75, 3), (75.1, 4), (99, 4), (100, 4)]
)
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == value


@given(st.lists(st.floats(0, 1), min_size=1), st.integers(0, 100))
def test_at_least_the_stated_part_is_not_above_a_percentile(values: list[float], percent: int) -> None:
    ascending = sorted(values)
    found = percentile(ascending, percent)
    assert sum(value <= found for value in ascending) * 100 >= percent * len(ascending)
    assert sum(value < found for value in ascending) * 100 <= percent * len(ascending)


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@pytest.mark.parametrize("percent", [-1, 100.5])
def test_a_percentile_is_within_0_and_100(percent: float) -> None:
    with pytest.raises(ValueError, match="within 0 and 100"):
        percentile([1.0], percent)


def test_a_ratio_compares_within_a_round() -> None:
    # The ratio of the medians would be 200 / 50, of rounds that have nothing to do with one another.
    baseline = [sample(100, 1.0), sample(20, 1.0), sample(50, 1.0)]
    load = [sample(100, 1.0), sample(200, 1.0), sample(300, 1.0)]
    summary = summarise(load, baseline)
    assert summary.ratio == 6
    assert (summary.lowest_calls_per_s, summary.calls_per_s, summary.highest_calls_per_s) == (100, 200, 300)


def test_one_bad_round_moves_nothing() -> None:
    good = sample(1000, 1.0, 0.001, 0.002, 0.004)
    summary = summarise([good, good, sample(10, 1.0, 0.9)], [sample(100, 1.0)] * 3)
    assert (summary.calls_per_s, summary.p50_s, summary.p99_s, summary.ratio) == (1000, 0.002, 0.004, 10)


def test_a_rate_is_over_the_time_to_the_last_reply() -> None:
    assert sample(300, 1.5).calls_per_s == 200


@pytest.mark.parametrize(("rounds", "beside"), [(0, 0), (1, 2), (2, 1)])
def test_every_round_needs_its_baseline(rounds: int, beside: int) -> None:
    with pytest.raises(ValueError, match=r"no rounds|zip"):
        summarise([sample(1, 1.0)] * rounds, [sample(1, 1.0)] * beside)
