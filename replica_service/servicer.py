"""The gRPC services of a replica: streams of routers, leased slots, and direct streams of clients.

Purpose: validates, converts, calls the shell and maps failures, with the same checks as routers.
Invariants: streams are served only once the handler is constructed. A stream must begin with `open`; one that names
another replica, or for routers another incarnation, is refused.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from replica_service.convert.runs import NOT_OPENED, STARTING
from replica_service.convert.slots import Granted, Issuer, released_to_wire, slot_call_options
from replica_service.shell.engine import Engine
from replica_service.shell.links.attach_stream import AttachRequest, AttachStream
from replica_service.shell.links.direct_slots import RETRY_DELAY_S, DirectSlots, ReservationTerms, WriteValue
from replica_service.shell.links.router_stream import ExecuteRequest, Response, RouterStream
from slotmesh.calls.call_options import GIVES_VALUES, CallRpc
from slotmesh.convert.call_options import options_failure, refused_option
from slotmesh.convert.slot_requests import reservation_failure, ttl_of
from slotmesh.errors import Failure, Reason
from slotmesh.internal.v1 import replica_service_pb2, replica_service_pb2_grpc
from slotmesh.logs import get_logger
from slotmesh.names import endpoint_failure, overlong_endpoint
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.identity import caller_name
from slotmesh.security.rpc_roles import callable_endpoints, endpoint_refusal, slot_refusal
from slotmesh.server.call_values import failed, identity_of, payload_of, put_output, reservation_identity
from slotmesh.spec.rules import show
from slotmesh.status import abort, to_exception
from slotmesh.transport.duplex import read_request
from slotmesh.v1 import call_pb2, direct_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
ValueT = TypeVar("ValueT")
_log = get_logger(__name__)


class ReplicaSlotServicer(slot_service_pb2_grpc.SlotServiceServicer):
    """Serves leased slots of this replica to clients that are connected to it directly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = StepQueue()
        """JSON arguments and results are converted in steps."""
        self._slots: DirectSlots | None = None
        self._issuer = Issuer(clock)

    def serve(self, engine: Engine) -> None:
        """Begins to serve: the handler has been constructed."""
        self._slots = DirectSlots(engine, self._clock)
        self._issuer = engine.slots.issuer

    async def ReserveSlot(
        self, request: slot_service_pb2.ReserveSlotRequest, context: Context
    ) -> slot_service_pb2.ReserveSlotResponse:
        """Waits for a free slot and leases it."""
        slots = self._ready()
        failure = endpoint_failure(request.endpoint) or endpoint_refusal(request.endpoint)
        failure = failure or reservation_failure(request) or options_failure(request.options)
        if failure := failure or self._misses(request):
            await abort(context, failure)
        terms = ReservationTerms(request.endpoint, _value_of(ttl_of(request)), caller_name())
        wait_s = _wait_s(request.options, context)
        granted = _value_of(await slots.reserve(terms, wait_s, reservation_identity(request)))
        return slot_service_pb2.ReserveSlotResponse(slot=self._to_wire(granted))

    async def RenewSlot(
        self, request: slot_service_pb2.RenewSlotRequest, context: Context
    ) -> slot_service_pb2.RenewSlotResponse:
        """Prolongs a lease."""
        slots = self._ready()
        secret = _value_of(self._issuer.secret_of(request.token, caller_name(), callable_endpoints()))
        granted = _value_of(slots.renew(secret, _value_of(ttl_of(request))))
        return slot_service_pb2.RenewSlotResponse(slot=self._to_wire(granted))

    async def ReleaseSlot(
        self, request: slot_service_pb2.ReleaseSlotRequest, context: Context
    ) -> slot_service_pb2.ReleaseSlotResponse:
        """Releases a slot."""
        slots = self._ready()
        secret = _value_of(self._issuer.secret_to_release(request.token, caller_name(), callable_endpoints()))
        released = slots.release(secret)
        return released_to_wire(released)

    async def Dispatch(
        self, request: slot_service_pb2.DispatchRequest, context: Context
    ) -> slot_service_pb2.DispatchResponse:
        """Runs a call in a reserved slot."""
        response = slot_service_pb2.DispatchResponse(backend=self._issuer.backend, replica_id=self._issuer.replica_id)

        async def write(payload: bytes, content_type: str) -> None:
            _check(await put_output(response, request, payload, content_type, self._turns))

        await self._dispatch(request, context, write, CallRpc.DISPATCH)
        return response

    async def DispatchStreaming(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: slot_service_pb2.DispatchStreamingRequest, context: Context
    ) -> None:
        """Runs a call in a reserved slot, and sends each value that its handler yields."""
        backend, replica_id = self._issuer.backend, self._issuer.replica_id

        async def write(payload: bytes, content_type: str) -> None:
            nonlocal backend, replica_id
            response = slot_service_pb2.DispatchStreamingResponse(backend=backend, replica_id=replica_id)
            _check(await put_output(response, request, payload, content_type, self._turns))
            backend = replica_id = ""
            await context.write(response)

        await self._dispatch(request, context, write, CallRpc.DISPATCH_STREAMING)

    async def _dispatch(
        self,
        request: slot_service_pb2.DispatchRequest | slot_service_pb2.DispatchStreamingRequest,
        context: Context,
        write: WriteValue,
        rpc: CallRpc,
    ) -> None:
        slots = self._ready()
        if failure := overlong_endpoint(request.endpoint) or slot_refusal(request.endpoint):
            await abort(context, failure)
        may_repeat = bool(request.request_id)
        found = self._issuer.secret_of(request.token, caller_name(), callable_endpoints(), may_repeat=may_repeat)
        secret = _value_of(found)
        _check(refused_option(request.options, rpc))
        payload = _value_of(await payload_of(request, self._turns))
        identity = _value_of(identity_of(request))
        _check(options_failure(request.options))
        wait_s = _wait_s(request.options, context)
        if rpc in GIVES_VALUES:
            request.options.stream.each_value = True
        options = _value_of(slot_call_options(request.options))
        failure = await slots.dispatch(secret, request.endpoint, options, payload, wait_s, write, identity)
        if failure is not None:
            await abort(context, failed(failure, request))

    def _ready(self) -> DirectSlots:
        """Raises BackendUnavailable before the handler is constructed."""
        if self._slots is None:
            raise to_exception(STARTING)
        return self._slots

    def _misses(self, request: slot_service_pb2.ReserveSlotRequest) -> Failure | None:
        """Returns the failure if the request excludes this replica."""
        here = self._issuer.replica_id
        if request.replica_id not in ("", here):
            message = f"replica_id: this is replica {here}, and leases no slots of {show(request.replica_id)!r}"
            return Failure(reason=Reason.REPLICA_GONE, message=message, metadata={"replica_id": request.replica_id})
        if here in request.excluded_replica_ids:
            message = f"excluded_replica_ids: this is replica {here}, and it leases no slots of others"
            return Failure(reason=Reason.NO_SLOT, message=message, retry_delay_s=RETRY_DELAY_S)
        return None

    def _to_wire(self, granted: Granted) -> slot_service_pb2.Slot:
        return self._issuer.to_wire(granted.slot, granted.ongoing)


def _wait_s(options: call_pb2.CallOptions, context: Context) -> float | None:
    """How long the caller waits for its response; None if unknown."""
    timeouts = [options.timeout.ToNanoseconds() / 1e9] if options.HasField("timeout") else []
    left_s: float | None = context.time_remaining()  # type: ignore[assignment, unused-ignore]  # None: no deadline
    return min(timeouts if left_s is None else [*timeouts, left_s], default=None)


def _check(failure: Failure | None) -> None:
    """Raises the exception of a failure."""
    if failure is not None:
        raise to_exception(failure)


def _value_of(value: ValueT | Failure) -> ValueT:
    """Returns the value; raises the exception of a failure."""
    if isinstance(value, Failure):
        raise to_exception(value)
    return value


class DirectServicer(direct_service_pb2_grpc.DirectServiceServicer):
    """Serves direct streams of clients that hold slots of this replica."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._engine: Engine | None = None
        self._streams: set[AttachStream] = set()

    def serve(self, engine: Engine) -> None:
        """Begins to serve: the handler has been constructed."""
        self._engine = engine
        engine.at_drain.append(self._go_away)

    async def Attach(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        request = await read_request(context)
        if request is None:
            return
        engine = self._check(request)
        stream = AttachStream(engine, context, self._clock)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def end_streams(self) -> None:
        """Ends all streams, at the end of the drain."""
        for stream in self._streams:
            stream.end()

    def _go_away(self) -> None:
        for stream in self._streams:
            stream.go_away()

    def _check(self, request: AttachRequest) -> Engine:
        """Returns the engine if the first frame is valid.

        Raises:
            BadRequest: the first frame is not `open`.
            BackendUnavailable: the handler is not constructed yet.
            ReplicaGone: the client names another replica.
        """
        if request.WhichOneof("frame") != "open":
            raise to_exception(NOT_OPENED)
        if self._engine is None:
            raise to_exception(STARTING)
        here, meant = self._engine.slots.issuer.replica_id, request.open.replica_id
        if meant not in ("", here):
            message = f"open.replica_id: this is replica {here}; the client means {show(meant)!r}"
            raise to_exception(Failure(reason=Reason.REPLICA_GONE, message=message, metadata={"replica_id": meant}))
        return self._engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """The names of this replica."""

    replica_id: str
    incarnation: str
    """New at each start of a process."""
    backend: str


class ReplicaServicer(replica_service_pb2_grpc.ReplicaServiceServicer):
    """Serves streams of routers."""

    def __init__(self, identity: ReplicaIdentity, clock: Clock) -> None:
        self._identity = identity
        self._clock = clock
        self._streams: set[RouterStream] = set()
        self._stream_ended = asyncio.Event()
        self._is_ending = False
        self.engine: Engine | None = None
        """Set once the handler has been constructed."""

    async def Execute(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: grpc.aio.ServicerContext[ExecuteRequest, Response]
    ) -> None:
        request = await read_request(context)
        if request is None:
            return
        router_id = self._check(request)
        if self.engine is None:
            raise to_exception(STARTING)
        stream = RouterStream(self.engine, context, self._clock, request.open.stream_id)
        self._streams.add(stream)
        if self._is_ending:
            stream.dismiss()
        _log.info("router linked", router=router_id)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._stream_ended.set()
            _log.info("router link ended", router=router_id)

    async def end_streams(self, grace_s: float, *, answers: bool = True) -> None:
        """Requests a half-close of each router, and ends the streams that are still open after `grace_s`.

        Ending a stream before its router has half-closed would lose runs in transit. `answers`: whether all calls have
        their outcome. If not, streams are ended after the half-close: routers then fail the open calls with
        executed = unknown.
        """
        self._is_ending = True
        for stream in self._streams:
            stream.dismiss()
        try:
            async with asyncio.timeout(grace_s):
                if not answers:
                    await asyncio.gather(*[stream.heard_out() for stream in self._streams])
                    for stream in self._streams:
                        stream.end()
                while self._streams:
                    self._stream_ended.clear()
                    await self._stream_ended.wait()
        except TimeoutError:
            _log.warning("routers did not end their streams in time", streams=len(self._streams), grace_s=grace_s)
            for stream in self._streams:
                stream.end()

    def _check(self, request: ExecuteRequest) -> str:
        """Returns the router's id if the first frame is valid.

        Raises:
            BadRequest: the first frame is not `open`.
            ReplicaGone: the router names another replica, or an earlier incarnation.
        """
        if request.WhichOneof("frame") != "open":
            raise to_exception(NOT_OPENED)
        opening: replica_service_pb2.OpenExecute = request.open
        meant = (opening.replica_id, opening.incarnation)
        if meant != (self._identity.replica_id, self._identity.incarnation):
            raise to_exception(
                Failure(
                    reason=Reason.REPLICA_GONE,
                    message=(
                        f"this is replica {self._identity.replica_id}, incarnation {self._identity.incarnation};"
                        f" the router means {show(opening.replica_id)!r}, incarnation {show(opening.incarnation)!r}"
                    ),
                    metadata={"replica_id": self._identity.replica_id},
                )
            )
        return opening.router_id
