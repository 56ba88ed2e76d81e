"""One timer for the earliest of many deadlines.

Invariant: it fires no later than the earliest deadline that was set since it fired last.
Owner: the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MIN_TIMER_S = 0.001
"""The event loop's timers tick in milliseconds."""


class DeadlineTimer:
    """Fires once after it was set."""

    __slots__ = ("_at", "_fired", "_handle", "_loop", "_now")

    def __init__(self, now: Callable[[], float], fired: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = now
        self._fired = fired
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, deadline: float) -> None:
        """A timer that runs already and is early enough stays: the engine sets it again when it has fired."""
        if self._handle is not None:
            if self._at <= deadline:
                return
            self._handle.cancel()
        self._at = deadline
        self._handle = self._loop.call_later(max(deadline - self._now(), MIN_TIMER_S), self._fire)

    def stop(self) -> None:
        """It does not fire."""
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._handle = None
        self._fired()
