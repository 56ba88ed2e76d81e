"""Holds small frames back for a moment: the rules of `slotmesh.wire.pacing` and `gathering`, with a clock and a timer.

Invariants: a writer that holds a frame back is woken when its time has come; there is one timer a stream.
Owner: the writing half of a stream, on its event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from slotmesh.wire.gathering import Gathering
from slotmesh.wire.pacing import QUICK, STEADY, Pacing

_TICK_S: Final = 0.001
"""The event loop's timers tick in milliseconds."""


class Pacer:
    """Asked before each frame of calls, or of their outcomes, and informed when one has been built."""

    __slots__ = ("_gathering", "_hurries", "_now", "_pace", "_pacing", "_timer", "_wake")

    def __init__(self, wake: Callable[[], None], now: Callable[[], float] = time.monotonic) -> None:
        """`wake` is called when a frame that was held back should be looked at again. `now`: monotonic seconds."""
        self._wake = wake
        self._now = now
        self._pacing = Pacing()
        self._gathering = Gathering()
        self._pace = STEADY
        self._timer: asyncio.TimerHandle | None = None
        self._hurries = False

    def holds(self, calls: int, unanswered: int, *, are_quick: bool) -> bool:
        """Whether a frame of so many calls has to wait for others; then `wake` is called when it should be asked again.

        `unanswered`: other calls that are about to be answered. `are_quick`: they are known to take little time.
        """
        self._pace = QUICK if are_quick else STEADY
        if self._hurries:
            return False
        wait_s = self._pacing.wait_s(calls, unanswered, self._now(), self._pace)
        if wait_s and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, _TICK_S), self._look_again)
        return wait_s > 0.0

    def gathers(self, calls: int) -> bool:
        """Whether a frame of so many calls, which `holds` lets leave, waits for calls that are about to join it.

        Then `wake` is called in the next turn of the event loop.
        """
        gathering = self._gathering
        if self._hurries or not gathering.left_to_meet or not gathering.waits(calls, self._now()):
            return False
        asyncio.get_running_loop().call_soon(self._wake)
        return True

    def left(self) -> None:
        """The frame that `holds` was asked of last has been built, and leaves."""
        self._pacing.left(self._now(), self._pace)

    def gathered(self, calls: int, *, is_alone: bool) -> None:
        """The frame that `gathers` was asked of last has been built, of so many calls, and leaves.

        `is_alone`: nothing else was unanswered.
        """
        if self._gathering.left_to_meet or calls > 1 or not is_alone:
            self._gathering.left(calls, is_alone=is_alone)

    def hurry(self) -> None:
        """Nothing is held back any more: it is the last chance."""
        self._hurries = True
        if self._timer is not None:
            self.stop()
            self._wake()

    def stop(self) -> None:
        """Stops the timer: no writer is woken any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = None
        self._wake()
