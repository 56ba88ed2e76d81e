"""Time as a dependency: shells read a clock and hand `now` to the cores, tests move a fake one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock. Its zero means nothing: only differences do."""

    def now(self) -> float:
        """Seconds."""
        ...

    def time_of_day(self) -> float:
        """Unix seconds: for what peers state as a time of day, and for nothing else."""
        ...


class MonotonicClock:
    """The system's monotonic clock, which no change of the wall clock moves."""

    __slots__ = ("now", "time_of_day")

    def __init__(self) -> None:
        # The system's own functions: several readings a frame.
        self.now = time.monotonic
        self.time_of_day = time.time
