"""How late the event loop is: the time that a timer waits beyond what it asked for.

Whatever keeps the loop busy, keeps frames waiting: a handler that blocks, a large table, a garbage collection, or other
processes that have the processors.
"""

from __future__ import annotations

import asyncio
from typing import Final

from slotmesh.histogram import Histogram

EVERY_S: Final = 0.25


class LoopLag:
    """Looks at the loop that runs, until it is stopped."""

    def __init__(self) -> None:
        self.times = Histogram()
        """Seconds."""
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + EVERY_S
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """May be called again."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        self.times.observe(max(0.0, now - self._due), 1)
        self._due = now + EVERY_S
        self._timer = self._loop.call_at(self._due, self._look)
