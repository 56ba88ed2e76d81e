"""Calls that were dispatched in slots, until they start, and after they have ended.

Purpose: a call in a slot has the slot's permit, so it waits in no queue; it only waits for its link to be fresh, and no
longer than the lease of the slot would have lasted.
Invariants: a call is in `entered` or in `held_up`, or it has started, or it was answered.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import deque
from math import inf

from replica_service.core.calls import FRESH_S, ReplicaRun, RouterPeer
from replica_service.core.permits.permits import Permits
from replica_service.core.slots.slot_table import ReservedSlot, SlotTable


class ReservedSlotCalls:
    """The table of slots, and the calls in them."""

    __slots__ = ("_permits", "due", "entered", "held", "held_up", "table", "vacated")

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self.table = SlotTable()
        self.held: dict[RouterPeer, dict[int, ReservedSlot]] = {}
        """The slots that direct streams hold, by what these call them."""
        self.entered: deque[ReplicaRun] = deque()
        """Calls that have not started. Some may have been emptied by a cancel."""
        self.held_up: dict[ReplicaRun, float] = {}
        """Calls that are parked, and until when they may be: they keep permits from others. Monotonic seconds."""
        self.due = inf
        """No lease ends before this moment, nor the time of a call that is held up; minus infinity where there is
        something to do at once."""
        self.vacated: list[ReservedSlot] = []
        """Slots whose calls have ended since the last step."""

    def grant(self, secret: bytes, endpoint: str, lease_s: float, now: float, identity: str) -> ReservedSlot:
        """A new slot, whose lease begins, of whoever has this name."""
        slot = self.table.grant(secret, endpoint, lease_s, now, identity)
        self.due = min(self.due, slot.expires_at)
        return slot

    def enter(self, run: ReplicaRun) -> None:
        """The call is to start."""
        self.entered.appendleft(run)

    def hold_up(self, run: ReplicaRun, slot: ReservedSlot) -> None:
        """The call is parked: the rest of a lease may be less than what a link takes to become fresh."""
        until = self.held_up[run] = min(run.deadline, max(slot.expires_at, run.arrived + FRESH_S))
        self.due = min(self.due, until)

    def vacate(self, slot: ReservedSlot, link: RouterPeer) -> None:
        """The call in the slot has ended, or will not start; its permit is free, or about to be.

        That of a slot that a direct stream holds passes back to the slot.
        """
        link.in_slots -= 1
        if slot.holder is not None:
            self._permits.in_use += 1
        self.vacated.append(slot)

    def forget_vacated(self, now: float) -> None:
        """The step in which calls have ended is over."""
        for slot in self.vacated:
            self.table.done(slot, now)
            self.due = min(self.due, slot.alarm)
        self.vacated.clear()

    def set_due(self) -> None:
        """All that was due has been seen to."""
        self.due = min(self.held_up.values(), default=inf)
        deadline = self.table.next_deadline()
        if deadline is not None:
            self.due = min(self.due, deadline)
