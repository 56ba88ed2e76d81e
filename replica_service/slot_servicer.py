"""The gRPC edge of a replica for leased slots, for clients that are connected to the replica itself.

Purpose: validates, converts, hands on to the shell, maps failures, as routers do, and with the same checks.
Owner: the app.
"""

from __future__ import annotations

from typing import Any, TypeVar

import grpc

from replica_service import convert
from replica_service.convert import Granted
from replica_service.shell.engine import Engine
from replica_service.shell.links.direct_link import WriteValue
from replica_service.shell.links.direct_slots import RETRY_DELAY_S, DirectSlots
from replica_service.shell.links.slot_requests import ReservationTerms
from slotmesh.call_options.rules import option_mistake
from slotmesh.endpoint_names import endpoint_mistake, overlong_endpoint
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.clock import Clock
from slotmesh.security.current import caller_name, of_caller
from slotmesh.security.limits import callable_endpoints, endpoint_refusal, slot_refusal
from slotmesh.slots.requests import dispatch_mistake, reservation_mistake, ttl_of
from slotmesh.spec.rules import show
from slotmesh.status import abort, to_exception
from slotmesh.v1 import call_pb2, slot_service_pb2, slot_service_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
ValueT = TypeVar("ValueT")


class ReplicaSlotServicer(slot_service_pb2_grpc.SlotServiceServicer):
    """Slots of this replica, whichever caller has reserved them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots: DirectSlots | None = None
        self._issuer = convert.Issuer(clock)

    def serve(self, engine: Engine) -> None:
        """The handler has been constructed."""
        self._slots = DirectSlots(engine, self._clock)
        self._issuer = engine.slots.issuer

    async def ReserveSlot(
        self, request: slot_service_pb2.ReserveSlotRequest, context: Context
    ) -> slot_service_pb2.ReserveSlotResponse:
        """Waits for a free slot and leases it."""
        slots = self._ready()
        failure = endpoint_mistake(request.endpoint) or endpoint_refusal(request.endpoint)
        failure = failure or reservation_mistake(request) or option_mistake(request.options)
        if failure := failure or self._misses(request):
            await abort(context, failure)
        wish = ReservationTerms(request.endpoint, _sound(ttl_of(request)), caller_name())
        patience_s = _patience_s(request.options, context)
        granted = _sound(await slots.reserve(wish, patience_s, of_caller(request.request_id)))
        return slot_service_pb2.ReserveSlotResponse(slot=self._to_wire(granted))

    async def RenewSlot(
        self, request: slot_service_pb2.RenewSlotRequest, context: Context
    ) -> slot_service_pb2.RenewSlotResponse:
        """Prolongs a lease."""
        slots = self._ready()
        secret = _sound(self._issuer.secret_of(request.token, caller_name(), callable_endpoints()))
        granted = _sound(slots.renew(secret, _sound(ttl_of(request))))
        return slot_service_pb2.RenewSlotResponse(slot=self._to_wire(granted))

    async def ReleaseSlot(
        self, request: slot_service_pb2.ReleaseSlotRequest, context: Context
    ) -> slot_service_pb2.ReleaseSlotResponse:
        """Gives a slot back."""
        slots = self._ready()
        secret = _sound(self._issuer.secret_to_release(request.token, caller_name(), callable_endpoints()))
        released = slots.release(secret)
        return convert.released_to_wire(released)

    async def Dispatch(
        self, request: slot_service_pb2.DispatchRequest, context: Context
    ) -> slot_service_pb2.DispatchResponse:
        """Runs a call in a reserved slot."""
        response = slot_service_pb2.DispatchResponse(backend=self._issuer.backend, replica_id=self._issuer.replica_id)

        async def write(payload: bytes, content_type: str) -> None:
            response.payload, response.content_type = payload, content_type

        await self._dispatch(request, context, write, streaming=False)
        return response

    async def DispatchStreaming(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: slot_service_pb2.DispatchStreamingRequest, context: Context
    ) -> None:
        """Runs a call in a reserved slot, and passes on each value that its handler yields."""
        backend, replica_id = self._issuer.backend, self._issuer.replica_id

        async def write(payload: bytes, content_type: str) -> None:
            nonlocal backend, replica_id
            response = slot_service_pb2.DispatchStreamingResponse(
                payload=payload, content_type=content_type, backend=backend, replica_id=replica_id
            )
            backend = replica_id = ""
            await context.write(response)

        await self._dispatch(request, context, write, streaming=True)

    async def _dispatch(
        self,
        request: slot_service_pb2.DispatchRequest | slot_service_pb2.DispatchStreamingRequest,
        context: Context,
        write: WriteValue,
        *,
        streaming: bool,
    ) -> None:
        slots = self._ready()
        if failure := overlong_endpoint(request.endpoint) or slot_refusal(request.endpoint):
            await abort(context, failure)
        secret = _sound(self._issuer.secret_of(request.token, caller_name(), callable_endpoints()))
        if failure := dispatch_mistake(request, streaming=streaming) or option_mistake(request.options):
            await abort(context, failure)
        patience_s = _patience_s(request.options, context)
        request.options.streaming = streaming
        options = _sound(convert.slot_call_options(request.options))
        failure = await slots.dispatch(secret, request.endpoint, options, request.payload, patience_s, write)
        if failure is not None:
            await abort(context, failure)

    def _ready(self) -> DirectSlots:
        """Raises BackendUnavailable before the handler is there."""
        if self._slots is None:
            raise to_exception(
                Failure(reason=Reason.BACKEND_UNAVAILABLE, message="the replica is starting", retry_delay_s=1.0)
            )
        return self._slots

    def _misses(self, request: slot_service_pb2.ReserveSlotRequest) -> Failure | None:
        """Why no slot of this replica will do, if none will."""
        here = self._issuer.replica_id
        if request.replica_id not in ("", here):
            message = f"replica_id: this is replica {here}, and gives no slots of {show(request.replica_id)!r}"
            return Failure(reason=Reason.REPLICA_GONE, message=message, metadata={"replica_id": request.replica_id})
        if here in request.excluded_replica_ids:
            message = f"excluded_replica_ids: this is replica {here}, and it gives no slots of others"
            return Failure(reason=Reason.NO_SLOT, message=message, retry_delay_s=RETRY_DELAY_S)
        return None

    def _to_wire(self, granted: Granted) -> slot_service_pb2.Slot:
        return self._issuer.to_wire(granted.slot, granted.ongoing)


def _patience_s(options: call_pb2.CallOptions, context: Context) -> float | None:
    """How long the caller waits for its answer; None where that is not known."""
    told = [options.timeout.ToNanoseconds() / 1e9] if options.HasField("timeout") else []
    left_s: float | None = context.time_remaining()  # type: ignore[assignment, unused-ignore]  # None: no deadline
    return min(told if left_s is None else [*told, left_s], default=None)


def _sound(value: ValueT | Failure) -> ValueT:
    """What is no failure; a failure is raised."""
    if isinstance(value, Failure):
        raise to_exception(value)
    return value
