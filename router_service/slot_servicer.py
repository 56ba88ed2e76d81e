"""The router's gRPC edge for leased slots: validates, converts, passes on to the shell, maps failures.

Owner: the app registers one instance.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import grpc

from router_service import convert
from router_service.core.calls import Dispatch, LeasedSlot, Release, ReleasedSlot, Renew, Reserve, RouterCallOptions
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, DeliverSlot, Delivery
from router_service.core.events import CallDispatched, SlotAbandoned, SlotOperationRequested, SlotRequested
from router_service.core.rosters import ReplicaKey
from router_service.shell.clients.unary import (
    Answer,
    HandedMetadata,
    PendingAnswer,
    StreamedCall,
    UnaryCalls,
    WriteValue,
)
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.call_options import CallRpc
from slotmesh.calls.slot_tokens import parse_token
from slotmesh.convert.slot_requests import token_of, ttl_of
from slotmesh.errors import Failure
from slotmesh.names import endpoint_failure, overlong_endpoint
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.identity import caller_name
from slotmesh.security.rpc_roles import callable_endpoints, endpoint_refusal, slot_refusal
from slotmesh.server.call_values import failed, identity_of, payload_of, put_output, reservation_identity
from slotmesh.status import abort
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import slot_service_pb2, slot_service_pb2_grpc


class UnarySlotOperations:
    """Submits single operations on slots, each a caller of its own as unary calls are, and awaits their outcomes.

    Invariants: the operation of a caller that leaves is cancelled; a slot that was granted to it meanwhile is released
    immediately, unless a request id lets the caller repeat the request. When too much is pending, reservations are
    refused like calls; operations on granted slots, which free them, only at twice that number, because invented tokens
    cost memory too.
    """

    def __init__(self, dispatcher: Dispatcher, unary: UnaryCalls) -> None:
        """Operations count among the `unary` calls that are pending: the router waits for them when it stops."""
        self._dispatcher = dispatcher
        self._unary = unary

    async def reserve(
        self, peer: str, endpoint: str, options: RouterCallOptions, wanted: Reserve
    ) -> LeasedSlot | Failure:
        """A slot, as soon as one is granted; `peer` identifies the connection."""
        if failure := self._unary.full(peer=peer, tenant=options.tenant):
            return failure
        if options.slo_at is not None:
            options = convert.with_relative_slo(options, self._dispatcher.clock.time_of_day())
        await self._dispatcher.first_table.wait_a_while()
        pending = _PendingSlot()
        try:
            with self._unary.under_way(peer, pending, tenant=options.tenant) as caller:
                self._dispatcher.post(SlotRequested(caller, endpoint, options, wanted))
                return cast("LeasedSlot | Failure", await pending.outcome)
        except asyncio.CancelledError:
            if isinstance(pending.answer, LeasedSlot) and wanted.request is None:
                self.give_back(pending.answer)
            raise

    def give_back(self, slot: LeasedSlot) -> None:
        """No caller will get this slot."""
        token = parse_token(slot.token)
        if token is not None:
            self._dispatcher.post(SlotAbandoned(token.replica_key, slot.token))

    async def renew(self, peer: str, key: ReplicaKey, op: Renew) -> LeasedSlot | Failure:
        """The slot with its new lease; `key` is the replica that gave it."""
        return cast("LeasedSlot | Failure", await self._operate(peer, key, op))

    async def release(self, peer: str, key: ReplicaKey, op: Release) -> ReleasedSlot | Failure:
        """How loaded the replica is after it; `key` is the replica that gave the slot."""
        return cast("ReleasedSlot | Failure", await self._operate(peer, key, op))

    async def dispatch(
        self, peer: str, key: ReplicaKey, options: RouterCallOptions, payload: bytes, into: Dispatch
    ) -> Answer:
        """The outcome of one call into a slot; `key` is the replica that gave it."""
        if failure := self._unary.full(len(payload), for_slots=True):
            return failure
        await self._dispatcher.first_table.wait_a_while()
        pending = PendingAnswer()
        with self._unary.under_way(peer, pending, len(payload)) as caller:
            self._dispatcher.post(CallDispatched(caller, key, options, payload, into))
            return await pending.outcome

    async def stream(
        self, peer: str, key: ReplicaKey, options: RouterCallOptions, payload: bytes, into: Dispatch, write: WriteValue
    ) -> Failure | None:
        """Writes the values of one call into a slot as they come; returns why it failed, if it did."""
        if failure := self._unary.full(len(payload), for_slots=True):
            return failure
        await self._dispatcher.first_table.wait_a_while()
        streaming = StreamedCall(self._dispatcher, write)
        with self._unary.under_way(peer, streaming, len(payload), max_value_bytes=MAX_INLINE_BYTES) as caller:
            self._dispatcher.post(CallDispatched(caller, key, options, payload, into))
            return await streaming.run()

    async def _operate(self, peer: str, key: ReplicaKey, op: Renew | Release) -> LeasedSlot | ReleasedSlot | Failure:
        if failure := self._unary.full(for_slots=True):
            return failure
        await self._dispatcher.first_table.wait_a_while()
        pending = _PendingSlot()
        with self._unary.under_way(peer, pending) as caller:
            self._dispatcher.post(SlotOperationRequested(caller, key, op))
            return await pending.outcome


class _PendingSlot:
    __slots__ = ("answer", "outcome")

    def __init__(self) -> None:
        self.outcome: asyncio.Future[LeasedSlot | ReleasedSlot | Failure] = asyncio.get_running_loop().create_future()
        self.answer: LeasedSlot | ReleasedSlot | Failure | None = None
        """The outcome, if it has come, also where the caller no longer awaits it."""

    def deliver(self, delivery: Delivery) -> None:
        if isinstance(delivery, DeliverFailure):
            self._settle(delivery.failure)

    def deliver_slot(self, delivery: DeliverSlot) -> None:
        self._settle(delivery.answer)

    def _settle(self, answer: LeasedSlot | ReleasedSlot | Failure) -> None:
        self.answer = answer
        if not self.outcome.done():
            self.outcome.set_result(answer)


Context = grpc.aio.ServicerContext[Any, Any]
NOTHING_HANDED = HandedMetadata()


class RouterSlotServicer(slot_service_pb2_grpc.SlotServiceServicer):
    """Operations on slots of any replica, whichever router has reserved them."""

    def __init__(
        self, slots: UnarySlotOperations, handed: HandedMetadata = NOTHING_HANDED, turns: StepQueue | None = None
    ) -> None:
        """`handed`: which metadata of rpcs handlers get. JSON arguments and results are converted in `turns`."""
        self._slots = slots
        self._turns = turns or StepQueue()
        self._handed = handed

    async def ReserveSlot(
        self, request: slot_service_pb2.ReserveSlotRequest, context: Context
    ) -> slot_service_pb2.ReserveSlotResponse:
        """Waits for a free slot and leases it."""
        failure = endpoint_failure(request.endpoint) or endpoint_refusal(request.endpoint)
        reservation = failure or convert.reservation_from_wire(request, caller_name(), reservation_identity(request))
        if isinstance(reservation, Failure):
            await abort(context, reservation)
        slot = await self._slots.reserve(context.peer(), request.endpoint, *reservation)
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
        key, options, payload = await self._dispatched(request, context, CallRpc.DISPATCH)
        outcome = await self._slots.dispatch(context.peer(), key, options, payload, _into(request))
        if isinstance(outcome, DeliverResults) and (size := len(outcome.payloads[0])) > MAX_INLINE_BYTES:
            outcome = convert.result_too_large(size)
        if isinstance(outcome, Failure):
            await abort(context, failed(outcome, request))
        if isinstance(outcome, DeliverDone):
            return slot_service_pb2.DispatchResponse()
        replica = outcome.replica
        response = slot_service_pb2.DispatchResponse(backend=replica.backend.name, replica_id=replica.replica_id)
        failure = await put_output(response, request, joined(outcome.payloads[0]), outcome.content_type, self._turns)
        if failure is not None:
            await abort(context, failure)
        return response

    async def DispatchStreaming(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request: slot_service_pb2.DispatchStreamingRequest, context: Context
    ) -> None:
        """Runs a call in a reserved slot, and passes on each value that its handler yields."""
        key, options, payload = await self._dispatched(request, context, CallRpc.DISPATCH_STREAMING)

        async def write(payload: bytes, content_type: str, backend: str, replica_id: str) -> None:
            response = slot_service_pb2.DispatchStreamingResponse(backend=backend, replica_id=replica_id)
            if failure := await put_output(response, request, payload, content_type, self._turns):
                await abort(context, failure)
            await context.write(response)

        failure = await self._slots.stream(context.peer(), key, options, payload, _into(request), write)
        if failure is not None:
            await abort(context, failed(failure, request))

    async def _dispatched(
        self,
        request: slot_service_pb2.DispatchRequest | slot_service_pb2.DispatchStreamingRequest,
        context: Context,
        rpc: CallRpc,
    ) -> tuple[ReplicaKey, RouterCallOptions, bytes]:
        """The replica of the slot, and the options and payload of the call. Ends the rpc if the request is invalid."""
        key = overlong_endpoint(request.endpoint) or slot_refusal(request.endpoint) or _giver_of(request.token)
        if isinstance(key, Failure):
            await abort(context, key)
        self._handed.take(context, request.options)
        payload = await payload_of(request, self._turns)
        if isinstance(payload, Failure):
            await abort(context, payload)
        identity = identity_of(request)
        if isinstance(identity, Failure):
            await abort(context, identity)
        options = convert.options_of_rpc(request.options, rpc)
        if isinstance(options, Failure):
            await abort(context, options)
        return key, options if identity is None else replace(options, request=identity), payload


def _into(request: slot_service_pb2.DispatchRequest | slot_service_pb2.DispatchStreamingRequest) -> Dispatch:
    return Dispatch(
        token=request.token, endpoint=request.endpoint, identity=caller_name(), endpoints=callable_endpoints()
    )


def _giver_of(text: str) -> ReplicaKey | Failure:
    """The replica that has given the slot, or why there is none."""
    token = token_of(text)
    return token if isinstance(token, Failure) else token.replica_key
