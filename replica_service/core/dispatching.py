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
from replica_service.core.calls import Run
from replica_service.core.commands import Command, Fail
from replica_service.core.slots import Slot
from replica_service.core.starting import Starting
from slotmesh.errors import Failure


class Dispatching(Starting):
    """The events of slots that were granted."""

    def dispatch(self, run: Run, secret: bytes, now: float) -> list[Command]:
        """A router sent a call, a run of one without ordering key, for a slot. `run.slot` says whether it has it."""
        slot = verdicts.DRAINING if self.ended else self.slots.dispatch(secret, run.endpoint, now)
        if isinstance(slot, Failure):
            self._out.append(Fail(run, run.lo, run.hi, slot))
            return self._settle(now)
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
        return self._settle(now)

    def renew(self, secret: bytes, lease_s: float, now: float) -> tuple[Slot | Failure, list[Command]]:
        """Prolongs, or shortens, a lease: it lasts `lease_s` from now, as far as a slot may last that long."""
        renewed = self.slots.renew(secret, lease_s, now)
        self._slots_due = -inf
        return renewed, self._settle(now)

    def release(self, secret: bytes, now: float) -> tuple[bool, list[Command]]:
        """Gives a slot back. Without effect, and False, for one that is not reserved any more."""
        is_released = self.slots.release(secret, now)
        if is_released:
            self.in_use -= 1
            self._slots_due = -inf
        return is_released, self._settle(now)
