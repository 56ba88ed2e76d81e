"""A router that does as it is told: real gRPC on a free port of 127.0.0.1, no replica behind it.

It echoes each call's payload, or answers as `answer` says. Tests script it: `held` keeps answers back, `set_window`
narrows, `refusal`, `silent`, `break_streams`, `go_away`, `fence` and `FakeStream.reject` do what a real router does in
rare moments; `mute`, `lose_results` and `cut_after` do what networks do. Calls that are taken back are answered
CANCELLED, unless `deaf_to_cancels`. It keeps sessions as far as the client can see: it runs what is sent again.
It checks what every client has to keep to (ids strictly increase, the window is never passed, a call is taken back once
and after it was sent, what is sent again was announced and goes first, acks go up) in `breaches`, and remembers every
opening in `openings`, every batch in `batches`, every frame of cancels in `cancels`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from slotmesh.errors import Failure, Reason
from slotmesh.status import abort
from slotmesh.transport.pump import StreamPump
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.fakes.router_batches import Answer, Batch, Context, Yield, echo, yield_once
from tests.support.fakes.router_stream import FakeStream
from tests.support.fakes.serving import FakeServer

Response = router_service_pb2.StreamCallsResponse


class FakeRouter(FakeServer, router_service_pb2_grpc.RouterServiceServicer):
    """Use it as `async with FakeRouter() as router:`; it listens at `router.address`."""

    register = staticmethod(router_service_pb2_grpc.add_RouterServiceServicer_to_server)

    leaving = False
    """While true, a stream is told to go as soon as it is opened."""
    mute = False
    """While true, nothing is written to any stream, and nothing ends."""
    lose_results = False
    """While true, outcomes are thrown away."""
    cut_after: int | None = None
    """So many outcomes get through; with them the stream breaks."""
    held = False
    """While true, batches wait in `waiting` for `release` or for a test that answers them itself."""
    refusal: Failure | None = None
    """What opening a stream is answered with, instead of `opened`."""
    silent = False
    """While true, opening a stream is not answered."""
    deaf_to_cancels = False
    """While true, calls that are taken back are answered as if they were not."""

    idle_heartbeat_s = 0.0
    """How far apart it allows heartbeats of idle sessions. 0: it does not say so."""

    def __init__(
        self,
        *,
        answer: Answer = echo,
        yields: Yield = yield_once,
        window_calls: int = 1_024,
        window_bytes: int = 4 * 1024 * 1024,
        max_payload_bytes: int = 4 * 1024 * 1024,
        port: int = 0,
        keep_batches: bool = True,
        alternates: Sequence[str] = (),
    ) -> None:
        super().__init__(port)
        self.answer = answer
        self.arrivals: list[str] = []
        """`call ID`, `chunk ID`, and the kinds of other frames, as they came."""
        self.yields = yields
        """For calls with `streaming`, in place of `answer`."""
        self.window_calls = window_calls
        self.window_bytes = window_bytes
        self.max_payload_bytes = max_payload_bytes
        self.alternates = alternates
        """What it says of other routers when a stream is opened."""
        self.openings: list[router_service_pb2.OpenStream] = []
        """Refused ones, too."""
        self.acks: list[int] = []
        self.heartbeats = 0
        """That came."""
        self.batches: list[Batch] = []
        self.cancels: list[list[range]] = []
        """Ids, by frame."""
        self.rpcs = 0
        """CallStreaming calls that run."""
        self.takes: list[dict[int, int]] = []
        """Values taken, by call, by frame."""
        self.waiting: list[tuple[FakeStream, Batch]] = []
        self.streams: list[FakeStream] = []
        """Open ones."""
        self.refused = 0
        """Streams answered with `refusal`."""
        self.half_closed = 0
        """Streams whose client said that it makes no more calls."""
        self.opened = 0
        """Streams opened ever."""
        self.breaches: list[str] = []
        """What a client did that it must not do. Tests check that it is empty."""
        self._keep_batches = keep_batches
        self._changed = asyncio.Condition()

    # -- what tests do with it -------------------------------------------------------------------------------------

    @property
    def answers(self) -> bool:
        """Whether nothing keeps it from answering."""
        return not self.held and not self.mute and not self.lose_results and self.cut_after is None

    async def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        """Waits until something is so. Looks whenever a frame came or a stream opened or ended."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(condition)

    def calls(self) -> int:
        """Calls that arrived."""
        return sum(len(batch.payloads) for batch in self.batches)

    def release(self) -> None:
        """Answers what was held, and holds no more."""
        self.held = False
        waiting, self.waiting = self.waiting, []
        for stream, batch in waiting:
            stream.answer(batch, self.answer(batch))

    def set_window(self, calls: int, nbytes: int) -> None:
        """A new window for all streams. Checked from now on, so set it while nothing is on its way."""
        self.window_calls, self.window_bytes = calls, nbytes
        self.say(Response(window=router_service_pb2.Window(calls=calls, bytes=nbytes)))

    def say(self, response: Response) -> None:
        for stream in self.streams:
            stream.say(response)

    def break_streams(self) -> None:
        """Ends every stream with UNAVAILABLE, whatever is unanswered."""
        for stream in self.streams:
            stream.end()

    def fence(self) -> None:
        """Ends every stream as one whose session went on elsewhere."""
        for stream in self.streams:
            stream.end(Failure(reason=Reason.SESSION_FENCED, message="a newer connection has the session"))

    def go_away(self, *alternates: str) -> None:
        self.say(Response(go_away=call_pb2.GoAway(message="I leave", alternates=alternates)))

    # -- the service -----------------------------------------------------------------------------------------------

    def accept(self, stream: FakeStream, batch: Batch) -> None:
        if self._keep_batches:
            self.batches.append(batch)
        if self.held:
            self.waiting.append((stream, batch))
        else:
            stream.answer(batch, self.answer(batch))

    async def StreamCalls(  # type: ignore[override]  # reads and writes by the context, which is quicker
        self, request_iterator: object, context: Context
    ) -> None:
        opening = (await context.read()).open
        self.openings.append(opening)
        if self.refusal is not None:
            self.refused += 1
            await self._tell()
            await abort(context, self.refusal)
        pump: StreamPump[Response] = StreamPump(context.write, lambda: stream.next_frame())  # noqa: PLW0108
        stream = FakeStream(self, opening, pump)
        stream.to_resend.update(each for ids in opening.unanswered for each in range(ids.first, ids.last + 1))
        self.streams.append(stream)
        self.opened += 1
        await self._tell()
        if not self.silent:
            window = router_service_pb2.Window(calls=self.window_calls, bytes=self.window_bytes)
            opened = router_service_pb2.StreamOpened(window=window, max_payload_bytes=self.max_payload_bytes)
            opened.alternates.extend(self.alternates)
            if self.idle_heartbeat_s:
                opened.idle_heartbeat.FromNanoseconds(round(self.idle_heartbeat_s * 1e9))
            stream.say(Response(opened=opened))
            if self.leaving:
                stream.say(Response(go_away=call_pb2.GoAway(message="I leave")))
        reader = asyncio.create_task(self._read(context, stream, opening.default_options))
        writer = pump.start()
        breaker = asyncio.create_task(stream.broken.wait())
        try:
            await asyncio.wait((writer, breaker), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.streams.remove(stream)  # before an await, where it may be cancelled once more
            for task in (reader, writer, breaker):
                task.cancel()
            await asyncio.gather(reader, writer, breaker, return_exceptions=True)
            await asyncio.shield(self._tell())
        if stream.ending is not None:
            await abort(context, stream.ending)
        if stream.broken.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "told to break")

    async def Call(self, request: router_service_pb2.CallRequest, context: Context) -> router_service_pb2.CallResponse:
        outcome = self.answer(Batch(0, [0], request.options, [request.payload]))[0]
        if isinstance(outcome, Failure):
            await abort(context, outcome)
        return router_service_pb2.CallResponse(payload=outcome, content_type=request.options.content_type)

    async def DescribeEndpoints(
        self, request: object, context: Context
    ) -> router_service_pb2.DescribeEndpointsResponse:
        await abort(context, Failure(reason=Reason.NOT_IMPLEMENTED, message="a fake"))

    async def Broadcast(  # type: ignore[override]  # it only fails
        self, request: object, context: Context
    ) -> None:
        """As a router of a version without broadcasts."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    async def CallStreaming(
        self, request: router_service_pb2.CallStreamingRequest, context: Context
    ) -> AsyncIterator[router_service_pb2.CallStreamingResponse]:
        self.rpcs += 1
        try:
            for value in self.yields(request.payload):
                if isinstance(value, Failure):
                    await abort(context, value)
                else:
                    yield router_service_pb2.CallStreamingResponse(
                        payload=value, content_type=request.options.content_type
                    )
        finally:
            self.rpcs -= 1
            await asyncio.shield(self._tell())

    async def _read(self, context: Context, stream: FakeStream, defaults: call_pb2.CallOptions) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            kind = request.WhichOneof("frame")
            if kind not in ("calls", "chunk"):
                self.arrivals.append(str(kind))
            match kind:
                case "calls":
                    stream.accept(request.calls, defaults)
                case "chunk":
                    stream.accept_chunk(request.chunk)
                case "cancel":
                    stream.cancel(request.cancel)
                case "ack":
                    stream.ack(request.ack.through_frame)
                case "heartbeat":
                    stream.beat(request.heartbeat)
                case "take":
                    stream.take(request.take)
                case other:
                    self.breaches.append(f"an unexpected frame: {other}")
            await self._tell()
        self.half_closed += 1
        stream.finish()
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
