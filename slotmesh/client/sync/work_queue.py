"""Work on its way from any thread to the client's thread.

Purpose: gathers what threads hand over; the loop is woken once for all that gathered.
Invariants: work is begun in the order in which it was put here, whichever threads did. The future of all that was put
gets done, also of what comes too late. Nothing is locked: appending to a deque and popping from it are atomic, work is
put before `_woken` is read, and `_woken` is false before work is taken. Where two threads both wake the loop, it finds
nothing to do the second time.
Owner: the `ClientThread`; any thread puts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from slotmesh.client.sync.call_future import CallFuture

TURN: Final = 4_096
"""What is taken over at a time before the loop looks at its sockets again."""

Start = Callable[[CallFuture[Any], Any], object]
"""Begins what a future stands for, in the client's thread. What it raises is the outcome."""

TooLate = Callable[[CallFuture[Any], Start, Any], object]
"""Fails a future whose work will not begin any more. In any thread."""


class ThreadWorkQueue:
    """Taken over from `open` to `end`. What is put before waits, what is put after is too late."""

    def __init__(self, too_late: TooLate) -> None:
        self._too_late = too_late
        self._work: deque[tuple[CallFuture[Any], Start, Any]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = False
        """Whether `_take_over` is due, and has not begun."""
        self._ended = False

    # -- in any thread ---------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether work is not taken over any more."""
        return self._ended

    def put(self, future: CallFuture[Any], start: Start, argument: Any) -> None:
        """Has `start(future, argument)` done by the client's thread."""
        self._work.append((future, start, argument))
        if not self._woken:
            self._wake()

    def end(self) -> None:
        """The loop ends: work is not taken over any more."""
        self._ended = True
        self._end_rest()

    def forget(self) -> None:
        """The loop is in another process: there the work gets done. Touches no future, whose lock may be held there."""
        self._ended = True
        self._work.clear()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not self._ended:
            try:
                self._woken = True
                loop.call_soon_threadsafe(self._take_over)
            except RuntimeError:
                pass  # it is closed, and the end is near
            except BaseException:  # Ctrl-C in between: nothing would wake it again
                loop.call_soon_threadsafe(self._take_over)
                raise
        if self._ended:
            self._end_rest()

    def _end_rest(self) -> None:
        """Fails all work that came too late; any thread that finds that out calls it."""
        self._woken = False
        while self._work:
            try:
                late = self._work.popleft()
            except IndexError:  # another thread was quicker
                return
            self._too_late(*late)

    # -- in the client's thread ------------------------------------------------------------------------------------

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop runs, and takes work over."""
        self._loop = loop

    def take_all(self) -> None:
        """Takes over all work that was put until now."""
        while self._work:
            self._take_over()

    def _take_over(self) -> None:
        self._woken = False
        work = self._work
        for _ in range(min(len(work), TURN)):
            future, start, argument = work.popleft()
            try:
                start(future, argument)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
                future.set_exception(error)
        if work and not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon(self._take_over)
