"""What callers do with slots that they have: dispatch a call, renew, give back.

Purpose: the permit of a slot passes to the call that is dispatched in it, over whichever link it comes. So the call is
never refused for load and never waits, also while the replica drains or has fewer permits by now.
Invariants: one event decides: a dispatch finds the slot reserved and takes it, or changes nothing. What becomes of the
call afterwards does not bring the slot back; its permit is free once the call is over.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from replica_service.core import failures
from replica_service.core.calls import ReplicaRun
from replica_service.core.commands import AnswerRenewal, Fail
from replica_service.core.events import DispatchCame, ReleaseCame, RenewalCame
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.slots.slot_table import ReservedSlot
from replica_service.core.unstarted.unstarted_calls import UnstartedCalls
from slotmesh.errors import Failure


class GrantedSlotOperations:
    """Takes what is to be done with slots that were granted."""

    __slots__ = ("_methods", "_out", "_permits", "_slots", "_state", "_unstarted")

    def __init__(self, state: SchedulerState, methods: Collection[str], unstarted: UnstartedCalls) -> None:
        """`methods`: those that can be called."""
        self._out = state.out
        self._methods = methods
        self._permits = state.permits
        self._state = state
        self._slots = state.slots
        self._unstarted = unstarted

    def dispatch_came(self, event: DispatchCame, now: float) -> None:
        run, slots = event.run, self._slots
        slot = failures.DRAINING if self._state.ended else slots.table.dispatch(event.secret, run.endpoint, now)
        if isinstance(slot, Failure):
            self._out.append(Fail(run, run.lo, run.hi, slot))
            run.ended(run.open)
            return
        self.enter(run, slot)

    def enter(self, run: ReplicaRun, slot: ReservedSlot) -> None:
        """The call has the slot, and its permit."""
        slots, link, methods = self._slots, run.link, self._methods
        run.slot, run.endpoint = slot, slot.endpoint
        link.unkeyed += 1
        link.in_slots += 1
        link.waiting[run.key] = run
        if run.options.method in methods:
            slots.enter(run)
        else:
            failure = failures.no_such_method(run.options.method, methods)
            self._unstarted.answer_waiting(run, run.lo, run.hi, failure)

    def renewal_came(self, event: RenewalCame, now: float) -> None:
        renewed = self._slots.table.renew(event.secret, event.lease_s, now)
        self._slots.due = -inf
        self._out.append(AnswerRenewal(event.link, event.op_id, renewed))

    def release_came(self, event: ReleaseCame, now: float) -> None:
        if self._slots.table.release(event.secret, now):
            self._permits.in_use -= 1
            self._slots.due = -inf
