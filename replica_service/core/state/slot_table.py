"""Slots: permits under a lease. Which are held, until when, and what became of those that ended.

Purpose: a caller reserves a permit and says later what to run in it. If the caller never uses it, or dies, the permit
comes free at the end of the lease.
Invariants: a slot is reserved, then dispatched, released or expired, then at most done, and never goes back; it is
dispatched at most once. A direct stream may take a reserved slot over: from then on it is held, or busy with one call
of that stream, again and again, until it is released or expired; where the stream goes while a call runs, the slot is
dispatched, and ends with that call. A lease has ended from `expires_at` on, whether `expire` has been called or not: an
operation at that moment or later is too late, so one of the two wins and never both. No lease lasts longer than
`MAX_LEASE_S` from its grant; one that a stream holds starts anew when the stream says so, and when a call ends.
`granted == reserved + dispatched + released + expired`. Ended slots are remembered, for a bounded time and in bounded
number, so that late operations get the right failure. Secrets are in no failure and in no `repr`.
Owner: the scheduler, which keeps the permits. All times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from math import inf

from replica_service.core import failures
from replica_service.core.calls.call_metadata import ReservedSlot, SlotState
from replica_service.core.calls.runs import FRESH_S, ReplicaRun, RouterPeer
from replica_service.core.state.permits import Permits
from slotmesh.calls.deadline_heap import DeadlineHeap
from slotmesh.calls.slot_tokens import MAX_LEASE_S
from slotmesh.errors import Failure
from slotmesh.histogram import Histogram
from slotmesh.security.identity import is_member
from slotmesh.security.quotas import Quota, QuotaKind

REMEMBERED_S = 300.0
"""How long the end of a slot is remembered at most."""
MAX_REMEMBERED = 65_536
"""How many ended slots are remembered at most; the oldest are forgotten first."""
HELD_TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the histogram of times from grant to dispatch, seconds."""


class SlotTable:
    """All slots that are held, and how others ended."""

    __slots__ = (
        "_by_secret",
        "_ended",
        "_leases",
        "busy",
        "dispatched",
        "expired",
        "granted",
        "held_times",
        "lapsed",
        "prolongs",
        "quota",
        "released",
    )

    def __init__(self) -> None:
        self._by_secret: dict[bytes, ReservedSlot] = {}
        """Slots that are held, and those whose end is remembered."""
        self._leases: DeadlineHeap[ReservedSlot] = DeadlineHeap()
        self._ended: deque[ReservedSlot] = deque()
        """Those whose end is remembered, by age."""
        self.granted = 0
        self.busy = 0
        """Slots of direct streams in which a call runs."""
        self.lapsed: list[ReservedSlot] = []
        """Slots of direct streams whose leases have ended, until the streams are told."""
        self.prolongs = True
        """Whether leases that streams hold start anew. False once the replica drains; never goes back."""
        self.dispatched = 0
        """With those whose call has ended."""
        self.released = 0
        """Given back without a call."""
        self.expired = 0
        self.held_times = Histogram(HELD_TIMES_S)
        """Seconds from grant to dispatch, of all that were dispatched."""
        self.quota = Quota(QuotaKind.SLOTS, 1, "max_slots_per_caller")
        """Slots that are reserved or that direct streams have, by who has reserved them. Who grants says how many."""

    @property
    def reserved(self) -> int:
        """How many are reserved, or direct streams have, now: each holds a permit."""
        return self.granted - self.dispatched - self.released - self.expired

    # -- what is asked for -----------------------------------------------------------------------------------------

    def grant(self, secret: bytes, endpoint: str, lease_s: float, now: float, identity: str = "") -> ReservedSlot:
        """A new slot. The secret is new as well; a lease of more than `MAX_LEASE_S` is cut to that.

        Raises:
            ValueError: the secret was drawn before, or the lease would have no length.
        """
        if secret in self._by_secret:
            raise ValueError("a secret was drawn twice")
        if not lease_s > 0:
            raise ValueError(f"lease_s: must be more than 0, is {lease_s}")
        until = now + min(lease_s, MAX_LEASE_S)
        slot = self._by_secret[secret] = ReservedSlot(secret, endpoint, now, until, identity)
        self.granted += 1
        self.quota.take(_counted(identity))
        self._leases.put_off(slot.expires_at, slot)
        return slot

    def too_many_of(self, identity: str, most: int) -> Failure | None:
        """Why whoever has this name may not have one slot more, where `most` are one's own; None where it may."""
        self.quota.most = most
        return self.quota.refusal(_counted(identity))

    def is_of_another(self, secret: bytes, identity: str, endpoints: Container[str] | None = None) -> bool:
        """Whether somebody else has reserved the slot than who has this name, or for an endpoint that is not of these.

        Without a name it is a router's own. `endpoints` None: any will do.
        """
        slot = self._by_secret.get(secret)
        if slot is None or not identity:
            return False
        return slot.identity not in ("", identity) or (endpoints is not None and slot.endpoint not in endpoints)

    def renew(self, secret: bytes, lease_s: float, now: float) -> ReservedSlot | Failure:
        """A new lease from now on, as far as `MAX_LEASE_S` in all allow; or why there is none."""
        slot = self._reserved(secret, now)
        if isinstance(slot, ReservedSlot):
            slot.expires_at = min(now + lease_s, slot.granted_at + MAX_LEASE_S)
            self._leases.put_off(slot.expires_at, slot)
        return slot

    def dispatch(self, secret: bytes, endpoint: str, now: float) -> ReservedSlot | Failure:
        """A call takes the slot over; returns why not if it cannot. An empty `endpoint` means that of the slot."""
        slot = self._reserved_for(secret, endpoint, now)
        if isinstance(slot, Failure):
            return slot
        self._dispatched(slot)
        self.held_times.observe(now - slot.granted_at, 1)
        return slot

    def release(self, secret: bytes, now: float) -> bool:
        """Ends a slot that is reserved; returns whether there was one."""
        slot = self._reserved(secret, now)
        if isinstance(slot, Failure):
            return False
        self.released += 1
        self._end(slot, SlotState.RELEASED, now)
        return True

    # -- slots of direct streams -----------------------------------------------------------------------------------

    def hold(self, secret: bytes, endpoint: str, lease_s: float, now: float) -> ReservedSlot | Failure:
        """A stream takes the slot over, or hears why it does not. An empty `endpoint` means that of the slot."""
        slot = self._reserved_for(secret, endpoint, now)
        if isinstance(slot, ReservedSlot):
            slot.state = SlotState.HELD
            slot.lease_s = min(lease_s, MAX_LEASE_S)
            if self.prolongs:
                slot.expires_at = now + slot.lease_s
            self._leases.put_off(slot.expires_at, slot)
        return slot

    def prolong(self, slot: ReservedSlot, now: float) -> None:
        """The lease of a slot that is held starts anew, unless the replica drains.

        It is looked at when it would have ended before: not each call has to say when.
        """
        if self.prolongs:
            slot.expires_at = now + slot.lease_s
        if slot.alarm == inf:
            self._leases.watch(slot.expires_at, slot)

    def begin(self, slot: ReservedSlot) -> None:
        """A call takes over the slot, which is held, for as long as it is here."""
        slot.state = SlotState.BUSY
        self.busy += 1

    def let_go(self, slot: ReservedSlot, now: float) -> bool:
        """The stream has the slot no longer. Returns whether that ends the slot: else the call in it does."""
        slot.holder = None
        if slot.state is SlotState.BUSY:
            self.busy -= 1
            self._dispatched(slot)
            return False
        self.released += 1
        self._end(slot, SlotState.RELEASED, now)
        return True

    # -- what happens ----------------------------------------------------------------------------------------------

    def done(self, slot: ReservedSlot, now: float) -> None:
        """The call that took the slot over has ended, or will not start."""
        if slot.state is SlotState.BUSY:
            slot.state = SlotState.HELD
            self.busy -= 1
            self.prolong(slot, now)
        else:
            self._end(slot, SlotState.DONE, now)

    def expire(self, now: float) -> int:
        """Ends the slots whose leases are over; returns how many."""
        over = 0
        for slot in self._leases.pop_due(now):
            if slot.state is SlotState.BUSY:
                continue  # it is looked at again when its call has ended
            if slot.expires_at > now:
                self._leases.watch(slot.expires_at, slot)
                continue
            over += 1
            self._end(slot, SlotState.EXPIRED, now)
            if slot.holder is not None:
                self.lapsed.append(slot)
        self.expired += over
        return over

    def next_deadline(self) -> float | None:
        """When the next lease ends; None where there is none."""
        return self._leases.next_deadline()

    def take_lapsed(self) -> list[ReservedSlot]:
        """Slots of streams whose leases have ended. They are the streams' no longer."""
        lapsed, self.lapsed = self.lapsed, []
        return lapsed

    # -- within ----------------------------------------------------------------------------------------------------

    def _reserved(self, secret: bytes, now: float) -> ReservedSlot | Failure:
        """The slot, if it is reserved and its lease has not ended."""
        self._forget(now)
        slot = self._by_secret.get(secret)
        if slot is None:
            return failures.SLOT_UNKNOWN
        if slot.state is SlotState.RESERVED:
            return slot if now < slot.expires_at else failures.SLOT_EXPIRED
        return _ENDS[slot.state]

    def _reserved_for(self, secret: bytes, endpoint: str, now: float) -> ReservedSlot | Failure:
        """The same, if it was reserved for this endpoint, or for whichever where that is empty."""
        slot = self._reserved(secret, now)
        if isinstance(slot, ReservedSlot) and endpoint and endpoint != slot.endpoint:
            return failures.slot_of_another(slot.endpoint, endpoint)
        return slot

    def _dispatched(self, slot: ReservedSlot) -> None:
        self.dispatched += 1
        self.quota.give(_counted(slot.identity))
        slot.state = SlotState.DISPATCHED
        slot.alarm = inf

    def _end(self, slot: ReservedSlot, state: SlotState, now: float) -> None:
        if slot.state is not SlotState.DISPATCHED:
            self.quota.give(_counted(slot.identity))
        slot.state = state
        slot.alarm = inf
        slot.forget_at = now + REMEMBERED_S
        self._ended.append(slot)
        self._forget(now)

    def _forget(self, now: float) -> None:
        ended = self._ended
        while ended and (ended[0].forget_at <= now or len(ended) > MAX_REMEMBERED):
            del self._by_secret[ended.popleft().secret]


def _counted(identity: str) -> str:
    """Whose quota it is; empty where it is of a member of the mesh, or of nobody who is known."""
    return "" if is_member(identity) else identity


_ENDS = {
    SlotState.HELD: failures.SLOT_HELD,
    SlotState.BUSY: failures.SLOT_HELD,
    SlotState.DISPATCHED: failures.SLOT_USED,
    SlotState.DONE: failures.SLOT_USED,
    SlotState.RELEASED: failures.SLOT_RELEASED,
    SlotState.EXPIRED: failures.SLOT_EXPIRED,
}
"""The failure of operations on slots that are not reserved any more."""


# Calls that were dispatched in slots, until they start, and after they have ended.
#
# Purpose: a call in a slot has the slot's permit, so it waits in no queue; it only waits for its link to be fresh, and
# no
# longer than the lease of the slot would have lasted.
# Invariants: a call is in `entered` or in `held_up`, or it has started, or it was answered.
# Owner: the scheduler.


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
