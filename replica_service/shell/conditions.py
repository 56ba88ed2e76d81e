"""Conditions that tasks wait for, such as "no call runs", and one timer for the earliest of many deadlines.

Conditions are checked after each event that may change them, and only while a task waits for one.
Owner: the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


class Conditions:
    """Conditions that tasks wait for."""

    __slots__ = ("_loop", "waiters")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        """Empty while no task waits; the engine checks that before it calls `look_around`."""

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Returns when the condition holds."""
        if is_true():
            return
        waiter = (is_true, self._loop.create_future())
        self.waiters.append(waiter)
        try:
            await waiter[1]
        finally:
            self.waiters.remove(waiter)

    async def lasts(self, is_true: Callable[[], bool], duration_s: float) -> None:
        """Returns when the condition has held for this duration."""
        while True:
            await self.until(is_true)
            try:
                async with asyncio.timeout(duration_s):
                    await self.until(lambda: not is_true())
            except TimeoutError:
                return

    def look_around(self) -> None:
        """Wakes the tasks whose conditions hold now."""
        for is_true, future in self.waiters:
            if not future.done() and is_true():
                future.set_result(None)


MIN_TIMER_S: Final = 0.001
"""The event loop's timers tick in milliseconds."""
PAUSE_S: Final = 1.0
"""How long a timer waits after a step that raised, seconds."""


class DeadlineTimer:
    """Fires once, no later than the earliest deadline that was set since it fired last.

    After what it calls has raised, which is a defect, it does not fire for `PAUSE_S`: the same step may still be due.
    """

    __slots__ = ("_at", "_fired", "_handle", "_loop", "_not_before", "_now")

    def __init__(self, now: Callable[[], float], fired: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = now
        self._fired = fired
        self._handle: asyncio.TimerHandle | None = None
        self._at = self._not_before = 0.0

    def set(self, deadline: float) -> None:
        """Sets the timer. An earlier running timer is kept; the engine sets it again when it has fired."""
        deadline = max(deadline, self._not_before)
        if self._handle is not None:
            if self._at <= deadline:
                return
            self._handle.cancel()
        self._at = deadline
        self._handle = self._loop.call_later(max(deadline - self._now(), MIN_TIMER_S), self._fire)

    def stop(self) -> None:
        """Prevents the timer from firing."""
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        self._handle = None
        try:
            self._fired()
        except Exception:
            self._not_before = self._now() + PAUSE_S
            if self._handle is not None:
                self._handle.cancel()
                self._handle = None
                self.set(self._at)
            raise
