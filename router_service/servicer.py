"""The router's gRPC edge: validates, converts, hands on to the shell, maps failures.

Owner: the app registers one instance of each servicer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import grpc

from router_service import convert
from router_service.convert.sessions import opening_problem
from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverDone, DeliverResults
from router_service.core.limits.quotas import CallerQuotas
from router_service.core.limits.unread_results import Unread
from router_service.core.rosters import SessionConnection
from router_service.core.routing.catalog import callable_methods, reported_outlines
from router_service.shell.clients.broadcasts import BroadcastParts, ClientBroadcasts
from router_service.shell.clients.connected_streams import Alternates, Brake, ConnectedSessions
from router_service.shell.clients.stream import ClientStream
from router_service.shell.clients.unary import HandedMetadata, UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.trace_context import MAX_HTTP_BYTES, TraceContext
from slotmesh.convert.specification import duration_to_wire
from slotmesh.errors import Failure, Reason, bad_field
from slotmesh.logs import get_logger
from slotmesh.names import endpoint_failure, overlong_endpoint
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.audit import AUDIT
from slotmesh.security.identity import caller, current_rpc, of_caller, quota_name
from slotmesh.security.rpc_roles import endpoint_refusal, known_endpoints
from slotmesh.server.call_values import failed, identity_of, payload_of, put_output
from slotmesh.status import abort
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.streams.spliced_frames import CutFrame, Paths
from slotmesh.transport.duplex import read_request, run_stream, write_as_bytes, writing_bytes
from slotmesh.transport.open_streams import stream_of
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from slotmesh.version import VERSION

StreamRequest = router_service_pb2.StreamCallsRequest
StreamResponse = router_service_pb2.StreamCallsResponse
Context = grpc.aio.ServicerContext[Any, Any]

ENDS_IN_A_TURN = 8
"""Streams cleaned up per turn of the event loop: a connection that is cut can have thousands."""
NOTHING_HANDED = HandedMetadata()

_PAYLOADS: Final[Paths] = (
    (
        StreamRequest.CALLS_FIELD_NUMBER,
        router_service_pb2.CallFrame.BATCHES_FIELD_NUMBER,
        router_service_pb2.CallBatch.PAYLOADS_FIELD_NUMBER,
    ),
    (StreamRequest.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER),
)

REFUSES_AT_MOST_S: Final = 2.0
"""How long single calls are refused, at most, before the server stops: a client goes elsewhere after the first one."""
QUIET_S: Final = 0.2
"""The server stops once no single call has arrived for this long, and for that many turns of the event loop."""
QUIET_TURNS: Final = 10

_log = get_logger(__name__)


class RouterServicer(router_service_pb2_grpc.RouterServiceServicer):
    """Calls, one at a time or on streams."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        unary: UnaryCalls,
        router_id: str,
        window: Window,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        *,
        turns: StepQueue | None = None,
        handed: HandedMetadata = NOTHING_HANDED,
        quotas: CallerQuotas | None = None,
    ) -> None:
        """`window` is granted to each stream; its calls may have payloads of `max_payload_bytes`, in chunks.

        Large frames are processed in `turns`. `handed`: the rpc metadata that handlers get. `quotas`: of each caller.
        """
        self.idle_heartbeat_s = 0.0
        """Maximum interval of heartbeats of sessions without calls, seconds. 0: the same as for all others."""
        self._quotas = quotas or CallerQuotas()
        self._handed = handed
        self._max_payload_bytes = max_payload_bytes
        self._dispatcher = dispatcher
        self._unary = unary
        self._broadcasts = ClientBroadcasts(dispatcher, unary)
        self._router_id = router_id
        self._window = window
        self._turns = turns or StepQueue()
        self.unread = Unread(dispatcher.clock.now, brake=Brake(dispatcher, self._release))
        """Results that all streams hold for their clients."""
        self._ends = StepQueue(ENDS_IN_A_TURN)
        """Clean-up of streams that were cut off, perhaps all of one connection."""
        self._streams: dict[ClientStream, bool] = {}
        """Open streams, and whether their clients connected to the port for tokens."""
        self._sessions = ConnectedSessions(dispatcher, self._quotas.sessions)
        self._is_leaving = False
        self.alternates = Alternates(lambda: dispatcher.scheduler.table)
        """Other routers for clients of this one."""

    async def drain(self, message: str, grace_s: float) -> None:
        """Asks all clients to send no more calls; returns when all calls are answered, or after `grace_s`.

        Calls by rpcs of their own are taken until then, and refused for a moment: gRPC cancels those that arrive while
        its server stops, and no client could know that they were not executed.
        """
        self._is_leaving = True
        streams = dict(self._streams)
        for stream, by_token in streams.items():
            leave = call_pb2.GoAway(message=message, alternates=self.alternates.others(by_token=by_token))
            leave.time_left.FromNanoseconds(int(grace_s * 1e9))
            stream.say(StreamResponse(go_away=leave))
        try:
            async with asyncio.timeout(grace_s):
                await asyncio.gather(self._unary.idle(), *(stream.all_answered() for stream in streams))
        except TimeoutError:
            _log.warning("calls are still unanswered at the end of the grace; they are lost", grace_s=grace_s)
        self._unary.refusal = self._leaving()
        if self._unary.has_served:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSES_AT_MOST_S):
                    await self._no_call_arrives()

    async def _no_call_arrives(self) -> None:
        """Returns when no single call was refused for a while.

        The time alone shows nothing on a busy machine: calls may have waited all of it to be taken in.
        """
        refused, turns = self._unary.refused, 0
        while turns < QUIET_TURNS:
            await asyncio.sleep(QUIET_S / QUIET_TURNS)
            refused, turns = self._unary.refused, turns + 1 if refused == self._unary.refused else 0

    async def Call(self, request: router_service_pb2.CallRequest, context: Context) -> router_service_pb2.CallResponse:
        """One call."""
        endpoint = request.endpoint
        options, payload, trace = await self._checked(request, context, CallRpc.CALL)
        outcome = await self._unary.call(context.peer(), endpoint, options, payload, trace, context.time_remaining)
        if isinstance(outcome, DeliverResults) and (size := len(outcome.payloads[0])) > MAX_INLINE_BYTES:
            outcome = convert.result_too_large(size)
        if isinstance(outcome, Failure):
            await abort(context, failed(self._dispatcher.noted(outcome, endpoint), request))
        if isinstance(outcome, DeliverDone):
            return router_service_pb2.CallResponse()
        replica = outcome.replica
        response = router_service_pb2.CallResponse(backend=replica.backend.name, replica_id=replica.replica_id)
        failure = await put_output(response, request, joined(outcome.payloads[0]), outcome.content_type, self._turns)
        if failure is not None:
            await abort(context, self._dispatcher.noted(failure, endpoint))
        return response

    async def CallStreaming(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: router_service_pb2.CallStreamingRequest, context: Context
    ) -> None:
        """One call, and each value that its handler yields."""
        endpoint = request.endpoint
        options, payload, trace = await self._checked(request, context, CallRpc.CALL_STREAMING)

        async def write(payload: bytes, content_type: str, backend: str, replica_id: str) -> None:
            response = router_service_pb2.CallStreamingResponse(backend=backend, replica_id=replica_id)
            if failure := await put_output(response, request, payload, content_type, self._turns):
                await abort(context, self._dispatcher.noted(failure, endpoint))
            await context.write(response)

        failure = await self._unary.stream(
            context.peer(), endpoint, options, payload, write, trace, context.time_remaining
        )
        if failure is not None:
            await abort(context, failed(self._dispatcher.noted(failure, endpoint), request))

    async def Broadcast(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: router_service_pb2.BroadcastRequest, context: Context
    ) -> None:
        """One call for each replica, and the outcome of each."""
        endpoint = request.endpoint
        options, payload, trace = await self._checked(request, context, CallRpc.BROADCAST)
        parts = BroadcastParts(request, context.write, self._turns, lambda it: self._dispatcher.noted(it, endpoint))
        failure = await self._broadcasts.run(
            context.peer(),
            endpoint=endpoint,
            backend=request.backend,
            options=options,
            payload=payload,
            parts=parts,
            trace=trace,
            time_left=context.time_remaining,
        )
        if failure is not None:
            await abort(context, failed(self._dispatcher.noted(failure, endpoint), request))

    async def DescribeEndpoints(self, request: Any, context: Context) -> router_service_pb2.DescribeEndpointsResponse:
        """Endpoints and their methods."""
        if failure := overlong_endpoint(request.endpoint):
            await abort(context, failure)
        await self._dispatcher.first_table.wait_a_while()
        known = known_endpoints()
        topology = self._dispatcher.scheduler.topology
        found = [it for it in callable_methods(topology, request.endpoint) if known is None or it[0] in known]
        outlines = dict(reported_outlines(topology, [name for name, _ in found])) if request.with_schemas else {}
        return convert.described(found, outlines)

    @writing_bytes
    async def StreamCalls(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        """Ordered, batched calls with correlated replies."""
        opening = await read_request(context)
        if opening is None:
            return
        await self._dispatcher.first_table.wait_a_while()
        if failure := self._leaving() or opening_problem(opening) or endpoint_refusal(opening.open.endpoint):
            await abort(context, failure)
        open_stream = opening.open
        del opening
        session = await self._session_of(open_stream, context)
        if failure := self._leaving():  # the drain may have begun in the meantime
            await abort(context, failure)
        stream = ClientStream(
            open_stream.endpoint,
            _alone(open_stream.default_options),
            self._window,
            self._dispatcher,
            self.unread,
            write_as_bytes(context),
            session,
            features=open_stream.features,
            max_payload_bytes=self._max_payload_bytes,
            share=self._quotas.calls.share_of(quota_name()),
        )
        del open_stream  # free it: it may have thousands of ranges
        if session is not None and (failure := self._sessions.take_over(session, stream)):
            await abort(context, failure)
        if (opened := stream_of(context)) is not None:
            opened.is_busy = lambda: stream.is_busy
        by_token = self.alternates.came_by_token_port(context)
        stream.say(self._opened(session, by_token=by_token))
        self._dispatcher.attach(stream.caller, stream)
        counts = self._dispatcher.counts
        counts.streams += 1
        self._streams[stream] = by_token
        ended_in_order, is_cut = False, True
        try:
            failure = await run_stream(stream.pump, _converse(context, stream, self._turns))
            ended_in_order, is_cut = failure is None, False
        finally:
            if session is not None:
                self._sessions.ended(session, stream, in_order=ended_in_order)
            try:
                if is_cut:
                    await self._ends.next()
            finally:
                counts.streams -= 1
                self._streams.pop(stream, None)
                stream.ended()
                self._dispatcher.detach(stream.caller)
        if failure is not None:
            await abort(context, failure)

    async def _session_of(self, opening: router_service_pb2.OpenStream, context: Context) -> SessionConnection | None:
        """The connection of a session that a client opens. Ends the rpc if the caller may not open it."""
        session = await self._turns.take(convert.session_of(opening, self._window.calls, of_caller))
        if not isinstance(session, Failure):
            return session
        if session.reason is Reason.UNAUTHENTICATED:
            why = "the session was opened by another identity"
            AUDIT.denied(caller(), current_rpc(), session, context.peer(), why)
        return await abort(context, session)

    def _release(self) -> None:
        self.unread.release()

    async def _checked(
        self,
        request: router_service_pb2.CallRequest
        | router_service_pb2.CallStreamingRequest
        | router_service_pb2.BroadcastRequest,
        context: Context,
        rpc: CallRpc,
    ) -> tuple[RouterCallOptions, bytes, TraceContext | None]:
        """Options, payload and trace of a call, once there is a routing table. Ends the rpc of an invalid request."""
        endpoint, wire = request.endpoint, request.options
        if failure := endpoint_failure(endpoint) or endpoint_refusal(endpoint):
            return await abort(context, self._dispatcher.noted(failure, endpoint))
        payload = await payload_of(request, self._turns)
        trace = self._handed.take(context, wire, from_http=bool(getattr(request, "http_request", b"")))
        if isinstance(payload, Failure):
            return await abort(context, self._dispatcher.noted(payload, endpoint))
        identity = None if isinstance(request, router_service_pb2.BroadcastRequest) else identity_of(request)
        if isinstance(identity, Failure):
            return await abort(context, self._dispatcher.noted(identity, endpoint))
        mark = b""
        if isinstance(request, router_service_pb2.CallRequest) and request.http_request:
            if len(request.http_request) > MAX_HTTP_BYTES:
                too_long = bad_field("http_request", f"must be at most {MAX_HTTP_BYTES} bytes")
                return await abort(context, self._dispatcher.noted(too_long, endpoint))
            trace, mark = (trace or TraceContext(""))._replace(http=request.http_request), request.http_mark
        options = convert.options_of_rpc(wire, rpc, mark)
        if identity is not None and not isinstance(options, Failure):
            options = convert.with_request(options, identity)
        if isinstance(options, Failure):
            return await abort(context, self._dispatcher.noted(options, endpoint))
        await self._dispatcher.first_table.wait_a_while()
        return options, payload, trace

    def _leaving(self) -> Failure | None:
        """The failure of streams and calls that arrive after the go_away; None before it."""
        return Failure(reason=Reason.DRAINING, message="the router stops") if self._is_leaving else None

    def _opened(self, session: SessionConnection | None, *, by_token: bool) -> StreamResponse:
        table = self._dispatcher.scheduler.table
        roster = None
        if session is not None and table.revision:
            roster = convert.roster_to_wire(table.roster.version, session.owner_mark)
        return StreamResponse(
            opened=router_service_pb2.StreamOpened(
                router_id=self._router_id,
                version=VERSION,
                window=router_service_pb2.Window(calls=self._window.calls, bytes=self._window.bytes),
                alternates=self.alternates.others(by_token=by_token),
                max_payload_bytes=self._max_payload_bytes,
                roster=roster,
                idle_heartbeat=duration_to_wire(self.idle_heartbeat_s) if self.idle_heartbeat_s else None,
            )
        )


async def _converse(context: Context, stream: ClientStream, turns: StepQueue) -> Failure | None:
    """Serves the client until all is answered, or a newer connection takes over; returns the failure, if any."""
    with stream.fenced:
        return await _read(context, stream, turns)
    return stream.fenced.why


async def _read(context: Context, stream: ClientStream, turns: StepQueue) -> Failure | None:
    """Reads until half-close, then waits for the answers; returns the failure if a frame violates the protocol."""
    while (request := await read_request(context, _PAYLOADS)) is not None:
        request, payloads = request if type(request) is CutFrame else (request, ())
        match request.WhichOneof("frame"):
            case "calls":
                for failure in stream.accept(request.calls, payloads):
                    if failure is not None:
                        return failure
                    await turns.next()
            case "chunk":
                stream.upload(request.chunk, payloads)
            case "take":
                stream.take(request.take)
            case "cancel":
                for _ in stream.cancel(request.cancel):
                    await turns.next()
            case "ack":
                stream.acknowledge(request.ack.through_frame)
            case "roster":
                stream.know_roster(request.roster)
            case "heartbeat":
                stream.heard(request.heartbeat.stamp)
            case "open":
                return bad_field("open", "the stream is open already; open comes once")
            case unknown:
                why = f"the frame {unknown or 'of a newer protocol'} is not known to slotmesh {VERSION}"
                return Failure(reason=Reason.NOT_IMPLEMENTED, message=why)
        del request, payloads  # the latest frames of hundreds of idle clients would stay in memory
    await stream.finish()
    return None


def _alone(options: call_pb2.CallOptions) -> call_pb2.CallOptions:
    """A copy, because a part of a frame keeps all of it in memory."""
    (copy := call_pb2.CallOptions()).CopyFrom(options)
    return copy
