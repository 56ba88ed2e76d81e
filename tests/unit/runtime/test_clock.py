"""The real clock and the fake one keep the same promises."""

from __future__ import annotations

import pytest

from slotmesh.runtime.clock import Clock, MonotonicClock
from tests.support.fakes.clock import FakeClock


@pytest.mark.parametrize("clock", [MonotonicClock(), FakeClock()], ids=["real", "fake"])
def test_time_never_goes_back(clock: Clock) -> None:
    seen = [clock.now() for _ in range(1_000)]
    assert seen == sorted(seen)


def test_the_fake_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(now=5.0)
    assert (clock.now(), clock.now()) == (5.0, 5.0)
    assert clock.advance(2.5) == clock.now() == 7.5
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(-1)
