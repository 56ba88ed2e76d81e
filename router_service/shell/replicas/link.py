"""The link to one replica: one Execute stream, kept up while the table names the replica.

Purpose: keeps the stream, writes the frames of `LinkFrames`, and turns the replica's frames into events.
Invariants: a link is up from the replica's first capacity frame until the stream ends, and posts each of these exactly
once. After a failure it comes up again only when the replica's health check reports SERVING.
Owner: the app, through the dispatcher; it has one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import grpc

from router_service import convert
from router_service.core.calls import Failures
from router_service.core.commands import CancelRun
from router_service.core.events import (
    CapacityReported,
    DrainAnnounced,
    LanesStopped,
    LinkFailed,
    LinkLost,
    LinkOpened,
    RequestsTaken,
    RunsCompleted,
    RunsRefused,
    ServiceTimesReported,
    SessionReconciled,
    SlotOperationsAnswered,
)
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.backends import LONGEST_S
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import SessionConnection
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.replicas.channel import ExecuteCall, ReplicaChannel, Request, Response
from router_service.shell.replicas.frames import LinkFrames
from router_service.shell.reports import LinkReport
from slotmesh.calls.method_outlines import MethodOutline, fitting
from slotmesh.convert.batches import ids_from_wire, ids_of_results, payloads_of, ranges_from_wire
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.ids import STREAM_ID_BYTES, new_id
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.logs import get_logger
from slotmesh.runtime.channels import Dialer
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.tasks import Supervisor, is_cancelled
from slotmesh.status import from_wire
from slotmesh.streams.arriving_payloads import ArrivingPayloads, BadChunk, PartsAssembly
from slotmesh.streams.chunks import Payload
from slotmesh.streams.limits import MAX_METHODS
from slotmesh.streams.spliced_frames import CutFrame
from slotmesh.telemetry.names import DIRECTION_IN
from slotmesh.transport.duplex import run_stream
from slotmesh.transport.pump import StreamPump
from slotmesh.v1 import call_pb2
from slotmesh.version import VERSION

LEFT_PAUSE_S = 1.0
"""Pause before the health check of a replica that has ended the stream because it drains."""

SILENCE_S = 4.0
"""A replica that sends heartbeats each second, and then none for this time, is disconnected or stopped. It no longer
starts calls then, because its own fence is shorter."""

_log = get_logger(__name__)


class _ProtocolViolation(Exception):
    """The replica broke the contract."""


class ReplicaLink:
    """Connects, and reconnects, to one incarnation of a replica."""

    def __init__(
        self,
        replica: RoutedReplica,
        dispatcher: Dispatcher,
        report: LinkReport,
        router_id: str,
        clock: Clock,
        dialer: Dialer,
    ) -> None:
        self._replica = replica
        self._dispatcher = dispatcher
        self._report = report
        self._router_id = router_id
        self._clock = clock
        self._channel = ReplicaChannel(replica, dialer)
        self._up = False
        self._leaving = False
        """Whether the replica has sent go_away: no more runs are sent on this stream."""
        self._closing = False
        self._is_closed = False
        self._pump: StreamPump[Request] | None = None
        self._task: asyncio.Task[None] | None = None
        self._retry_in_s = LONGEST_S
        self._heard_at = 0.0
        self._is_silent = False
        self._stream_id = ""
        self._watch: asyncio.TimerHandle | None = None
        self._arrivals: ArrivingPayloads[Payload] = ArrivingPayloads(PartsAssembly)
        """Results that arrive in chunks. One that breaks the rules ends the stream."""
        self._frames = LinkFrames(replica, dispatcher, clock, self._wake)

    # -- called by the dispatcher ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """There is something in the replica's outbox. Only while the link is up."""
        self._wake()

    def cancel(self, command: CancelRun) -> None:
        """Cancels these calls at the replica."""
        self._frames.cancel(command)

    def reconcile(self, session: SessionConnection) -> None:
        """Asks what became of the session's unanswered calls. Only while the link is up."""
        self._frames.reconcile(session)

    def retry_in(self, delay_s: float) -> None:
        """The link failed: the next attempt is after `delay_s` seconds."""
        self._retry_in_s = delay_s

    def forget(self, first: int, count: int) -> None:
        """The replica need not keep the outcomes of these runs. Only while the link is up."""
        self._frames.forget(first, count)

    def take(self, run_id: int, count: int) -> None:
        """`count` values of the run were taken. Only while the link is up."""
        self._frames.take(run_id, count)

    def request(self, run_id: int, requests: Sequence[bytes | None]) -> None:
        """Requests of a call that takes several; None: there are no more. Only while the link is up."""
        self._frames.request(run_id, requests)

    async def finish(self) -> None:
        """Writes what is queued, then half-closes: returns when the replica has answered and ended the stream."""
        self._closing = True
        if self._up and self._task is not None:
            self._frames.flush()
            self._half_close()
            await asyncio.wait((self._task,))

    def close(self) -> None:
        """Ends the link: the replica owes no answer any more. No event follows: there may be another link to it."""
        self._closing = self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    def start(self, tasks: Supervisor) -> None:
        """Connects, in a task of its own."""
        self._task = tasks.start(self._run(), name=f"link {self._replica.replica_id}")

    # -- the task --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            why = await self._converse(self._channel.execute())
            while not self._closing:
                if self._leaving:
                    self._leaving = False
                    await asyncio.sleep(LEFT_PAUSE_S)
                else:
                    if self._is_closed:
                        return
                    self._dispatcher.post(LinkFailed(self._replica))
                    await asyncio.sleep(self._retry_in_s)
                    if not await self._channel.is_serving():
                        continue
                _log.debug("replica link: connecting again", why=why, **self._who())
                why = await self._converse(self._channel.execute())
        finally:
            await self._channel.aclose()

    async def _converse(self, call: ExecuteCall) -> str:
        """One stream, from its opening to its end; returns why it ended."""
        why = "the link was closed"
        write = writer_of(call)
        self._pump = StreamPump(write, self._frames.next_frame, self._dispatcher.woken)
        self._arrivals = ArrivingPayloads(PartsAssembly)
        try:
            await write(self._opening())
            await run_stream(self._pump, self._read(call), call.done_writing)
            why = "the replica ended the stream"
            if self._leaving and not self._closing:
                self._report.ended(self._replica)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            why = (
                f"the replica has given no sign of life for {SILENCE_S:g} s" if self._is_silent else "it was cancelled"
            )
        except grpc.aio.AioRpcError as error:
            why = self._channel.explained(error)
        except (_ProtocolViolation, BadChunk) as violation:
            why = str(violation)
        finally:
            call.cancel()
            self._pump = None
            self._stop_watching()
            self._frames.drop()
            self._went_down(why)
        return why

    async def _read(self, call: ExecuteCall) -> None:
        read: Callable[[], Awaitable[Any]] = call.read
        while (response := await read()) is not grpc.aio.EOF:
            self._heard_at = self._clock.now()
            response, payloads = response if type(response) is CutFrame else (response, ())
            if response.WhichOneof("frame") == "heartbeat":
                self._answer_heartbeat(call, response.heartbeat)
            else:
                self._handle(response, payloads)
            del response, payloads  # not to be kept until the next one comes

    def _handle(self, response: Response, payloads: Sequence[bytes] = ()) -> None:
        """`payloads`: those that are not in the frame, of its only batch, or its chunk."""
        replica, post = self._replica, self._dispatcher.post
        match response.WhichOneof("frame"):
            case "results":
                self._complete(response, payloads)
            case "opened" if not self._up:
                self._open(response.opened, convert.capacity_from_wire(response.capacity))
            case "refused":
                refused = response.refused
                ids, load = self._ids_of(refused.runs, "refused"), convert.capacity_from_wire(response.capacity)
                post(RunsRefused(replica, ids, from_wire(refused.failure), load))
                self._frames.answered()
            case "slots":
                slots = response.slots
                post(SlotOperationsAnswered(replica, convert.slot_answers_of(slots), _capacity_of(response)))
            case "reconciled":
                for session_id, epoch, found in convert.found_of(response.reconciled):
                    post(SessionReconciled(replica, session_id, epoch, found))
            case "stopped":
                post(LanesStopped(replica, ranges_from_wire(response.stopped.runs)))
            case "take":
                post(RequestsTaken(replica, convert.taken_of(response.take, replica.owed)))
            case "service_times" | "handler_state":
                self._learn(response)
            case "chunk":
                chunk = response.chunk
                self._arrivals.add(chunk.call_id, chunk.offset, chunk.total, payloads[-1] if payloads else chunk.data)
            case "go_away":
                _log.info("replica drains", reason=(leave := response.go_away).message, **self._who())
                post(DrainAnnounced(replica))
                if leave.HasField("time_left") and not leave.time_left.ToNanoseconds():
                    self._half_close()
            case None if self._up and response.HasField("capacity"):
                post(CapacityReported(replica, convert.capacity_from_wire(response.capacity)))
            case None:
                pass  # a frame of a newer replica
            case unexpected:
                raise _ProtocolViolation(f"router {VERSION} does not take the replica's frame {unexpected} here")

    def _learn(self, response: Response) -> None:
        """What the replica reports beside its capacity."""
        if response.WhichOneof("frame") == "service_times":
            times = convert.times_of(response.service_times)
            self._dispatcher.post(ServiceTimesReported(self._replica, times))
        else:
            self._dispatcher.post(convert.handler_state_of(self._replica, response.handler_state))

    def _open(self, opened: replica_service_pb2.ExecuteOpened, capacity: ReportedCapacity) -> None:
        self._up = True
        self._frames.link_up()
        _log.info("replica linked", **self._who())
        methods, tensors = opened.methods[:MAX_METHODS], convert.tensors_of(opened.tensors)
        outlines = fitting(
            MethodOutline(it.method, it.yields, it.schema, it.prefix_argument, it.prefix_position)
            for it in opened.outlines
        )
        self._dispatcher.post(LinkOpened(self._replica, capacity, self._stream_id, methods, outlines, tensors))
        self._report.on_change()

    def _complete(self, response: Response, cut: Sequence[bytes]) -> None:
        frame = response.results
        self._dispatcher.counts.replica_frames[self._replica.backend.name, DIRECTION_IN] += 1
        if problem := convert.results_problem(frame.batches):
            raise _ProtocolViolation(problem)
        brings_values = any(batch.partial for batch in frame.batches)
        payloads_of = partial(self._payloads_of, cut)
        results = convert.results_of(frame, payloads_of)
        # Most frames bring nothing else.
        failures = self._failures_of(response) if frame.errors else ()
        values = convert.values_of(frame, payloads_of) if brings_values else ()
        for run_ids, _ in failures:
            self._arrivals.drop(run_ids)
        done = self._ids_of(frame.done, "ended") if frame.done else None
        self._dispatcher.post(RunsCompleted(self._replica, results, failures, _capacity_of(response), done, values))
        self._frames.answered()

    def _payloads_of(self, cut: Sequence[bytes], batch: call_pb2.ResultBatch) -> Sequence[Payload]:
        """The payloads of a batch, including those that arrived in chunks. `cut`: they, if they are not in it."""
        if not batch.chunked_sizes:
            return cut or payloads_of(batch)
        payloads: list[Payload] = list(cut or batch.payloads)
        if lost := self._arrivals.put(ids_of_results(batch), batch.chunked_sizes, payloads):
            raise BadChunk("chunked_sizes", f"the payload of run {lost[0]} has not come")
        return payloads

    def _failures_of(self, response: Response) -> Sequence[Failures]:
        self._count((each for errors in response.results.errors for each in errors.calls), "have failed")
        return convert.failures_of(response)

    def _ids_of(self, ranges: Iterable[call_pb2.IdRange], what: str) -> list[int]:
        self._count(ranges, what)
        return ids_from_wire(ranges)

    def _count(self, ranges: Iterable[call_pb2.IdRange], what: str) -> None:
        """The run ids in all ranges of a frame, which a few bytes could make endless."""
        count = sum(max(0, each.last - each.first + 1) for each in ranges)
        if count > (holds := self._replica.owed):
            raise _ProtocolViolation(f"the replica reports that {count} calls {what}, and has {holds}")

    # -- signs of life ---------------------------------------------------------------------------------------------

    def _answer_heartbeat(self, call: ExecuteCall, heartbeat: call_pb2.Heartbeat) -> None:
        """The echo is what lets the replica start runs. One that beats is expected to go on doing so."""
        self._frames.echo(heartbeat.stamp)
        if self._watch is None:
            self._is_silent = False
            self._watch = asyncio.get_running_loop().call_later(SILENCE_S, self._listen, call)

    def _listen(self, call: ExecuteCall) -> None:
        left_s = self._heard_at + SILENCE_S - self._clock.now()
        if left_s > 0:
            self._watch = asyncio.get_running_loop().call_later(left_s, self._listen, call)
        else:
            self._is_silent = True
            call.cancel()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _went_down(self, why: str) -> None:
        if not self._up:
            return
        self._up = False
        log = _log.info if self._closing or self._replica.draining else _log.warning
        log("replica link ended", reason=why, unanswered=self._replica.owed, **self._who())
        if not self._is_closed:
            self._dispatcher.post(LinkLost(self._replica, why))
        self._report.on_change()

    # -- frames ----------------------------------------------------------------------------------------------------

    def _opening(self) -> Request:
        replica_id, incarnation = self._replica.key
        self._stream_id = new_id(STREAM_ID_BYTES)
        return Request(
            open=replica_service_pb2.OpenExecute(
                router_id=self._router_id,
                replica_id=replica_id,
                incarnation=incarnation,
                stream_id=self._stream_id,
            )
        )

    def _half_close(self) -> None:
        """Half-closes: the replica ends the stream once it has answered, and handed back, everything.

        This waits until the replica needs no more: until then acknowledgements and questions go to it as before.
        If the replica alone ended the stream, runs that were still on their way would be lost with it.
        """
        self._leaving = True
        self._frames.hurry()
        if self._pump is not None:
            self._pump.close()

    def _wake(self) -> None:
        if self._pump is not None:
            self._pump.wake()

    def _who(self) -> dict[str, str]:
        return {"replica": self._replica.replica_id, "backend": self._replica.backend.name}


def _capacity_of(response: Response) -> ReportedCapacity | None:
    """The replica's load, if the frame has it."""
    return convert.capacity_from_wire(response.capacity) if response.HasField("capacity") else None
