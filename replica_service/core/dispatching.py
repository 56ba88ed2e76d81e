"""What callers do with slots that they have: dispatch a call, renew, give back.

Purpose: the permit of a slot passes to the call that is dispatched in it, whoever sends that, over whichever link. So
the call is never refused for load and waits for nobody, also while the replica drains or has fewer permits by now.
Invariants: one event decides: a dispatch finds the slot reserved and takes it, or changes nothing. What becomes of the
call afterwards does not bring the slot back; its permit is free once the call is over.
Owner: the scheduler, which is one.
"""

from __future__ import annotations

from math import inf

from replica_service.core import verdicts
from replica_service.core.commands import AnswerRenewal, Fail
from replica_service.core.ending import Ending
from replica_service.core.events import DispatchCame, ReleaseCame, RenewalCame
from slotmesh.errors import Failure


class Dispatching(Ending):
    """The events of slots that were granted."""

    def _dispatch_came(self, event: DispatchCame, now: float) -> None:
        run = event.run
        slot = verdicts.DRAINING if self.ended else self.slots.dispatch(event.secret, run.endpoint, now)
        if isinstance(slot, Failure):
            self._out.append(Fail(run, run.lo, run.hi, slot))
            return
        link, methods = run.link, self._methods
        run.slot, run.endpoint = slot, slot.endpoint
        link.unkeyed += 1
        link.in_slots += 1
        link.waiting[run.key] = run
        if run.options.method in methods:
            self._enter(run)
        else:
            self._take_back_waiting(run, run.lo, run.hi, verdicts.no_such_method(run.options.method, methods))
        self._slots_due = -inf

    def _renewal_came(self, event: RenewalCame, now: float) -> None:
        renewed = self.slots.renew(event.secret, event.lease_s, now)
        self._out.append(AnswerRenewal(event.link, event.op_id, renewed))
        self._slots_due = -inf

    def _release_came(self, event: ReleaseCame, now: float) -> None:
        if self.slots.release(event.secret, now):
            self.in_use -= 1
            self._slots_due = -inf
