"""A router that does as it is told: real gRPC on a free port of 127.0.0.1, no replica behind it.

It echoes each call's payload, or answers as `answer` says. Tests script it: `held` keeps answers back, `set_window`
narrows, `refusal`, `silent`, `break_streams`, `go_away`, `fence` and `FakeStream.reject` do what a real router does in
rare moments; `mute`, `lose_results` and `cut_after` do what networks do. Calls that are taken back are answered
CANCELLED, unless `deaf_to_cancels`. It keeps `sessions` as far as the client can see: it runs what is sent again.
It checks what every client has to keep to (ids strictly increase, the window is never passed, a call is taken back once
and after it was sent, what is sent again was announced and goes first, acks go up) in `breaches`, and remembers every
opening in `openings`, every batch in `batches`, every frame of cancels in `cancels`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc

from slotmesh.chunks import CHUNK_BYTES, BadChunk
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.pump import StreamPump
from slotmesh.status import abort, to_wire
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.fakes.chunks import Announced, in_chunks
from tests.fakes.generator import FakeGenerator
from tests.fakes.serving import FakeServer

Response = router_service_pb2.StreamCallsResponse
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it arrived."""

    frame: int
    """Which frame of the stream, counted from 1."""
    ids: Sequence[int]
    options: call_pb2.CallOptions
    payloads: list[bytes]
    resend: bool = False
    age_s: float = 0.0
    keys: Sequence[str] = ()
    """The column of ordering keys, where it has one."""
    sizes: Sequence[int] = ()
    """Of the payloads, those that come in chunks included."""


CANCELLED = Failure(reason=Reason.CANCELLED, message="taken back by its caller")

Answer = Callable[[Batch], Sequence[bytes | Failure]]
"""One result or failure for each call of a batch."""

Yield = Callable[[bytes], Iterable[bytes | Failure]]
"""What a handler yields for this payload, where its values are taken one by one. A failure ends it."""


def echo(batch: Batch) -> Sequence[bytes | Failure]:
    return batch.payloads


def yield_once(payload: bytes) -> Iterable[bytes | Failure]:
    return (payload,)


@dataclass(eq=False)
class FakeStream:
    """One StreamCalls stream."""

    router: FakeRouter
    opening: router_service_pb2.OpenStream
    pump: StreamPump[Response]
    outgoing: deque[Response] = field(default_factory=deque)
    unanswered: dict[int, int] = field(default_factory=dict)
    """Payload bytes by id."""
    taken_back: set[int] = field(default_factory=set)
    last_id: int = 0
    frames: int = 0
    frame_no: int = 0
    acked: int = 0
    to_resend: set[int] = field(default_factory=set)
    """Ids that were announced as unanswered, and have not come again."""
    has_said_all: bool = False
    """The client has said that no more will come again."""
    announced: Announced[Batch] = field(default_factory=Announced)
    generators: dict[int, FakeGenerator] = field(default_factory=dict)
    """Of calls that stream, by id; those that have ended, too."""
    is_cut: bool = False
    """Breaks once everything is written."""
    ending: Failure | None = None
    """What it breaks with; None: as if the router was killed."""
    broken: asyncio.Event = field(default_factory=asyncio.Event)
    half_closed: bool = False
    all_answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def endpoint(self) -> str:
        return self.opening.endpoint

    def say(self, response: Response) -> None:
        self.outgoing.append(response)
        self.pump.wake()

    def next_frame(self) -> Response | None:
        """One frame; neighbouring results leave together, as a real router's do."""
        if self.router.mute:
            return None
        if not self.outgoing:
            if self.is_cut:
                self.broken.set()
            return None
        response = self.outgoing.popleft()
        if response.WhichOneof("frame") == "results":
            while self.outgoing and self.outgoing[0].WhichOneof("frame") == "results":
                response.results.MergeFrom(self.outgoing.popleft().results)
            self.frame_no += 1
            response.results.frame_no = self.frame_no
        return response

    def accept(self, frame: router_service_pb2.CallFrame, defaults: call_pb2.CallOptions) -> None:
        self.frames += 1
        if self.has_said_all and (frame.resent_all or any(wire.resend for wire in frame.batches)):
            self._breach("calls are sent again after the last one")
        self.has_said_all = self.has_said_all or frame.resent_all
        for wire in frame.batches:
            options = wire.options if wire.HasField("options") else defaults
            ids = list(wire.call_ids) or range(wire.first_call_id, wire.first_call_id + len(wire.payloads))
            age_s = wire.age.ToNanoseconds() / 1e9
            payloads, keys = list(wire.payloads), list(wire.ordering_keys)
            chunked = list(wire.chunked_sizes) or [0] * len(payloads)
            sizes = [size or len(payload) for size, payload in zip(chunked, payloads, strict=True)]
            batch = Batch(self.frames, ids, options, payloads, wire.resend, age_s, keys, sizes)
            self._check(batch)
            self.router.arrivals += [f"call {call_id}" for call_id in ids]
            if not self.announced.add(batch, list(ids), payloads, chunked):
                self.router.accept(self, batch)

    def accept_chunk(self, chunk: call_pb2.Chunk) -> None:
        self.router.arrivals.append(f"chunk {chunk.call_id}")
        try:
            if (batch := self.announced.accept(chunk)) is not None:
                self.router.accept(self, batch)
        except BadChunk as error:
            self._breach(f"chunk: {error}")

    def cancel(self, frame: router_service_pb2.CancelCalls) -> None:
        ranges = [range(each.first, each.last + 1) for each in frame.calls]
        self.router.cancels.append(ranges)
        ids = [call_id for each in ranges for call_id in each]
        self._check_cancel(ids)
        for call_id in ids:
            self.announced.forget(call_id)
        if not self.router.deaf_to_cancels and (left := [call_id for call_id in ids if call_id in self.unanswered]):
            self.fail(left, CANCELLED)

    def answer(self, batch: Batch, outcomes: Sequence[bytes | Failure]) -> None:
        """Results and failures of a batch, in one frame. Of calls that want no reply, that they have ended."""
        ids = self._before_the_cut(batch.ids)
        if self.router.lose_results or not ids:
            return
        if batch.options.no_reply:
            self.end_ids(ids)
        elif batch.options.streaming:
            for call_id, payload in zip(ids, batch.payloads, strict=False):
                self.generators[call_id] = FakeGenerator(self.router.yields(payload), batch.options.content_type)
                self._step(call_id)
        else:
            self.answer_ids(ids, outcomes[: len(ids)], batch.options.content_type)

    def end_ids(self, ids: Sequence[int]) -> None:
        """These calls have ended, well or not."""
        frame = call_pb2.ResultFrame()
        for call_id in ids:
            self.unanswered.pop(call_id, None)
            if frame.done and frame.done[-1].last == call_id - 1:
                frame.done[-1].last = call_id
            else:
                frame.done.add(first=call_id, last=call_id)
        self._answered(Response(results=frame))

    def answer_ids(self, ids: Sequence[int], outcomes: Sequence[bytes | Failure], content_type: str = "") -> None:
        """Of calls that were answered already, too: as a client must be able to bear."""
        frame = call_pb2.ResultFrame()
        results = call_pb2.ResultBatch(content_type=content_type)
        takes_chunks = "chunks" in self.opening.features
        for call_id, outcome in zip(ids, outcomes, strict=True):
            self.unanswered.pop(call_id, None)
            if isinstance(outcome, Failure):
                frame.errors.add(call_ids=[call_id], failure=to_wire(outcome))
            else:
                results.call_ids.append(call_id)
                is_large = takes_chunks and len(outcome) > CHUNK_BYTES
                for chunk in in_chunks(call_id, outcome) if is_large else ():
                    self.say(chunk)
                results.payloads.append(b"" if is_large else outcome)
                results.chunked_sizes.append(len(outcome) if is_large else 0)
        if not any(results.chunked_sizes):
            results.ClearField("chunked_sizes")
        if results.call_ids:
            frame.batches.append(results)
        self._answered(Response(results=frame))

    def say_values(self, ids: Sequence[int], values: Sequence[bytes], content_type: str = "") -> None:
        """Values of calls that go on, whatever calls they are."""
        batch = call_pb2.ResultBatch(call_ids=ids, payloads=values, content_type=content_type, partial=True)
        self.say(Response(results=call_pb2.ResultFrame(batches=[batch])))

    def take(self, frame: call_pb2.TakeItems) -> None:
        """The client has taken values: their handlers go on."""
        self.router.takes.append(dict(zip(frame.call_ids, frame.counts, strict=True)))
        for call_id, count in zip(frame.call_ids, frame.counts, strict=True):
            generator = self.generators.get(call_id)
            if generator is None or count < 1 or not generator.take(count):
                self._breach(f"{count} values of call {call_id} taken")
            elif call_id in self.unanswered:
                self._step(call_id)

    def _step(self, call_id: int) -> None:
        generator = self.generators[call_id]
        if values := generator.run():
            self.say_values([call_id] * len(values), values, generator.content_type)
        if generator.failure is not None:
            self.fail([call_id], generator.failure)
        elif generator.is_over:
            self.end_ids([call_id])

    def fail(self, ids: Sequence[int], failure: Failure) -> None:
        """One failure for all of them, as one entry."""
        for call_id in ids:
            self.unanswered.pop(call_id, None)
        errors = [call_pb2.CallErrors(call_ids=ids, failure=to_wire(failure))]
        self._answered(Response(results=call_pb2.ResultFrame(errors=errors)))

    def reject(self, batch: Batch, failure: Failure) -> None:
        for call_id in batch.ids:
            self.unanswered.pop(call_id, None)
        rejected = router_service_pb2.RejectedBatch(failure=to_wire(failure))
        if isinstance(batch.ids, range):
            rejected.first_call_id, rejected.count = batch.ids[0], len(batch.ids)
        else:
            rejected.call_ids.extend(batch.ids)
        self._answered(Response(rejected=rejected))

    def ack(self, through_frame: int) -> None:
        self.router.acks.append(through_frame)
        if not self.acked < through_frame <= self.frame_no:
            self._breach(f"ack {through_frame} after {self.acked}, {self.frame_no} frames were sent")
        self.acked = through_frame

    def beat(self, heartbeat: call_pb2.Heartbeat) -> None:
        self.router.heartbeats += 1
        if not self.opening.session_id or self.half_closed:
            self._breach("a heartbeat where none belongs")
        self.say(Response(heartbeat=call_pb2.Heartbeat(echoed_stamp=heartbeat.stamp)))

    def end(self, failure: Failure | None = None) -> None:
        """Ends at once, whatever is unanswered."""
        self.ending = failure
        self.broken.set()

    def finish(self) -> None:
        self.half_closed = True
        self._end_if_answered()

    def _answered(self, response: Response) -> None:
        self.say(response)
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self.half_closed and not self.unanswered:
            self.pump.close()

    def _before_the_cut(self, ids: Sequence[int]) -> Sequence[int]:
        """What still gets through of these outcomes."""
        left = self.router.cut_after
        if left is None:
            return ids
        self.router.cut_after = max(left - len(ids), 0)
        if len(ids) >= left:
            self.is_cut = True
            self.pump.wake()
        return ids[:left]

    def _check(self, batch: Batch) -> None:
        if any(later <= earlier for earlier, later in pairwise((self.last_id, *batch.ids))):
            self._breach(f"ids {batch.ids} after {self.last_id}")
        self.last_id = batch.ids[-1]
        if batch.resend and not self.to_resend.issuperset(batch.ids):
            self._breach(f"ids {batch.ids} are sent again, and were not announced")
        if not batch.resend and self.to_resend:
            self._breach(f"new calls before {self.to_resend} were sent again")
        says_all = self.opening.unanswered and "resent_all" in self.opening.features
        if not batch.resend and says_all and not self.has_said_all:
            self._breach("new calls before it was said that all were sent again")
        self.to_resend.difference_update(batch.ids)
        alone = not self.unanswered and len(batch.payloads) == 1
        self.unanswered.update(zip(batch.ids, batch.sizes, strict=True))
        if batch.keys and len(batch.keys) != len(batch.ids):
            self._breach(f"{len(batch.keys)} ordering keys for {len(batch.ids)} calls")
        if any(len(payload) > CHUNK_BYTES for payload in batch.payloads) and "chunks" in self.router.features:
            self._breach("a large payload came whole")
        calls, nbytes = len(self.unanswered), sum(self.unanswered.values())
        if "large_beside" in self.router.features:
            nbytes -= max((size for size in self.unanswered.values() if size > self.router.window_bytes), default=0)
        if not alone and (calls > self.router.window_calls or nbytes > self.router.window_bytes):
            self._breach(f"{calls} calls of {nbytes} bytes unanswered")

    def _check_cancel(self, ids: list[int]) -> None:
        for call_id in ids:
            if not 0 < call_id <= self.last_id:
                self._breach(f"call {call_id} taken back before it was sent")
            if call_id in self.taken_back:
                self._breach(f"call {call_id} taken back twice")
            self.taken_back.add(call_id)

    def _breach(self, what: str) -> None:
        self.router.breaches.append(what)


class FakeRouter(FakeServer, router_service_pb2_grpc.RouterServiceServicer):
    """Use it as `async with FakeRouter() as router:`; it listens at `router.address`."""

    register = staticmethod(router_service_pb2_grpc.add_RouterServiceServicer_to_server)

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
        sessions: bool = True,
        alternates: Sequence[str] = (),
        features: Sequence[str] = ("chunks", "ordering_keys"),
    ) -> None:
        """Without `sessions` it is a router that does not know of them, and refuses them."""
        super().__init__(port)
        self.answer = answer
        self.features = list(features)
        """Besides `sessions`."""
        self.arrivals: list[str] = []
        """`call ID`, `chunk ID`, and the kinds of other frames, as they came."""
        self.yields = yields
        """For calls with `streaming`, in place of `answer`."""
        self.window_calls = window_calls
        self.window_bytes = window_bytes
        self.max_payload_bytes = max_payload_bytes
        self.sessions = sessions
        self.alternates = alternates
        """What it says of other routers when a stream is opened."""
        self.leaving = False
        """While true, a stream is told to go as soon as it is opened."""
        self.mute = False
        """While true, nothing is written to any stream, and nothing ends."""
        self.lose_results = False
        """While true, outcomes are thrown away."""
        self.cut_after: int | None = None
        """So many outcomes get through; with them the stream breaks."""
        self.held = False
        """While true, batches wait in `waiting` for `release` or for a test that answers them itself."""
        self.refusal: Failure | None = None
        """What opening a stream is answered with, instead of `opened`."""
        self.silent = False
        """While true, opening a stream is not answered."""
        self.deaf_to_cancels = False
        """While true, calls that are taken back are answered as if they were not."""
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
        refusal = self.refusal
        if refusal is None and opening.session_id and not self.sessions:
            refusal = Failure(reason=Reason.NOT_IMPLEMENTED, message="open.session_id: sessions are not known here")
        if refusal is not None:
            self.refused += 1
            await self._tell()
            await abort(context, refusal)
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
            opened.features.extend(self.features)
            if self.sessions:
                opened.features.append("sessions")
            stream.say(Response(opened=opened))
            if self.leaving:
                stream.say(Response(go_away=call_pb2.GoAway(message="I leave")))
        reader = asyncio.create_task(self._read(context, stream, opening.default_options))
        writer = asyncio.create_task(pump.run())
        breaker = asyncio.create_task(stream.broken.wait())
        try:
            await asyncio.wait((writer, breaker), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer, breaker):
                task.cancel()
            await asyncio.gather(reader, writer, breaker, return_exceptions=True)
            self.streams.remove(stream)
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

    async def CallJson(self, request: object, context: Context) -> router_service_pb2.CallJsonResponse:
        await abort(context, Failure(reason=Reason.NOT_IMPLEMENTED, message="a fake"))

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
