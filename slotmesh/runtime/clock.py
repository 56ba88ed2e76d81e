"""Time as a dependency: shells read a clock and hand `now` to the cores, tests move a fake one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells monotonic time. Its zero means nothing: only differences do."""

    def now(self) -> float:
        """Seconds."""
        ...


class MonotonicClock:
    """The system's monotonic clock, which no change of the wall clock moves."""

    __slots__ = ()

    def now(self) -> float:
        return time.monotonic()
