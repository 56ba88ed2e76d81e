"""Counts that forget."""

from __future__ import annotations

from math import exp

import pytest

from router_service.core.limits.estimates import RecentCount


def test_what_happened_a_window_ago_weighs_one_over_e() -> None:
    count = RecentCount(10.0)
    count.add(100, 5.0)
    assert count.value(5.0) == 100
    assert count.value(15.0) == pytest.approx(100 / exp(1))
    assert count.value(35.0) == pytest.approx(100 / exp(3))


def test_asking_changes_nothing() -> None:
    asked, left_alone = RecentCount(1.0), RecentCount(1.0)
    for count in (asked, left_alone):
        count.add(100, 1.0)
    for step in range(1000):
        asked.value(1.0 + step / 1000)
    assert asked.value(2.0) == pytest.approx(left_alone.value(2.0))


def test_decay_that_was_put_off_is_small() -> None:
    count = RecentCount(1.0)
    for step in range(10_000):
        count.add(1, step / 1000)
    assert count.value(10.0) == pytest.approx(1000, rel=0.07)


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.0, 20.0])
def test_a_steady_rate_is_right_from_the_start(seconds: float) -> None:
    count = RecentCount(1.0)
    for step in range(int(seconds * 1000)):
        count.add(3, 100.0 + step / 1000)
    assert count.rate(100.0 + seconds) == pytest.approx(3000, rel=0.4 if seconds < 0.5 else 0.15)


def test_nothing_is_no_rate() -> None:
    assert RecentCount(1.0).rate(5.0) == 0.0
    count = RecentCount(1.0)
    count.add(10, 1.0)
    assert count.rate(1000.0) < 1e-9


def test_a_clock_that_stands_still_or_steps_back_does_no_harm() -> None:
    count = RecentCount(1.0)
    for now in (5.0, 5.0, 4.0):
        count.add(1, now)
    assert count.value(4.0) == 3
