"""One Execute stream: the replica's side of a conversation with a router.

Purpose: reads runs and cancels, writes results; both halves live and end together.
Invariants: the reader never waits for the writer; after half-close the stream ends OK once all is answered and written;
a frame that this replica does not take ends it with UNIMPLEMENTED, a broken contract with INVALID_ARGUMENT.
Owner: the servicer's task of this stream.
"""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from replica_service import convert
from replica_service.shell.engine import Engine
from slotmesh.errors import Failure, Reason, SlotmeshError
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.duplex import read_request, run_stream
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import to_exception
from slotmesh.v1 import replica_service_pb2
from slotmesh.version import VERSION

LAST_WRITE_S = 1.0
"""How long a router that broke the contract has to read what it is owed, before it reads why the stream ends."""

Request = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse


class RouterStream:
    """Brings a router's frames to the engine, and the engine's answers back."""

    def __init__(self, engine: Engine, context: grpc.aio.ServicerContext[Request, Response], clock: Clock) -> None:
        self._engine = engine
        self._context = context
        self._clock = clock
        self._link, self._outbox = engine.open()
        self._pump: StreamPump[Response] = StreamPump(context.write, self._next_frame)
        self._outbox.connect(self._pump.wake)
        self._ended = asyncio.Event()
        self._is_ending = False
        self._written = asyncio.Event()

    async def run(self) -> None:
        """Serves the router until one of the two ends the stream."""
        try:
            await run_stream(self._pump, self._converse())
        finally:
            self._engine.close(self._link)

    def end(self) -> None:
        """The replica has nothing more to say: the stream ends OK once everything was written."""
        self._ended.set()

    async def _converse(self) -> None:
        reading = asyncio.ensure_future(self._read())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
            await self._write_the_rest()
        except SlotmeshError:
            # gRPC refuses to end a stream while a write is under way: the router would not read why.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self._write_the_rest()
            raise
        finally:
            reading.cancel()
            ended.cancel()
            await asyncio.gather(reading, ended, return_exceptions=True)

    async def _write_the_rest(self) -> None:
        self._is_ending = True
        self._pump.wake()
        await self._written.wait()

    async def _read(self) -> None:
        while (request := await read_request(self._context)) is not None:
            self._handle(request)
        await self._engine.finish(self._link)

    def _handle(self, request: Request) -> None:
        match request.WhichOneof("frame"):
            case "runs":
                runs, rejected = convert.runs_of(request.runs, self._link, self._clock.now())
                self._engine.submit(runs, rejected)
            case "cancel":
                self._engine.cancel(self._link, convert.ranges_of(request.cancel.runs))
            case "open":
                failure = Failure(
                    reason=Reason.BAD_REQUEST, message="open: the stream is open already", metadata={"field": "open"}
                )
                raise to_exception(failure)
            case frame:
                failure = Failure(
                    reason=Reason.NOT_IMPLEMENTED,
                    message=f"{frame or 'unknown frame'}: slotmesh {VERSION} does not take this frame",
                    metadata={"field": frame or "frame"},
                )
                raise to_exception(failure)

    def _next_frame(self) -> Response | None:
        frame = self._outbox.next_frame()
        if frame is None and self._is_ending:
            self._written.set()
        return frame
