"""Delays grow to their ceiling, and are spread over all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.runtime.backoff import Backoff, WarningBackoff


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
