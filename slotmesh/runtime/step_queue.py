"""Steps of large pieces of work, in turn: of all that is under way, one step between two looks of the event loop.

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

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
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
        if len(self._waiting) == 1:
            loop.call_soon(self._give, loop)
        await turn

    def _give(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0].done():  # it had its turn, or the waiting task was cancelled
            self._waiting.popleft()
        if self._waiting:
            # It stays first in the line, so that no second round of turns starts beside this one.
            self._waiting[0].set_result(None)
            loop.call_soon(self._give, loop)
