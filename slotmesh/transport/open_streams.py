"""The open streams of a server, checked once a second: whether each may continue.

Purpose: one timer for all streams of a server, in place of one for each. A stream is ended if its caller is no longer
authenticated, if its first frame does not arrive, or if it has no work and is silent for too long.
Invariants: a stream that may not continue ends within a few seconds. Its task is cancelled, as if its peer had
disconnected, and then reports the failure; a task that ignores that is cancelled again. Whether a stream may continue
can be unknown for a limited time. A frame costs its reader no clock, and checking many streams is done in steps,
between which the event loop runs other work.
Owner: the server, on its event loop. The timer runs only while streams are open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.logs import get_logger

LOOK_S: Final = 1.0
"""Seconds between two checks."""
STEP_STREAMS: Final = 64
"""Streams that are checked in one step of the loop, at most: some checks verify a signature."""
CANCEL_AGAIN_S: Final = 2.0
"""Seconds until a task that was cancelled, and is still running, is cancelled again."""
UNKNOWN_S: Final = 3.0
"""Seconds for which it may be unknown whether a stream may continue."""

_log = get_logger(__name__)


class StreamCut(StrEnum):
    """Why a server ends a stream. The values are those of the metric."""

    CREDENTIAL = "credential"
    """Its caller's credential is no longer valid."""
    UNOPENED = "unopened"
    """Its first frame did not arrive."""
    SILENT = "silent"
    """It had no work, and was silent for too long."""
    UNKNOWN = "unknown"
    """Because of a defect, it could not be determined whether it may continue."""


class OpenStream:
    """One stream, and the task that serves it."""

    __slots__ = (
        "cancelled_at",
        "cancels",
        "failure",
        "has_spoken",
        "is_busy",
        "lapsed",
        "reads",
        "since",
        "task",
        "unknown_since",
        "was_opened",
    )

    def __init__(
        self, lapsed: Callable[[], Failure | None], task: asyncio.Task[Any], since: float, *, reads: bool
    ) -> None:
        self.lapsed = lapsed
        self.task = task
        self.failure: Failure | None = None
        """Why it ends; None while it may continue."""
        self.cancels = 0
        """How often its task was cancelled for that."""
        self.cancelled_at = 0.0
        """When it was cancelled last, monotonic seconds."""
        self.unknown_since: float | None = None
        """Since when it cannot be determined whether it may continue; None if it can."""
        self.reads = reads
        """Its client may send frames at any time."""
        self.was_opened = False
        """Its first frame has arrived."""
        self.has_spoken = False
        """A frame has arrived since the last check."""
        self.since = since
        """Since when it may have been silent, monotonic seconds."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether it has work, so that its client may be silent."""


_BY_CONTEXT: Final[dict[int, OpenStream]] = {}
"""Open streams, by the identity of gRPC's context of their rpc."""


def stream_of(context: object) -> OpenStream | None:
    """The stream with this context of gRPC; None if it is not checked."""
    return _BY_CONTEXT.get(id(context))


def _time_of_loop() -> float:
    return asyncio.get_running_loop().time()


class OpenStreams:
    """All open streams of a server."""

    def __init__(
        self,
        *,
        opening_timeout_s: float,
        idle_timeout_s: float,
        look_s: float = LOOK_S,
        now: Callable[[], float] = _time_of_loop,
    ) -> None:
        """`opening_timeout_s`: for the first frame. `idle_timeout_s`: how long a stream may be silent; 0: forever."""
        self._opening_timeout_s = opening_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self.look_s = look_s
        """Seconds between two checks."""
        self._now = now
        self.open: set[OpenStream] = set()
        self.cut: Counter[StreamCut] = Counter()
        """Streams that were ended, by reason."""
        self._next: asyncio.Handle | None = None
        """The next step of the running check, or the first step of the next one."""
        self._defects: set[str] = set()
        """Types of errors that were logged."""

    @contextmanager
    def held(
        self, lapsed: Callable[[], Failure | None], *, reads: bool, context: object = None
    ) -> Iterator[OpenStream]:
        """The running task serves a stream for the duration of the block. `context`: gRPC's, of its rpc.

        `lapsed`: returns why its caller may not continue. `reads`: its client sends frames. If the stream may not
        continue, the task is cancelled and the stream has the `failure`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("streams are served by tasks")
        stream = OpenStream(lapsed, task, self._now(), reads=reads)
        self.open.add(stream)
        _BY_CONTEXT[id(context)] = stream
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self.look_s, self._look)
        try:
            yield stream
        finally:
            _BY_CONTEXT.pop(id(context), None)
            self.open.discard(stream)
            if not self.open and self._next is not None:
                self._next.cancel()
                self._next = None

    def _look(self) -> None:
        self._go_through(tuple(self.open), 0)

    def _go_through(self, streams: Sequence[OpenStream], start: int) -> None:
        """Checks the streams from `start` on: some now, the others in further steps."""
        loop, now = asyncio.get_running_loop(), self._now()
        end = min(start + STEP_STREAMS, len(streams))
        for stream in streams[start:end]:
            if stream in self.open:
                self._look_at(stream, now)
        if end < len(streams):
            self._next = loop.call_soon(self._go_through, streams, end)
        else:
            self._next = loop.call_later(self.look_s, self._look)

    def _look_at(self, stream: OpenStream, now: float) -> None:
        if stream.failure is None:
            if (found := self._found(stream, now)) is None:
                return
            why, stream.failure = found
            self.cut[why] += 1
        elif now - stream.cancelled_at < CANCEL_AGAIN_S:
            return
        stream.cancels += 1
        stream.cancelled_at = now
        stream.task.cancel()

    def _found(self, stream: OpenStream, now: float) -> tuple[StreamCut, Failure] | None:
        """Why the stream may not continue; None if it may, or if that is unknown for a short time only."""
        try:
            found = self._why_not(stream, now)
        except Exception as error:  # noqa: BLE001 - a defect must not keep this stream open forever, nor stop the check
            if (kind := type(error).__name__) not in self._defects:
                self._defects.add(kind)
                _log.exception("it could not be found out whether a stream may go on")
            if stream.unknown_since is None:
                stream.unknown_since = now
            unknown_s = now - stream.unknown_since
            return (StreamCut.UNKNOWN, _unknown(unknown_s)) if unknown_s >= UNKNOWN_S else None
        stream.unknown_since = None
        return found

    def _why_not(self, stream: OpenStream, now: float) -> tuple[StreamCut, Failure] | None:
        """Why the stream may not continue; None if it may."""
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


def _unknown(unknown_s: float) -> Failure:
    return Failure(
        reason=Reason.INTERNAL,
        message=(
            f"it could not be found out for {unknown_s:.0f} s whether the stream may go on; see the log of the server"
        ),
        executed=Executed.UNKNOWN,
    )


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
            f"the stream had no call and was silent for {silent_s:.0f} s: open another when there are "
            "calls, or send heartbeats"
        ),
        executed=Executed.NO,
    )
