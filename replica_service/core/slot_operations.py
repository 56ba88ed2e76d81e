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

from math import inf

from replica_service.core import accounting, failures
from replica_service.core.call_metadata import ReservedSlot, SlotState
from replica_service.core.ending import answer_waiting
from replica_service.core.events import (
    AttachReceived,
    Commands,
    DetachReceived,
    DispatchReceived,
    Fail,
    LookUpReceived,
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

MAX_HELD = 1024
"""Slots that one stream holds at most."""


def dispatch_received(state: SchedulerState, event: DispatchReceived, now: float, commands: Commands) -> None:
    run = event.run
    slot = failures.DRAINING if state.ended else state.slots.table.dispatch(event.secret, run.endpoint, now)
    _enter(state, run, slot, commands)


def renewal_received(state: SchedulerState, event: RenewalReceived, now: float, commands: Commands) -> None:
    renewed = state.slots.table.renew(event.secret, event.lease_s, now)
    state.slots.due = -inf
    commands.append(ReportRenewal(event.link, event.op_id, renewed))


def release_received(state: SchedulerState, event: ReleaseReceived, now: float, _commands: Commands) -> None:
    if state.slots.table.release(event.secret, now, event.reservation):
        state.permits.in_use -= 1
        state.slots.due = -inf


def look_up_received(state: SchedulerState, event: LookUpReceived, now: float, commands: Commands) -> None:
    found = state.slots.table.requested.look_up(event.reservation, now)
    commands.append(ReportRenewal(event.link, event.op_id, found))


def _enter(state: SchedulerState, run: ReplicaRun, slot: ReservedSlot | Failure, commands: Commands) -> None:
    """Passes the slot and its permit to the call, or fails the call if it gets none."""
    if isinstance(slot, Failure):
        commands.append(Fail(run, run.lo, run.hi, slot))
        accounting.refused(run, run.lo, commands)
        return
    run.slot, run.endpoint = slot, slot.endpoint
    accounting.accepted(state, run, commands)
    if run.options.method in state.methods:
        state.slots.entered.appendleft(run)
    else:
        failure = failures.no_such_method(run.options.method, state.methods)
        answer_waiting(state, run, run.lo, run.hi, failure, commands)


# -- slots that direct streams hold ------------------------------------------------------------------------------------


def attach_received(state: SchedulerState, event: AttachReceived, now: float, commands: Commands) -> None:
    link, number = event.link, event.number
    held = state.slots.held.setdefault(link, {})
    slot = _number_violation(number, held) or (
        failures.DRAINING if state.ended else state.slots.table.hold(event.secret, event.endpoint, event.lease_s, now)
    )
    if isinstance(slot, ReservedSlot):
        slot.holder, slot.number = link, number
        held[number] = slot
    state.slots.due = -inf
    commands.append(ReportAttach(link, number, slot if isinstance(slot, Failure) else None))


def slot_call_received(state: SchedulerState, event: SlotCallReceived, now: float, commands: Commands) -> None:
    slot: ReservedSlot | Failure | None = state.slots.held.get(event.run.link, {}).get(event.number)
    if state.ended:
        slot = failures.DRAINING
    elif not isinstance(slot, ReservedSlot):
        slot = failures.SLOT_NOT_HELD
    elif slot.state is not SlotState.HELD:
        slot = failures.SLOT_BUSY
    elif now >= slot.expires_at:
        slot = failures.SLOT_LAPSED
    else:
        state.slots.table.begin(slot)
    _enter(state, event.run, slot, commands)


def stream_renewed(state: SchedulerState, event: StreamRenewed, now: float, _commands: Commands) -> None:
    slots = state.slots
    for slot in slots.held.get(event.link, {}).values():
        if slot.state is SlotState.HELD and now < slot.expires_at:
            slots.table.prolong(slot, now)
    slots.due = -inf


def detach_received(state: SchedulerState, event: DetachReceived, now: float, commands: Commands) -> None:
    slot = state.slots.held.get(event.link, {}).pop(event.number, None)
    if slot is not None:
        _let_go(state, slot, now)
        commands.append(ReportDetached(event.link, event.number, None))


def stream_ended(state: SchedulerState, link: RouterPeer, now: float) -> None:
    """Releases the slots of a stream that has ended."""
    for slot in state.slots.held.pop(link, {}).values():
        _let_go(state, slot, now)


def report_lapsed(state: SchedulerState, commands: Commands) -> None:
    """Reports ended leases to the streams."""
    for slot in state.slots.table.take_lapsed():
        link = slot.holder
        if isinstance(link, RouterPeer) and state.slots.held.get(link, {}).pop(slot.number, None) is not None:
            commands.append(ReportDetached(link, slot.number, failures.SLOT_LAPSED))


def _let_go(state: SchedulerState, slot: ReservedSlot, now: float) -> None:
    if state.slots.table.let_go(slot, now):
        state.permits.in_use -= 1
        state.slots.due = -inf


def _number_violation(number: int, held: dict[int, ReservedSlot]) -> Failure | None:
    if number < 1:
        return failures.bad_slot_number(f"must be at least 1, got {number}")
    if number in held:
        return failures.bad_slot_number(f"the stream holds a slot {number} already")
    if len(held) >= MAX_HELD:
        return failures.bad_slot_number(f"the stream holds {MAX_HELD} slots already; that is as many as one may")
    return None
