"""Steps of large pieces of work, in turn: of all that is under way, one or a few between two looks of the event loop.

Purpose: one piece of work that is cut into steps does not hold up the loop, but sixty of them would take a step each
before other tasks had the loop again.
Invariants: first come, first served; each waits at least until the loop has looked at everything else.
Owner: the server whose streams bring the work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import Final, TypeVar

# Slices of the event loop's time: work that takes longer lets everything else run in between.
#
# Invariants: a piece of work that asks after each of its small steps holds the loop for about `SLICE_S`.
# Owner: the task that does the work.

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


T = TypeVar("T")


class StepQueue:
    """Work of more than one step waits here between two of them."""

    def __init__(self, in_a_turn: int = 1) -> None:
        """`in_a_turn`: so many have their turns between two looks of the event loop."""
        self._in_a_turn = in_a_turn
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_giving = False
        self.parsing = asyncio.Lock()
        """A frame takes several times its size once it is parsed: they are parsed one by one."""

    async def take(self, steps: Generator[None, None, T]) -> T:
        """What comes of the work, with others between its steps."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next()

    async def next(self) -> None:
        """Returns when it is the caller's turn to take another step."""
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
        # Another round follows those who have had their turns, so that none begins beside this one.
        self._is_giving = given > 0
        if self._is_giving:
            loop.call_soon(self._give, loop)
