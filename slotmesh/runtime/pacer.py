"""Holds small frames back for a moment: the rule of `slotmesh.pacing`, with a clock and a timer.

Invariants: whoever holds a frame back is woken when its time has come; one timer a stream.
Owner: the writing half of a stream, on its event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from slotmesh.pacing import QUICK, STEADY, Pacing

_TICK_S: Final = 0.001
"""The event loop's timers tick in milliseconds."""


class Pacer:
    """Asked before each frame of calls, or of their outcomes, that could leave."""

    __slots__ = ("_hurries", "_pacing", "_timer", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when a frame that was held back should be looked at again."""
        self._wake = wake
        self._pacing = Pacing()
        self._timer: asyncio.TimerHandle | None = None
        self._hurries = False

    def holds(self, calls: int, unanswered: int, *, are_quick: bool) -> bool:
        """Whether a frame of so many calls waits for others to join; where it does not, it has left.

        `unanswered`: calls under way beside these. `are_quick`: they are known to take less than `pacing.QUICK_S`.
        """
        pace = QUICK if are_quick else STEADY
        now = time.monotonic()
        wait_s = 0.0 if self._hurries else self._pacing.wait_s(calls, unanswered, now, pace)
        if not wait_s:
            self._pacing.left(now, pace)
            return False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, _TICK_S), self._look_again)
        return True

    def hurry(self) -> None:
        """Nothing is held back any more: it is the last chance."""
        self._hurries = True
        if self._timer is not None:
            self.stop()
            self._wake()

    def stop(self) -> None:
        """Nothing more is wanted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = None
        self._wake()
