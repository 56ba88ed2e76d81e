"""Writing to a stream from where a frame was made.

Purpose: where one message at a time goes each way, waking a task that writes costs more than the write. Here the write
begins in `send` itself, and a task is not needed: what is left of it is done when the transport says so.
Invariants: at most one write is under way; frames leave in the order in which they were sent. After the first write
that fails nothing is written any more: whoever reads the stream hears why. Nothing is said to callers. `backlog` is the
sum of the sizes, as `send` was told, of what waits behind the write that is under way.
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
    """Writes frames, the first one at once."""

    def __init__(self, write: Callable[[FrameT], Coroutine[Any, Any, object]]) -> None:
        """`write` must not depend on the task in which it runs."""
        self.is_broken = False
        """A write has failed, or was given up."""
        self._write = write
        self.backlog = 0
        """Bytes that wait for the transport."""
        self._waiting: deque[tuple[FrameT, int]] = deque()
        """Frames, and their sizes."""
        self._is_writing = False
        self._written: asyncio.Future[None] | None = None
        """Done when the next write has ended; None while nobody waits for that."""
        self._context = copy_context()

    def send(self, frame: FrameT, nbytes: int = 0) -> None:
        """Writes the frame, now if nothing else is being written. `nbytes`: what it counts in the backlog."""
        if self.is_broken:
            return
        if self._is_writing:
            self._waiting.append((frame, nbytes))
            self.backlog += nbytes
            return
        self._is_writing = True
        self._advance(self._write(frame))

    async def drained(self) -> None:
        """Returns when all frames were written, or none will be any more."""
        while self._is_writing and not self.is_broken:
            await self._next_written()

    async def room(self, backlog: int) -> None:
        """Returns when no more bytes wait than that, or nothing will be written any more."""
        while self.backlog > backlog and not self.is_broken:
            await self._next_written()

    def stop(self) -> None:
        """Nothing more is written."""
        self.is_broken = True
        self._waiting.clear()
        self.backlog = 0
        self._tell_written()

    def _advance(self, writing: Coroutine[Any, Any, object], _done: object = None) -> None:
        """Goes on with the write, as far as it does not wait, and then with those that wait for it."""
        while True:
            try:
                waits_for = writing.send(None)
            except StopIteration:
                if not self._waiting:
                    self._is_writing = False
                    self._tell_written()
                    return
                frame, nbytes = self._waiting.popleft()
                self.backlog -= nbytes
                if self._written is not None:
                    self._tell_written()
                writing = self._write(frame)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the reader of the stream hears why it has ended
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

    def _tell_written(self) -> None:
        written, self._written = self._written, None
        if written is not None and not written.done():
            written.set_result(None)
