"""Writes frames to a stream from where they are made.

Purpose: if one message at a time goes each way, waking a writing task costs more than the write. Here the write starts
in `send`, without a task, and continues when the transport reports that it is ready.
Invariants: at most one write is in progress; frames leave in the order in which they were sent. After the first failed
write nothing is written; the reader of the stream gets the reason, `send` does not report it. `backlog` is the sum of
the sizes, as passed to `send`, of the frames behind the current write.
Owner: one link, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from slotmesh.transport.pump import call_when_done

FrameT = TypeVar("FrameT")


class PromptWriter(Generic[FrameT]):
    """Writes frames, the first one immediately."""

    def __init__(self, write: Callable[[FrameT], Coroutine[Any, Any, object]]) -> None:
        """`write` must not depend on the task in which it runs."""
        self.is_broken = False
        """A write has failed, or `stop` was called."""
        self._write = write
        self.backlog = 0
        """Bytes that wait for the transport."""
        self._waiting: deque[tuple[FrameT, int]] = deque()
        """Frames, and their sizes."""
        self._is_writing = False
        self._written: asyncio.Future[None] | None = None
        """Done when the next write has ended; None if there is no waiter."""
        self._context = copy_context()

    def send(self, frame: FrameT, nbytes: int = 0) -> None:
        """Writes the frame, now if no write is in progress. `nbytes`: its size in the backlog."""
        if self.is_broken:
            return
        if self._is_writing:
            self._waiting.append((frame, nbytes))
            self.backlog += nbytes
            return
        self._is_writing = True
        self._advance(self._write(frame))

    async def drained(self) -> None:
        """Returns when all frames were written, or writing has ended."""
        while self._is_writing and not self.is_broken:
            await self._next_written()

    async def room(self, backlog: int) -> None:
        """Returns when at most `backlog` bytes wait, or writing has ended."""
        while self.backlog > backlog and not self.is_broken:
            await self._next_written()

    def stop(self) -> None:
        """Writes nothing more."""
        self.is_broken = True
        self._waiting.clear()
        self.backlog = 0
        self._wake_waiters()

    def _advance(self, writing: Coroutine[Any, Any, object], _done: object = None) -> None:
        """Continues the write until it waits or ends, then writes the frames behind it."""
        while True:
            try:
                waits_for = writing.send(None)
            except StopIteration:
                if not self._waiting:
                    self._is_writing = False
                    self._wake_waiters()
                    return
                frame, nbytes = self._waiting.popleft()
                self.backlog -= nbytes
                if self._written is not None:
                    self._wake_waiters()
                writing = self._write(frame)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the reader of the stream gets the reason
                self._is_writing = False
                self.stop()
                return
            else:
                call_when_done(waits_for, partial(self._advance, writing), self._context)
                return

    async def _next_written(self) -> None:
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._written)

    def _wake_waiters(self) -> None:
        written, self._written = self._written, None
        if written is not None and not written.done():
            written.set_result(None)
