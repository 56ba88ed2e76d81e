"""Streams that are open, looked at once a second: whether they may go on.

Purpose: one timer for all streams of a server, in place of one for each. A stream ends whose caller is no longer known,
whose first frame does not come, or that has nothing to do and says nothing for too long.
Invariants: a stream that may not go on is over a few seconds later. Its task is cancelled, as if its peer had left, and
it then ends with the failure. A frame costs its reader no clock.
Owner: the server, on its event loop. The timer runs only while streams are open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from time import monotonic
from typing import Any, Final

from slotmesh.errors import Executed, Failure, Reason

LOOK_S: Final = 1.0
"""How often streams are looked at, seconds."""


class StreamCut(StrEnum):
    """Why a server ends a stream. The values are those of the metric."""

    CREDENTIAL = "credential"
    """Who has opened it is no longer known."""
    UNOPENED = "unopened"
    """Its first frame did not come."""
    SILENT = "silent"
    """It had nothing to do, and said nothing for too long."""


class OpenStream:
    """One stream, of the task that serves it."""

    __slots__ = ("failure", "has_spoken", "is_busy", "lapsed", "reads", "since", "task", "was_opened")

    def __init__(
        self, lapsed: Callable[[], Failure | None], task: asyncio.Task[Any], since: float, *, reads: bool
    ) -> None:
        self.lapsed = lapsed
        self.task = task
        self.failure: Failure | None = None
        """Why it ends; None while it may go on."""
        self.reads = reads
        """Its client may send frames at any time."""
        self.was_opened = False
        """Its first frame has come."""
        self.has_spoken = False
        """A frame has come since it was looked at."""
        self.since = since
        """Since when it may have been silent, monotonic seconds."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether it has something to do, so that its client need say nothing."""


STREAM: Final[ContextVar[OpenStream | None]] = ContextVar("slotmesh_stream", default=None)
"""The stream that the running task serves; None where it serves none that is looked at."""


class OpenStreams:
    """All of them."""

    def __init__(
        self,
        *,
        opening_timeout_s: float,
        idle_timeout_s: float,
        look_s: float = LOOK_S,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`opening_timeout_s`: for the first frame. `idle_timeout_s`: for which a stream may be silent; 0: for ever."""
        self._opening_timeout_s = opening_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self.look_s = look_s
        """How often they are looked at."""
        self._now = now
        self.open: set[OpenStream] = set()
        self.cut: Counter[StreamCut] = Counter()
        """Those that were ended, by why."""
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def held(self, lapsed: Callable[[], Failure | None], *, reads: bool) -> Iterator[OpenStream]:
        """The running task serves a stream, as long as the block lasts.

        `lapsed`: why its caller may not go on. `reads`: its client sends frames. Where it may not go on, the task is
        cancelled and the stream has the `failure`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("streams are served by tasks")
        stream = OpenStream(lapsed, task, self._now(), reads=reads)
        self.open.add(stream)
        STREAM.set(stream)  # for good: the task serves nothing else
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.look_s, self._look)
        try:
            yield stream
        finally:
            self.open.discard(stream)
            if not self.open and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.look_s, self._look)
        now = self._now()
        for stream in self.open:
            if stream.failure is None and (found := self._why_not(stream, now)) is not None:
                why, stream.failure = found
                self.cut[why] += 1
                stream.task.cancel()

    def _why_not(self, stream: OpenStream, now: float) -> tuple[StreamCut, Failure] | None:
        """Why the stream may not go on; None where it may."""
        if (failure := stream.lapsed()) is not None:
            return StreamCut.CREDENTIAL, failure
        if not stream.reads:
            return None
        if stream.has_spoken:
            stream.has_spoken, stream.was_opened, stream.since = False, True, now
            return None
        silent_s = now - stream.since
        if not stream.was_opened:
            return (StreamCut.UNOPENED, _unopened(silent_s)) if silent_s > self._opening_timeout_s else None
        if not self._idle_timeout_s or silent_s <= self._idle_timeout_s:
            return None
        if stream.is_busy():
            stream.since = now
            return None
        return StreamCut.SILENT, _silent(silent_s)


def _unopened(silent_s: float) -> Failure:
    return Failure(
        reason=Reason.BAD_REQUEST,
        message=f"open: the first frame of the stream did not come within {silent_s:.0f} s",
        metadata={"field": "open"},
    )


def _silent(silent_s: float) -> Failure:
    return Failure(
        reason=Reason.STREAM_SILENT,
        message=(
            f"the stream had no call and said nothing for {silent_s:.0f} s: open another when there are "
            "calls, or send heartbeats"
        ),
        executed=Executed.NO,
    )
