"""The router's gRPC edge for leased slots: validates, converts, hands on to the shell, maps failures.

Owner: the app registers one instance.
"""

from __future__ import annotations

from typing import Any

import grpc

from router_service import convert
from router_service.core.commands import DeliverDone, DeliverResults
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.slots.slot import Dispatch, Release, Renew
from router_service.shell.clients.handed_metadata import HandedMetadata
from router_service.shell.clients.slot_calls import UnarySlotOperations
from slotmesh.endpoint_names import endpoint_mistake, overlong_endpoint
from slotmesh.errors import Failure
from slotmesh.security.current import caller_name, of_caller
from slotmesh.security.limits import callable_endpoints, endpoint_refusal, slot_refusal
from slotmesh.slots.requests import token_of, ttl_of
from slotmesh.status import abort
from slotmesh.v1 import slot_service_pb2, slot_service_pb2_grpc
from slotmesh.wire.chunks import joined
from slotmesh.wire.limits import MAX_INLINE_BYTES

Context = grpc.aio.ServicerContext[Any, Any]
NOTHING_HANDED = HandedMetadata()


class RouterSlotServicer(slot_service_pb2_grpc.SlotServiceServicer):
    """Slots of any replica, whichever router has reserved them."""

    def __init__(self, slots: UnarySlotOperations, handed: HandedMetadata = NOTHING_HANDED) -> None:
        """`handed`: which metadata of rpcs handlers get."""
        self._slots = slots
        self._handed = handed

    async def ReserveSlot(
        self, request: slot_service_pb2.ReserveSlotRequest, context: Context
    ) -> slot_service_pb2.ReserveSlotResponse:
        """Waits for a free slot and leases it."""
        failure = endpoint_mistake(request.endpoint) or endpoint_refusal(request.endpoint)
        reservation = failure or convert.reservation_from_wire(request, caller_name())
        if isinstance(reservation, Failure):
            await abort(context, reservation)
        request_id = of_caller(request.request_id)
        slot = await self._slots.reserve(context.peer(), request.endpoint, *reservation, request_id)
        if isinstance(slot, Failure):
            await abort(context, slot)
        return slot_service_pb2.ReserveSlotResponse(slot=convert.slot_to_wire(slot))

    async def RenewSlot(
        self, request: slot_service_pb2.RenewSlotRequest, context: Context
    ) -> slot_service_pb2.RenewSlotResponse:
        """Prolongs a lease."""
        key = _giver_of(request.token)
        if isinstance(key, Failure):
            await abort(context, key)
        ttl_s = ttl_of(request)
        if isinstance(ttl_s, Failure):
            await abort(context, ttl_s)
        op = Renew(token=request.token, ttl_s=ttl_s, identity=caller_name(), endpoints=callable_endpoints())
        slot = await self._slots.renew(context.peer(), key, op)
        if isinstance(slot, Failure):
            await abort(context, slot)
        return slot_service_pb2.RenewSlotResponse(slot=convert.slot_to_wire(slot))

    async def ReleaseSlot(
        self, request: slot_service_pb2.ReleaseSlotRequest, context: Context
    ) -> slot_service_pb2.ReleaseSlotResponse:
        """Gives a slot back."""
        key = _giver_of(request.token)
        if isinstance(key, Failure):
            await abort(context, key)
        op = Release(token=request.token, identity=caller_name(), endpoints=callable_endpoints())
        released = await self._slots.release(context.peer(), key, op)
        if isinstance(released, Failure):
            await abort(context, released)
        return slot_service_pb2.ReleaseSlotResponse(ongoing=released.ongoing, max_ongoing=released.max_ongoing)

    async def Dispatch(
        self, request: slot_service_pb2.DispatchRequest, context: Context
    ) -> slot_service_pb2.DispatchResponse:
        """Runs a call in a reserved slot."""
        key = overlong_endpoint(request.endpoint) or slot_refusal(request.endpoint) or _giver_of(request.token)
        if isinstance(key, Failure):
            await abort(context, key)
        self._handed.take(context, request.options)
        options = convert.dispatch_from_wire(request, streaming=False)
        if isinstance(options, Failure):
            await abort(context, options)
        into = _into(request)
        outcome = await self._slots.dispatch(context.peer(), key, options, request.payload, into)
        if isinstance(outcome, DeliverResults) and (size := len(outcome.payloads[0])) > MAX_INLINE_BYTES:
            outcome = convert.result_too_large(size)
        if isinstance(outcome, Failure):
            await abort(context, outcome)
        if isinstance(outcome, DeliverDone):
            return slot_service_pb2.DispatchResponse()
        return slot_service_pb2.DispatchResponse(
            payload=joined(outcome.payloads[0]),
            content_type=outcome.content_type,
            backend=outcome.replica.backend.name,
            replica_id=outcome.replica.replica_id,
        )

    async def DispatchStreaming(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: slot_service_pb2.DispatchStreamingRequest, context: Context
    ) -> None:
        """Runs a call in a reserved slot, and passes on each value that its handler yields."""
        key = overlong_endpoint(request.endpoint) or slot_refusal(request.endpoint) or _giver_of(request.token)
        if isinstance(key, Failure):
            await abort(context, key)
        self._handed.take(context, request.options)
        options = convert.dispatch_from_wire(request, streaming=True)
        if isinstance(options, Failure):
            await abort(context, options)

        async def write(payload: bytes, content_type: str, backend: str, replica_id: str) -> None:
            response = slot_service_pb2.DispatchStreamingResponse(
                payload=payload, content_type=content_type, backend=backend, replica_id=replica_id
            )
            await context.write(response)

        into = _into(request)
        failure = await self._slots.stream(context.peer(), key, options, request.payload, into, write)
        if failure is not None:
            await abort(context, failure)


def _into(request: slot_service_pb2.DispatchRequest | slot_service_pb2.DispatchStreamingRequest) -> Dispatch:
    return Dispatch(
        token=request.token, endpoint=request.endpoint, identity=caller_name(), endpoints=callable_endpoints()
    )


def _giver_of(text: str) -> ReplicaKey | Failure:
    """The replica that has given the slot, or why there is none."""
    token = token_of(text)
    return token if isinstance(token, Failure) else token.replica_key
