"""Steps of large pieces of work, in turn: of all that is under way, one or a few between two looks of the event loop.

Purpose: one piece of work that is cut into steps does not hold up the loop, but sixty of them would take a step each
before other tasks had the loop again.
Invariants: first come, first served; each waits at least until the loop has looked at everything else.
Owner: the server whose streams bring the work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

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
