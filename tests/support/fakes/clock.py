"""Time that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """A `slotmesh.runtime.clock.Clock` for tests."""

    def __init__(self, now: float = 1_000.0) -> None:
        """`now`: seconds. Not 0, because real clocks do not start there either."""
        self._now = now

    def now(self) -> float:
        return self._now

    def time_of_day(self) -> float:
        return self._now + 1_700_000_000.0

    def advance(self, seconds: float) -> float:
        """Moves on, never back; returns the new time."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._now += seconds
        return self._now
