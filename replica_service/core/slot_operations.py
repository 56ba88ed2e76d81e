"""Operations on granted slots (dispatch, renew, release), and on slots that direct streams hold.

Purpose: the permit of a slot passes to the call that is dispatched in it, over any link. So the call is never refused
for load and never waits, even while the replica drains or has fewer permits than before. A client that is connected to
the replica attaches slots to its direct stream and sends call after call without requesting a permit again.
Invariants: one event decides: a dispatch finds the slot reserved and takes it, or changes nothing. The end of the call
does not return the slot; it frees the permit. A slot that a stream holds has a permit, whether a call runs in it or
not, and runs one call at a time; the permit passes to the call and back. A stream that ends releases its slots; a slot
whose call still runs is freed when the call ends.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from replica_service.core import failures
from replica_service.core.call_metadata import ReservedSlot, SlotState
from replica_service.core.ending import UnstartedCalls
from replica_service.core.events import (
    AttachReceived,
    DetachReceived,
    DispatchReceived,
    Fail,
    ReleaseReceived,
    RenewalReceived,
    ReportAttach,
    ReportDetached,
    ReportRenewal,
    SlotCallReceived,
    StreamRenewed,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler_state import SchedulerState
from slotmesh.errors import Failure


class GrantedSlotOperations:
    """Handles the events of granted slots."""

    __slots__ = ("_methods", "_state", "_unstarted")

    def __init__(self, state: SchedulerState, methods: Collection[str], unstarted: UnstartedCalls) -> None:
        """`methods`: the callable ones."""
        self._methods = methods
        self._state = state
        self._unstarted = unstarted

    def dispatch_received(self, event: DispatchReceived, now: float) -> None:
        run, slots = event.run, self._state.slots
        slot = failures.DRAINING if self._state.ended else slots.table.dispatch(event.secret, run.endpoint, now)
        if isinstance(slot, Failure):
            self._state.out.append(Fail(run, run.lo, run.hi, slot))
            self._state.accounting.refused(run, run.lo)
            return
        self.enter(run, slot)

    def enter(self, run: ReplicaRun, slot: ReservedSlot) -> None:
        """Passes the slot and its permit to the call."""
        slots, methods = self._state.slots, self._methods
        run.slot, run.endpoint = slot, slot.endpoint
        self._state.accounting.accepted(run)
        if run.options.method in methods:
            slots.enter(run)
        else:
            failure = failures.no_such_method(run.options.method, methods)
            self._unstarted.answer_waiting(run, run.lo, run.hi, failure)

    def renewal_received(self, event: RenewalReceived, now: float) -> None:
        renewed = self._state.slots.table.renew(event.secret, event.lease_s, now)
        self._state.slots.due = -inf
        self._state.out.append(ReportRenewal(event.link, event.op_id, renewed))

    def release_received(self, event: ReleaseReceived, now: float) -> None:
        if self._state.slots.table.release(event.secret, now):
            self._state.permits.in_use -= 1
            self._state.slots.due = -inf


MAX_HELD = 1024
"""Slots that one stream holds at most."""


class HeldSlots:
    """Handles the events of slots that direct streams hold."""

    __slots__ = ("_operations", "_state")

    def __init__(self, state: SchedulerState, operations: GrantedSlotOperations) -> None:
        self._state = state
        self._operations = operations

    def attach_received(self, event: AttachReceived, now: float) -> None:
        link, number = event.link, event.number
        held = self._state.slots.held.setdefault(link, {})
        slot = _number_violation(number, held) or self._take(event, now)
        if isinstance(slot, ReservedSlot):
            slot.holder, slot.number = link, number
            held[number] = slot
        self._state.slots.due = -inf
        self._state.out.append(ReportAttach(link, number, slot if isinstance(slot, Failure) else None))

    def slot_call_received(self, event: SlotCallReceived, now: float) -> None:
        run, slots = event.run, self._state.slots
        held = slots.held.get(run.link)
        slot = None if held is None else held.get(event.number)
        if self._state.ended:
            self._fail(event, failures.DRAINING)
        elif slot is None:
            self._fail(event, failures.SLOT_NOT_HELD)
        elif slot.state is not SlotState.HELD:
            self._fail(event, failures.SLOT_BUSY)
        elif now >= slot.expires_at:
            self._fail(event, failures.SLOT_LAPSED)
        else:
            slots.table.begin(slot)
            self._operations.enter(run, slot)

    def stream_renewed(self, event: StreamRenewed, now: float) -> None:
        slots = self._state.slots
        for slot in slots.held.get(event.link, {}).values():
            if slot.state is SlotState.HELD and now < slot.expires_at:
                slots.table.prolong(slot, now)
        slots.due = -inf

    def detach_received(self, event: DetachReceived, now: float) -> None:
        slot = self._state.slots.held.get(event.link, {}).pop(event.number, None)
        if slot is not None:
            self._let_go(slot, now)
            self._state.out.append(ReportDetached(event.link, event.number, None))

    def stream_ended(self, link: RouterPeer, now: float) -> None:
        """Releases the slots of a stream that has ended."""
        for slot in self._state.slots.held.pop(link, {}).values():
            self._let_go(slot, now)

    def tell_lapsed(self) -> None:
        """Reports ended leases to the streams."""
        for slot in self._state.slots.table.take_lapsed():
            link = slot.holder
            if isinstance(link, RouterPeer) and self._state.slots.held.get(link, {}).pop(slot.number, None) is not None:
                self._state.out.append(ReportDetached(link, slot.number, failures.SLOT_LAPSED))

    def _take(self, event: AttachReceived, now: float) -> ReservedSlot | Failure:
        if self._state.ended:
            return failures.DRAINING
        return self._state.slots.table.hold(event.secret, event.endpoint, event.lease_s, now)

    def _let_go(self, slot: ReservedSlot, now: float) -> None:
        if self._state.slots.table.let_go(slot, now):
            self._state.permits.in_use -= 1
            self._state.slots.due = -inf

    def _fail(self, event: SlotCallReceived, failure: Failure) -> None:
        self._state.out.append(Fail(event.run, event.run.lo, event.run.hi, failure))
        self._state.accounting.refused(event.run, event.run.lo)


def _number_violation(number: int, held: dict[int, ReservedSlot]) -> Failure | None:
    if number < 1:
        return failures.bad_slot_number(f"must be at least 1, got {number}")
    if number in held:
        return failures.bad_slot_number(f"the stream holds a slot {number} already")
    if len(held) >= MAX_HELD:
        return failures.bad_slot_number(f"the stream holds {MAX_HELD} slots already; that is as many as one may")
    return None
