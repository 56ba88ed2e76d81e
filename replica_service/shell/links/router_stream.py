"""One Execute stream: the replica's side of a stream from a router.

Purpose: reads runs and their chunks, slot operations, cancels, acknowledgements and queries; writes results and
heartbeats. Both halves end together. `RouterUploads` assembles payloads that arrive in chunks.
Invariants: the reader never waits for the writer. After half-close the stream ends OK once all outcomes are written. An
unknown frame ends it with UNIMPLEMENTED, a violation of the protocol with INVALID_ARGUMENT. A chunk for a call that
does not wait for its payload is dropped; an invalid chunk fails its call, and no other.
Owner: the servicer's task of this stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

import grpc

from replica_service.convert.reports import reconciled_to_wire
from replica_service.convert.runs import OPENED_AGAIN, UNKNOWN_FRAME, questions_of, runs_of
from replica_service.core.call_states import CallState
from replica_service.core.events import PayloadFailed, PayloadReceived, StampEchoed
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.shell.engine import Engine
from replica_service.shell.handler.rpc_requests import RouterRequests
from slotmesh.calls.result_envelopes import RPC_REQUESTS
from slotmesh.convert.batches import ranges_from_wire
from slotmesh.errors import SlotmeshError
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.runtime.clock import Clock
from slotmesh.status import to_exception
from slotmesh.streams.arriving_payloads import AnnouncedPayloads, JoinedAssembly
from slotmesh.streams.spliced_frames import CutFrame, Paths
from slotmesh.transport.duplex import Interruption, read_request, run_stream
from slotmesh.transport.pump import StreamPump
from slotmesh.v1 import call_pb2


class RouterUploads(AnnouncedPayloads[bytes]):
    """The incomplete payloads of one router. Only calls that wait for their payload have one here."""

    def __init__(self, engine: Engine, link: RouterPeer) -> None:
        runs = self._runs = dict[int, ReplicaRun]()
        """By run id."""
        super().__init__(
            JoinedAssembly,
            lambda run_id, payload: engine.post(PayloadReceived(runs.pop(run_id), payload)),
            lambda run_id, failure: engine.post(PayloadFailed(runs[run_id], failure)),
        )
        self._link = link
        link.uploads = self

    def expect(self, sizes: Mapping[int, int]) -> None:
        """Expects chunks of these calls, by run id, with sizes in bytes. Calls with an outcome are ignored."""
        for run_id, size in sizes.items():
            run = self._link.waiting.get(run_id)
            if run is not None and run.state is CallState.UPLOADING:
                self._runs[run_id] = run
                self.announce(run_id, size)

    def forget(self, run_id: int) -> None:
        """Drops the payload of a call that has its outcome."""
        self.under_way.pop(run_id, None)
        self._runs.pop(run_id, None)


LAST_WRITE_S = 1.0
"""How long a router that broke the contract has to read what it is owed, before it reads why the stream ends."""

HEARTBEAT_S = 1.0
"""How often a frame goes to a router that echoes stamps."""
ExecuteRequest = replica_service_pb2.ExecuteRequest
Response = replica_service_pb2.ExecuteResponse
_PAYLOADS: Final[Paths] = (
    (
        ExecuteRequest.RUNS_FIELD_NUMBER,
        replica_service_pb2.RunFrame.BATCHES_FIELD_NUMBER,
        replica_service_pb2.RunBatch.PAYLOADS_FIELD_NUMBER,
    ),
    (ExecuteRequest.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER),
)


class RouterStream:
    """Brings a router's frames to the engine, and the engine's answers back."""

    def __init__(
        self,
        engine: Engine,
        context: grpc.aio.ServicerContext[ExecuteRequest, Response],
        clock: Clock,
        stream_id: str = "",
    ) -> None:
        """`stream_id`: the router's id of this stream."""
        self._engine = engine
        self._context = context
        self._clock = clock
        self._link, self._outbox = engine.open(stream_id)
        self._uploads = RouterUploads(engine, self._link)
        self._heard_stamp = 0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._pump: StreamPump[Response] = StreamPump(context.write, self._next_frame, engine.outcomes.woken)
        self._outbox.connect(self._pump.wake, clock.now)
        self._requests = self._link.requests = RouterRequests(self._pump.wake)
        self._heard_out = asyncio.Event()
        self._ended: Interruption[str] = Interruption()
        self._is_ending = False
        self._written = asyncio.Event()

    async def run(self) -> None:
        """Serves the router until one of the two ends the stream."""
        self._beat()
        try:
            await run_stream(self._pump, self._converse())
        finally:
            self._heard_out.set()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
            self._requests.close()
            self._engine.close(self._link)

    def dismiss(self) -> None:
        """The replica needs nothing more of the router, which should half-close."""
        self._outbox.go_away("the replica ends", now=True)

    async def heard_out(self) -> None:
        """Returns when the router has half-closed, or the stream has ended."""
        await self._heard_out.wait()

    def end(self) -> None:
        """Nothing more will be queued: the stream ends OK once everything was written."""
        self._ended.end("the replica ends")

    async def _converse(self) -> None:
        try:
            with self._ended:
                await self._read()
            await self._write_the_rest()
        except SlotmeshError:
            # gRPC refuses to end a stream while a write is under way: the router would not read why.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self._write_the_rest()
            raise

    async def _write_the_rest(self) -> None:
        self._is_ending = True
        self._outbox.hurry()
        self._pump.wake()
        await self._written.wait()

    async def _read(self) -> None:
        woken = self._engine.outcomes.woken
        while (request := await read_request(self._context, _PAYLOADS)) is not None:
            woken.is_at_work = True
            try:
                if type(request) is CutFrame:
                    self._handle(*request)
                else:
                    self._handle(request)
            finally:
                woken.write()  # for immediate outcomes, such as those of slot operations
        self._uploads.end()
        self._heard_out.set()
        await self._engine.finish(self._link)

    def _handle(self, request: ExecuteRequest, payloads: Sequence[bytes] = ()) -> None:
        """`payloads`: those that are not in the frame, of its only batch, or its chunk."""
        match request.WhichOneof("frame"):
            case "runs":
                traces = self._engine.traces
                runs, rejected, announced = runs_of(
                    request.runs,
                    self._link,
                    self._clock.now(),
                    payloads,
                    most_traced=0 if traces is None else traces.most_alike,
                )
                for run in runs:
                    if run.options.content_type == RPC_REQUESTS:
                        self._requests.expect(run.first, len(run.payloads))
                self._engine.submit(runs, rejected)
                if announced:
                    self._uploads.expect(announced)
            case "slots":
                self._engine.slots.handle(request.slots, self._link)
            case "chunk":
                chunk = request.chunk
                data = payloads[-1] if payloads else chunk.data
                self._uploads.accept(chunk.call_id, chunk.offset, chunk.total, data)
            case "cancel":
                cancel = request.cancel
                ranges = ranges_from_wire(cancel.runs)
                self._requests.cancel(ranges)
                self._engine.cancel(self._link, ranges, tells_stopped=cancel.tell_stopped)
            case "requests":
                self._requests.add(request.requests)
            case "take":
                self._engine.take(self._link, request.take.call_ids, request.take.counts)
            case "ack":
                self._engine.acknowledge(self._link, ranges_from_wire(request.ack.runs))
            case "reconcile":
                answers = self._engine.reconcile(questions_of(request.reconcile))
                for answer in reconciled_to_wire(answers):
                    self._outbox.reconciled(answer)
            case "heartbeat":
                self._heard(request.heartbeat)
            case "open":
                raise to_exception(OPENED_AGAIN)
            case None:
                raise to_exception(UNKNOWN_FRAME)

    def _beat(self) -> None:
        self._outbox.heartbeat(self._make_heartbeat)
        # What others have had and given back since the last frame, this router would go on counting.
        self._outbox.tell_capacity()
        self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)

    def _make_heartbeat(self) -> call_pb2.Heartbeat:
        """The stamp is that of the moment in which the frame leaves: what the transport holds up is not fresh."""
        return call_pb2.Heartbeat(stamp=round(self._clock.now() * 1e9), echoed_stamp=self._heard_stamp)

    def _heard(self, heartbeat: call_pb2.Heartbeat) -> None:
        self._heard_stamp = heartbeat.stamp or self._heard_stamp
        if heartbeat.echoed_stamp:
            self._engine.post(StampEchoed(self._link, heartbeat.echoed_stamp / 1e9))

    def _next_frame(self) -> Response | None:
        if (taken := self._requests.taken()) is not None:
            return Response(take=taken)
        frame = self._outbox.next_frame()
        if frame is None and self._is_ending:
            self._written.set()
        return frame
