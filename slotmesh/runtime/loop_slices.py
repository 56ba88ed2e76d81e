"""Slices large pieces of work, so that they do not block the event loop, and takes turns between several of them.

Purpose: a sliced piece of work does not block the loop, but sixty of them would each take a slice before other tasks
run again.
Invariants: first come, first served; each waits until the loop has run all other ready tasks. A piece of work that
checks after each of its small steps holds the loop for about `SLICE_S`.
Owner: the server whose streams have the work, and the task that executes it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import Final, TypeVar

SLICE_S: Final = 0.008
"""The longest time that one piece of work holds the event loop, in seconds, apart from the length of its steps."""


class LoopSlices:
    """The slices of one piece of work. The first one begins at construction."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._used_s = 0.0

    @property
    def are_used(self) -> bool:
        """Whether the present slice is used up, and `rest` is due."""
        return time.monotonic() - self._began >= SLICE_S

    @property
    def used_s(self) -> float:
        """Seconds of the loop's time that all slices have used."""
        return self._used_s + time.monotonic() - self._began

    async def rest(self) -> None:
        """Returns when the event loop has run all other ready tasks."""
        self.pause()
        await asyncio.sleep(0)
        self.go_on()

    def pause(self) -> None:
        """The work waits for something else, which does not count."""
        self._used_s += time.monotonic() - self._began

    def go_on(self) -> None:
        """Begins the next slice."""
        self._began = time.monotonic()


T = TypeVar("T")


class StepQueue:
    """Pieces of work with more than one step take turns here."""

    def __init__(self, in_a_turn: int = 1) -> None:
        """`in_a_turn`: the number of steps in one iteration of the event loop."""
        self._in_a_turn = in_a_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_giving = False
        self.parsing = asyncio.Lock()
        """A parsed frame takes several times its size: frames are parsed one at a time."""

    async def take(self, steps: Generator[None, None, T]) -> T:
        """The result of the work, with the steps of others between its own."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next()

    async def next(self) -> None:
        """Returns when it is the caller's turn for another step."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._is_giving:
            self._is_giving = True
            loop.call_soon(self._give, loop)
        await turn

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        given = 0
        while self._waiting and given < self._in_a_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # the waiting task was cancelled
                turn.set_result(None)
                given += 1
        # The next round is scheduled after these have run, so that no other round begins beside it.
        self._is_giving = given > 0
        if self._is_giving:
            loop.call_soon(self._give, loop)
