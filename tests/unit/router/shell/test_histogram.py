"""Weighted values in buckets."""

from __future__ import annotations

import pytest

from slotmesh.histogram import SECONDS, Histogram


@pytest.mark.parametrize(
    ("value", "bucket"), [(-1.0, 0), (0.0, 0), (1.0, 0), (1.0001, 1), (5.0, 1), (5.1, 2), (10.0, 2), (1e9, 3)]
)
def test_a_bound_belongs_to_the_bucket_below_it(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 5.0, 10.0))
    histogram.observe(value, 1)
    assert histogram.counts == [int(index == bucket) for index in range(4)]


def test_values_count_as_often_as_there_were_calls() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 10)
    histogram.observe(2.0, 3)
    assert histogram.counts == [10, 3]
    assert histogram.total == 11.0


def test_times_are_told_apart_from_half_a_millisecond_to_half_a_minute() -> None:
    assert list(SECONDS) == sorted(set(SECONDS))
    assert (SECONDS[0], SECONDS[-1]) == (0.0005, 30.0)
    assert len(Histogram().counts) == len(SECONDS) + 1
