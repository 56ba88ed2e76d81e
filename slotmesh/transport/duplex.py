"""Both halves of a stream as one piece of work; large frames; frames written as bytes.

Purpose: a pump writes beside a reader, and neither outlives the other.
Invariants: the work ends when the reader ends; a failure of the transport is reported by the reader, a defect of the
writer is raised.
Owner: the task that awaits `run_stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.status import to_exception
from slotmesh.streams.frame_bounds import Shape, too_much
from slotmesh.streams.spliced_frames import Paths, cut
from slotmesh.transport.open_streams import stream_of
from slotmesh.transport.pump import StreamPump


class LargeFrame:
    """The bytes of a frame, neither counted nor parsed yet.

    gRPC parses a frame where it takes it from the transport, and cannot wait there; so a large one is passed to its
    reader unparsed (`read_request`). Large requests of unary rpcs: `slotmesh.server.unary_requests`.
    Owner: the reader of the stream, or of the request.
    """

    __slots__ = ("_executed", "_parse", "_raw", "_shape", "_turns")

    def __init__(
        self,
        raw: bytes,
        shape: Shape,
        parse: Callable[[bytes], Any],
        turns: StepQueue,
        executed: Executed = Executed.UNKNOWN,
    ) -> None:
        """`executed`: of the failure if it is refused. Earlier frames of a stream were accepted."""
        self._executed = executed
        self._raw = raw
        self._shape = shape
        self._parse = parse
        self._turns = turns

    async def message(self, payloads: Paths = ()) -> Any:
        """The frame, parsed, if its content is within the bounds. `payloads`: as `read_request`.

        Raises:
            SlotmeshError: BAD_REQUEST; it has too much content, or is not a message.
        """
        async with self._turns.parsing:
            found = await self._turns.take(too_much(self._raw, self._shape))
            if found is None:
                return cut(self._raw, self._parse, payloads)
        self._raw = b""  # the error below references this object, and must not keep the bytes alive
        failure = Failure(
            reason=Reason.BAD_REQUEST,
            message=f"{found.place}: {found.problem}",
            executed=self._executed,
            metadata={"field": found.field} if found.field else {},
        )
        raise to_exception(failure)


WhyT = TypeVar("WhyT")


class Interruption(Generic[WhyT]):
    """Interrupts its `with` block where it waits, when `end` is called; `why` is read after the block.

    As `asyncio.timeout`, but for an event. It replaces a second task that waits for the event: streams come by the
    thousand. The block ends normally if it is left for that; any other exception is raised, including a cancellation of
    its task.
    """

    __slots__ = ("_cancelling", "_has_cancelled", "_task", "why")

    def __init__(self) -> None:
        self.why: WhyT | None = None
        """Why the block was interrupted; None if it was not."""
        self._task: asyncio.Task[Any] | None = None
        """The block's task; None outside of the block."""
        self._cancelling = 0
        self._has_cancelled = False

    def end(self, why: WhyT) -> None:
        """Interrupts the block, or, if it has not started, its first wait. Only the first reason counts.

        Not to be called by the block itself, which can return.
        """
        if self.why is None:
            self.why = why
            if self._task is not None:
                self._cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("Interruption needs a running task")
        self._task, self._cancelling = task, task.cancelling()
        if self.why is not None:
            # Later: if the block does not wait, the task would be cancelled at a wait outside of it.
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
"""How long the current write may take when the stream ends."""

TRANSPORT_ERRORS = (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""What gRPC raises on a call that has failed or ended."""


async def read_frame(call: grpc.aio.StreamStreamCall[Any, ReadFrameT]) -> ReadFrameT | None:
    """The peer's next frame; None at the end of the stream."""
    frame: Any = await call.read()
    return None if frame is grpc.aio.EOF else frame


async def read_request(context: grpc.aio.ServicerContext[Any, Any], payloads: Paths = ()) -> Any:
    """The client's next frame; None after half-close. Required where large frames are guarded.

    `payloads`: where large payloads may be; a frame that has some is a `CutFrame`.
    """
    frame: Any = await context.read()
    if (stream := stream_of(context)) is not None:
        stream.has_spoken = True
    if type(frame) is LargeFrame:
        frame = await frame.message(payloads)
    return None if frame is grpc.aio.EOF else frame


async def run_stream(
    pump: StreamPump[Any], reading: Coroutine[Any, Any, T], half_close: Callable[[], Awaitable[object]] | None = None
) -> T:
    """Pumps beside `reading` and returns its result. `half_close` is called when the pump is closed."""
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
        # gRPC cannot end a stream during a write: let that one finish, unless the peer does not read.
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


BehaviorT = TypeVar("BehaviorT", bound=Callable[..., Any])

_MARK = "writes_bytes"


def writing_bytes(behavior: BehaviorT) -> BehaviorT:
    """Marks the handler of an rpc that writes all frames by `write_as_bytes`.

    gRPC keeps written frames until the peer has read them, as bytes and in its own buffers; a frame that it gets as a
    message it keeps as a message, too.
    """
    behavior.__dict__[_MARK] = True
    return behavior


def writes_bytes(behavior: object) -> bool:
    """Whether the handler has that mark."""
    return hasattr(behavior, _MARK)


def write_as_bytes(
    context: grpc.aio.ServicerContext[Any, Any],
) -> Callable[[Message], Coroutine[Any, Any, object]]:
    """Returns a writer of frames for the rpc; a frame must not be used after it was written."""
    write = context.write

    def write_frame(frame: Message) -> Coroutine[Any, Any, object]:
        return write(frame.SerializeToString())

    return write_frame
