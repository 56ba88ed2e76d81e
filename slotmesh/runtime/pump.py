"""Coalescing by back-pressure: one write in flight, and what gathers meanwhile is the next frame.

Purpose: the writing half of every stream in the mesh. It waits for nothing but the transport: the code that builds its
frames may hold a small one back (`slotmesh.runtime.pacer`).
Invariants: at most one write is under way; frames leave in the order in which they are built; a frame is built at the
last moment, when the transport can take it.
Owner: the task that awaits `run()`; `wake` and `close` are called on the same event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

FrameT = TypeVar("FrameT")


class StreamPump(Generic[FrameT]):
    """Writes what `next_frame` gives, for as long as it gives something, then sleeps until it is woken."""

    def __init__(self, write: Callable[[FrameT], Awaitable[object]], next_frame: Callable[[], FrameT | None]) -> None:
        """`next_frame` builds the next frame of all that is pending, or returns None where nothing is."""
        self._write = write
        self._next_frame = next_frame
        self._sleeper: asyncio.Future[None] | None = None
        self._woken = False
        self._closed = False
        self._stopped = False

    def wake(self) -> None:
        """Something is pending. Cheap, and idempotent until the pump has looked."""
        self._woken = True
        sleeper = self._sleeper
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    def close(self) -> None:
        """No more will come: `run` returns once all that is pending was written."""
        self._closed = True
        self.wake()

    def stop(self) -> None:
        """Nothing more is wanted: `run` returns as soon as the write under way has ended."""
        self._stopped = True
        self.wake()

    async def run(self) -> None:
        """Pumps until closed. Errors of `write` and `next_frame` end it and are raised from here."""
        write, next_frame = self._write, self._next_frame
        loop = asyncio.get_running_loop()
        while True:
            self._woken = False
            while not self._stopped and (frame := next_frame()) is not None:
                writing = write(frame)
                del frame  # a peer that does not read would have it kept in memory for as long as that
                await writing
            if self._stopped:
                return
            if self._woken:
                continue
            if self._closed:
                return
            self._sleeper = loop.create_future()
            try:
                await self._sleeper
            finally:
                self._sleeper = None
