"""Operations on slots: each a caller of its own, as unary calls are.

Purpose: hands operations to the core and awaits their outcomes.
Invariants: the operation of a caller that leaves is cancelled; a slot that was granted to it meanwhile is released at
once, unless a request id lets the caller ask again. Where too much is pending reservations are refused, like calls;
operations on granted slots, which free them, only at twice as much: invented tokens cost memory, too.
Owner: the servicer of slots.
"""

from __future__ import annotations

import asyncio
from typing import cast

from router_service import convert
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverFailure, DeliverSlot, Delivery
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.slots.events import CallDispatched, SlotAbandoned, SlotOperationRequested, SlotRequested
from router_service.core.slots.slot import Dispatch, LeasedSlot, Release, ReleasedSlot, Renew, Reserve
from router_service.shell.clients.streaming_call import StreamedCall, WriteValue
from router_service.shell.clients.unary import Answer, PendingAnswer, UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Failure
from slotmesh.slots.token import parse_token
from slotmesh.wire.limits import MAX_INLINE_BYTES


class UnarySlotOperations:
    """Submits single operations on slots and awaits their outcomes."""

    def __init__(self, dispatcher: Dispatcher, unary: UnaryCalls) -> None:
        """Operations count among the `unary` calls that are pending: the router waits for them when it stops."""
        self._dispatcher = dispatcher
        self._unary = unary

    async def reserve(
        self, peer: str, endpoint: str, options: RouterCallOptions, wanted: Reserve, request_id: str
    ) -> LeasedSlot | Failure:
        """A slot, as soon as there is one; `peer` tells connections apart."""
        if failure := self._unary.full(peer=peer, tenant=options.tenant):
            return failure
        if options.slo_at is not None:
            options = convert.with_relative_slo(options, self._dispatcher.clock.time_of_day())
        await self._dispatcher.first_table.wait_a_while()
        pending = _PendingSlot()
        try:
            with self._unary.under_way(peer, pending, tenant=options.tenant) as caller:
                self._dispatcher.post(SlotRequested(caller, endpoint, options, wanted, request_id))
                return cast("LeasedSlot | Failure", await pending.outcome)
        except asyncio.CancelledError:
            if isinstance(pending.answer, LeasedSlot) and not request_id:
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
