"""Writing to a stream from where a frame was made.

Purpose: where one message at a time goes each way, waking a task that writes costs more than the write. Here the write
begins in `send` itself, and a task is not needed: what is left of it is done when the transport says so.
Invariants: at most one write is under way; frames leave in the order in which they were sent. After the first write
that fails nothing is written any more: whoever reads the stream hears why. Nothing is said to callers.
Owner: one link, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from slotmesh.runtime.without_task import call_when_done

FrameT = TypeVar("FrameT")


class PromptWriter(Generic[FrameT]):
    """Writes frames, the first one at once."""

    def __init__(self, write: Callable[[FrameT], Coroutine[Any, Any, object]]) -> None:
        """`write` must not depend on the task in which it runs."""
        self.is_broken = False
        """A write has failed, or was given up."""
        self._write = write
        self._waiting: deque[FrameT] = deque()
        self._is_writing = False
        self._idle: asyncio.Future[None] | None = None
        self._context = copy_context()

    @property
    def backlog(self) -> int:
        """Frames that wait for the transport."""
        return len(self._waiting)

    def send(self, frame: FrameT) -> None:
        """Writes the frame, now if nothing else is being written."""
        if self.is_broken:
            return
        if self._is_writing:
            self._waiting.append(frame)
            return
        self._is_writing = True
        self._advance(self._write(frame))

    async def drained(self) -> None:
        """Returns when all frames were written, or none will be any more."""
        while self._is_writing and not self.is_broken:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def stop(self) -> None:
        """Nothing more is written."""
        self.is_broken = True
        self._waiting.clear()
        self._tell_idle()

    def _advance(self, writing: Coroutine[Any, Any, object], _done: object = None) -> None:
        """Goes on with the write, as far as it does not wait, and then with those that wait for it."""
        while True:
            try:
                waits_for = writing.send(None)
            except StopIteration:
                if not self._waiting:
                    self._is_writing = False
                    self._tell_idle()
                    return
                writing = self._write(self._waiting.popleft())
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - the reader of the stream hears why it has ended
                self._is_writing = False
                self.stop()
                return
            else:
                call_when_done(waits_for, partial(self._advance, writing), self._context)
                return

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)
