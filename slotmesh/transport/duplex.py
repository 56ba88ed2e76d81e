"""Both halves of a stream, as one piece of work.

Purpose: a pump writes beside a reader, and neither outlives the other.
Invariants: ends when the reader ends; a transport that fails is the reader's to report, a defect of the writer is
raised.
Owner: the task that awaits `run_stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import grpc

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.status import to_exception
from slotmesh.streams.frame_bounds import Shape, too_much
from slotmesh.transport.open_streams import stream_of
from slotmesh.transport.pump import StreamPump

# Frames that have come and are too large to be counted and parsed at once.
#
# Purpose: gRPC parses a frame where it takes it from the transport, and can wait for nothing there; so a large one is
# handed to its reader as it came (`slotmesh.transport.duplex.read_request`). Large requests of unary rpcs are dealt
# with
# likewise (`slotmesh.server.unary_requests`).
# Owner: the reader of the stream, or of the request.


class LargeFrame:
    """The bytes of a frame, neither counted nor parsed yet."""

    __slots__ = ("_executed", "_parse", "_raw", "_shape", "_turns")

    def __init__(
        self,
        raw: bytes,
        shape: Shape,
        parse: Callable[[bytes], Any],
        turns: StepQueue,
        executed: Executed = Executed.UNKNOWN,
    ) -> None:
        """`executed`: what is known of that where it is refused. Frames before one of a stream were taken."""
        self._executed = executed
        self._raw = raw
        self._shape = shape
        self._parse = parse
        self._turns = turns

    async def message(self) -> Any:
        """The frame, parsed, if it holds no more than one may.

        Raises:
            SlotmeshError: BAD_REQUEST; it holds too much, or is no message.
        """
        async with self._turns.parsing:
            found = await self._turns.take(too_much(self._raw, self._shape))
            if found is None:
                return self._parse(self._raw)
        self._raw = b""  # the error below refers to this, for as long as it is referred to itself
        failure = Failure(
            reason=Reason.BAD_REQUEST,
            message=f"{found.field}: {found.problem}",
            executed=self._executed,
            metadata={"field": found.field},
        )
        raise to_exception(failure)


# Ending what a task does from outside, and not the task: as `asyncio.timeout` does, but when something happens.
#
# It takes the place of a second task that waits for that: streams come by the thousand.

WhyT = TypeVar("WhyT")


class Interruption(Generic[WhyT]):
    """The block of its `with` is left where it waits, once it is told why; `why` is looked at after the block.

    The block ends in order where it is left for that. Whatever else it raises is raised, a cancellation of its task
    included.
    """

    __slots__ = ("_cancelling", "_has_cancelled", "_task", "why")

    def __init__(self) -> None:
        self.why: WhyT | None = None
        """Why the block has to end; None where it need not."""
        self._task: asyncio.Task[Any] | None = None
        """Whose block it is; None outside of it."""
        self._cancelling = 0
        self._has_cancelled = False

    def end(self, why: WhyT) -> None:
        """Interrupts the block, or, before it, the first wait in it. Only the first reason counts.

        Not to be called by the block itself: that can return.
        """
        if self.why is None:
            self.why = why
            if self._task is not None:
                self._cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("what can be interrupted is a block of a task")
        self._task, self._cancelling = task, task.cancelling()
        if self.why is not None:
            # Not now: where the block does not wait, the task would be cancelled as it waits for something else.
            asyncio.get_running_loop().call_soon(self._cancel)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if not self._has_cancelled or task is None:
            return False
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def _cancel(self) -> None:
        if self._task is not None:
            self._has_cancelled = True
            self._task.cancel()


T = TypeVar("T")
ReadFrameT = TypeVar("ReadFrameT")

LAST_WRITE_S = 0.5
"""How long the write under way may take when the stream ends."""

TRANSPORT_ERRORS = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What gRPC raises on a call that has failed or ended."""


async def read_frame(call: grpc.aio.StreamStreamCall[Any, ReadFrameT]) -> ReadFrameT | None:
    """The peer's next frame; None at the end of the stream."""
    frame: Any = await call.read()
    return None if frame is grpc.aio.EOF else frame


async def read_request(context: grpc.aio.ServicerContext[ReadFrameT, Any]) -> ReadFrameT | None:
    """The client's next frame; None after half-close. The only way to read where frames are guarded."""
    frame: Any = await context.read()
    if (stream := stream_of(context)) is not None:
        stream.has_spoken = True
    if type(frame) is LargeFrame:
        frame = await frame.message()
    return None if frame is grpc.aio.EOF else frame


async def run_stream(
    pump: StreamPump[Any], reading: Coroutine[Any, Any, T], half_close: Callable[[], Awaitable[object]] | None = None
) -> T:
    """Pumps beside `reading` and returns what that returns. A pump that is closed is followed by `half_close`."""
    writing = pump.start() if half_close is None else asyncio.ensure_future(_write(pump, half_close))
    broken: Interruption[BaseException] = Interruption()

    def written(_: object) -> None:
        if not writing.cancelled() and (error := writing.exception()) and not isinstance(error, TRANSPORT_ERRORS):
            broken.end(error)

    writing.add_done_callback(written)
    try:
        with broken:
            return await reading
    finally:
        pump.stop()
        # gRPC refuses to end a stream while a write is under way: let that one finish, unless the peer does not read.
        try:
            if not writing.done():
                await asyncio.wait((writing,), timeout=LAST_WRITE_S)
        finally:
            if writing.cancel():
                await asyncio.gather(writing, return_exceptions=True)
    raise broken.why or RuntimeError("a stream was left without a reason")


async def _write(pump: StreamPump[Any], half_close: Callable[[], Awaitable[object]]) -> None:
    await pump.start()
    await half_close()


# Writing frames of a stream as bytes.
#
# Purpose: gRPC keeps what a stream writes for as long as its peer does not read, as bytes and in its own buffers. A
# frame
# that it gets as a message it keeps as a message, too: a third copy.
# Owner: the servicer of the stream.

BehaviorT = TypeVar("BehaviorT", bound=Callable[..., Any])

_MARK = "writes_bytes"


class SerialisableFrame(Protocol):
    """A message."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Its bytes."""


def writing_bytes(behavior: BehaviorT) -> BehaviorT:
    """Marks the handler of an rpc that writes all of its frames by `write_as_bytes`."""
    behavior.__dict__[_MARK] = True
    return behavior


def writes_bytes(behavior: object) -> bool:
    """Whether the handler has that mark."""
    return hasattr(behavior, _MARK)


def write_as_bytes(
    context: grpc.aio.ServicerContext[Any, Any],
) -> Callable[[SerialisableFrame], Coroutine[Any, Any, object]]:
    """Writes frames of the rpc; once it was called the frame is of no more use."""
    write = context.write

    def write_frame(frame: SerialisableFrame) -> Coroutine[Any, Any, object]:
        return write(frame.SerializeToString())

    return write_frame
