"""Slices of the event loop's time: work that takes longer lets everything else run in between.

Invariants: a piece of work that asks after each of its small steps holds the loop for about `SLICE_S`.
Owner: the task that does the work.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

SLICE_S: Final = 0.008
"""The longest that one piece of work holds the event loop, seconds, but for the length of one step of it."""


class LoopSlices:
    """The slices of one piece of work. The first begins now."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._used_s = 0.0

    @property
    def are_used(self) -> bool:
        """Whether the present slice is used up: `rest` is due."""
        return time.monotonic() - self._began >= SLICE_S

    @property
    def used_s(self) -> float:
        """Seconds of the loop's time that the work has used, all slices together."""
        return self._used_s + time.monotonic() - self._began

    async def rest(self) -> None:
        """Returns when the event loop has looked at everything else."""
        self.pause()
        await asyncio.sleep(0)
        self.go_on()

    def pause(self) -> None:
        """The work waits for something else, which is not counted."""
        self._used_s += time.monotonic() - self._began

    def go_on(self) -> None:
        """The next slice begins."""
        self._began = time.monotonic()
