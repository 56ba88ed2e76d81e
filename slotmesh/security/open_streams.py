"""Streams that are open, looked at once a second: whether those who opened them are still known.

Purpose: one timer for all streams of a server, in place of one for each.
Invariants: who is no longer known has no stream that is open a few seconds later. The task of such a stream is
cancelled, as if its peer had left, and the stream then ends with the failure.
Owner: the authorizer, on the server's event loop. The timer runs only while streams are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from slotmesh.errors import Failure

LOOK_S: Final = 1.0
"""How often streams are looked at, seconds."""


class OpenStream:
    """One stream, of the task that serves it."""

    __slots__ = ("failure", "lapsed", "task")

    def __init__(self, lapsed: Callable[[], Failure | None], task: asyncio.Task[Any]) -> None:
        self.lapsed = lapsed
        self.task = task
        self.failure: Failure | None = None
        """Why it ends; None while it may go on."""


class OpenStreams:
    """All of them."""

    def __init__(self, look_s: float = LOOK_S) -> None:
        self._look_s = look_s
        self.open: set[OpenStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def held(self, lapsed: Callable[[], Failure | None]) -> Iterator[OpenStream]:
        """The running task serves a stream, as long as the block lasts. `lapsed`: why it may not go on.

        Where there is such a failure, the task is cancelled and the stream has the `failure`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("streams are served by tasks")
        stream = OpenStream(lapsed, task)
        self.open.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)
        try:
            yield stream
        finally:
            self.open.discard(stream)
            if not self.open and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._look_s, self._look)
        for stream in self.open:
            if stream.failure is None and (failure := stream.lapsed()) is not None:
                stream.failure = failure
                stream.task.cancel()
