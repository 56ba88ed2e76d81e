"""Delays grow to their ceiling, and are spread over all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.runtime.backoff import FORGOTTEN_AFTER_S, Backoff, FailureReports, WarningBackoff


def test_the_ceiling_doubles_up_to_the_maximum_and_starts_again() -> None:
    backoff = Backoff(initial_s=0.1, max_s=1.0, draw=lambda: 0.5)
    assert [backoff.next_delay_s() for _ in range(6)] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5])
    backoff.reset()
    assert backoff.next_delay_s() == pytest.approx(0.05)


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=30))
def test_a_delay_is_never_longer_than_the_maximum(draws: list[float]) -> None:
    numbers = iter(draws)
    backoff = Backoff(initial_s=0.1, max_s=0.7, factor=3, draw=lambda: next(numbers))
    assert all(0 <= backoff.next_delay_s() < 0.7 for _ in draws)


@pytest.mark.parametrize(("initial_s", "max_s", "factor"), [(0, 1, 2), (2, 1, 2), (0.1, 1, 0.5)])
def test_nonsense_is_refused(initial_s: float, max_s: float, factor: float) -> None:
    with pytest.raises(ValueError, match="need 0 < initial_s"):
        Backoff(initial_s=initial_s, max_s=max_s, factor=factor)


def test_warnings_that_repeat_are_logged_ever_less_often_and_news_at_once() -> None:
    warnings = WarningBackoff(initial_s=2.0, max_s=60.0)
    logged = [(now / 2, left_out) for now in range(600) if (left_out := warnings.take(now / 2)) is not None]
    assert [at for at, _ in logged] == [0.0, 2.0, 6.0, 14.0, 30.0, 62.0, 122.0, 182.0, 242.0]
    assert [left_out for _, left_out in logged] == [0, 3, 7, 15, 31, 63, 119, 119, 119]
    warnings.reset()
    assert warnings.take(300.0) == 0
    assert warnings.take(301.0) is None


def test_of_failures_that_repeat_each_class_is_reported_ever_less_often_with_one_traceback() -> None:
    reports = FailureReports()
    full, other, typo = OSError("disk full"), OSError("disk gone"), ValueError("no")
    due = {now: report for now in range(600) if (report := reports.take(full, now / 10)) is not None}
    assert [*due] == [0, 20, 60, 140, 300]
    assert [it.times_before for it in due.values()] == [0, 19, 39, 79, 159]
    assert [it.traceback for it in due.values()] == [full, None, None, None, None]
    assert {it.what for it in due.values()} == {"OSError: disk full"}
    news = reports.take(typo, 60.0)
    assert news is not None
    assert (news.times_before, news.traceback) == (0, typo)
    assert reports.take(other, 61.9) is None
    later = reports.take(other, 62.0)
    assert later is not None
    assert (later.what, later.traceback) == ("OSError: disk gone", other)


@pytest.mark.parametrize(("rest_s", "is_new"), [(FORGOTTEN_AFTER_S - 0.1, False), (FORGOTTEN_AFTER_S, True)])
def test_a_failure_that_comes_back_after_a_long_time_is_new(rest_s: float, is_new: bool) -> None:
    reports, error = FailureReports(), OSError("disk full")
    for now in (0.0, 1.0, 1.5):
        reports.take(error, now)
    again = reports.take(error, 1.5 + rest_s)
    assert again is not None
    assert (again.times_before == 0, again.traceback is not None) == (is_new, is_new)
