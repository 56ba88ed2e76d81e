"""Both halves of a stream, as one piece of work.

Purpose: a pump writes beside a reader, and neither outlives the other.
Invariants: ends when the reader ends; a transport that fails is the reader's to report, a defect of the writer is
raised.
Owner: the task that awaits `run_stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc

from slotmesh.runtime.interruption import Interruption
from slotmesh.runtime.large_frames import LargeFrame
from slotmesh.runtime.open_streams import stream_of
from slotmesh.runtime.pump import StreamPump

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
