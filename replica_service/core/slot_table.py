"""Slots: permits under a lease. `SlotTable` has the leases, `ReservedSlotCalls` the calls that run in slots.

Purpose: a caller reserves a permit and dispatches a call in it later. If the caller never uses it, or dies, the permit
is freed at the end of the lease. A call in a slot uses the slot's permit and waits in no queue; it waits only for its
link to be fresh, and no longer than the slot's lease would have lasted.
Invariants: a slot is reserved, then dispatched, released or expired, then at most done, and never returns to an earlier
state; it is dispatched at most once. A direct stream may attach a reserved slot: the slot is then held, or busy with
one call of that stream, repeatedly, until it is released or expires. If the stream ends while a call runs, the slot is
dispatched and ends with that call. A lease ends at `expires_at`, whether or not `expire` has been called: an operation
at that time or later is too late, so exactly one of the two wins. No lease lasts longer than `MAX_LEASE_S` from its
grant; a held slot's lease restarts when its stream requests it and when a call ends. `granted == reserved + dispatched
+ released + expired`. Ended slots are remembered for a bounded time and in a bounded number, so that late operations
get the right failure. A call is in `entered` or in `held_up`, or it has started, or it has its outcome. Secrets are in
no failure and in no `repr`.
Owner: the scheduler, which keeps the permits. All times are monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from math import inf

from replica_service.core import failures
from replica_service.core.call_metadata import ReservedSlot, SlotState
from replica_service.core.permits import Permits
from replica_service.core.requested_slots import RequestedSlots
from replica_service.core.runs import FRESH_S, ReplicaRun, RouterPeer
from slotmesh.calls.deadline_heap import DeadlineHeap
from slotmesh.calls.request_ids import ReservationIdentity
from slotmesh.calls.slot_tokens import MAX_LEASE_S
from slotmesh.errors import Failure
from slotmesh.histogram import Histogram
from slotmesh.security.identity import is_member
from slotmesh.security.quotas import Quota, QuotaKind

REMEMBERED_S = 300.0
"""How long an ended slot is remembered at most."""
MAX_REMEMBERED = 65_536
"""Ended slots that are remembered at most; the oldest are forgotten first."""
HELD_TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the histogram of times from grant to dispatch, seconds."""


class SlotTable:
    """All current slots, and recently ended ones."""

    def __init__(self) -> None:
        self._by_secret: dict[bytes, ReservedSlot] = {}
        """Current slots and remembered ended ones."""
        self._leases: DeadlineHeap[ReservedSlot] = DeadlineHeap()
        self._ended: deque[ReservedSlot] = deque()
        """Remembered ended slots, oldest first."""
        self.granted = 0
        self.busy = 0
        """Slots of direct streams in which a call runs."""
        self.lapsed: list[ReservedSlot] = []
        """Slots of direct streams whose leases have ended and whose streams have no report of it yet."""
        self.prolongs = True
        """Whether leases of held slots restart. False for good once the replica drains."""
        self.dispatched = 0
        """Including slots whose call has ended."""
        self.released = 0
        """Released without a call."""
        self.expired = 0
        self.held_times = Histogram(HELD_TIMES_S)
        """Seconds from grant to dispatch."""
        self.requested = RequestedSlots()
        """The slots by the request ids of their reservations."""
        self.quota = Quota(QuotaKind.SLOTS, 1, "max_slots_per_caller")
        """Slots that are reserved or held, by the identity that reserved them. `too_many_of` sets the limit."""

    @property
    def reserved(self) -> int:
        """The number of slots that are reserved, held or busy; each has a permit."""
        return self.granted - self.dispatched - self.released - self.expired

    # -- operations ------------------------------------------------------------------------------------------------

    def grant(
        self,
        secret: bytes,
        endpoint: str,
        lease_s: float,
        now: float,
        identity: str = "",
        request: ReservationIdentity | None = None,
    ) -> ReservedSlot:
        """Adds a reserved slot. A lease of more than `MAX_LEASE_S` is cut to that.

        Raises:
            ValueError: the secret is in use, or the lease is not positive.
        """
        if secret in self._by_secret:
            raise ValueError("a secret was drawn twice")
        if not lease_s > 0:
            raise ValueError(f"lease_s: must be more than 0, is {lease_s}")
        until = now + min(lease_s, MAX_LEASE_S)
        slot = self._by_secret[secret] = ReservedSlot(secret, endpoint, now, until, identity, request)
        self.requested.granted(slot)
        self.granted += 1
        self.quota.take(_counted(identity))
        self._leases.put_off(slot.expires_at, slot)
        return slot

    def too_many_of(self, identity: str, most: int) -> Failure | None:
        """Returns the failure if this identity already has `most` slots; None if it may reserve another."""
        self.quota.most = most
        return self.quota.refusal(_counted(identity))

    def is_of_another(self, secret: bytes, identity: str, endpoints: Container[str] | None = None) -> bool:
        """Whether another identity reserved the slot, or its endpoint is not in `endpoints`.

        An empty `identity` (a router's own operation) matches every slot. `endpoints` None: every endpoint matches.
        """
        slot = self._by_secret.get(secret)
        if slot is None or not identity:
            return False
        return slot.identity not in ("", identity) or (endpoints is not None and slot.endpoint not in endpoints)

    def renew(self, secret: bytes, lease_s: float, now: float) -> ReservedSlot | Failure:
        """Restarts the lease from `now`, within `MAX_LEASE_S` of the grant; or returns the failure."""
        slot = self._reserved(secret, now)
        if isinstance(slot, ReservedSlot):
            slot.expires_at = min(now + lease_s, slot.granted_at + MAX_LEASE_S)
            self._leases.put_off(slot.expires_at, slot)
        return slot

    def dispatch(self, secret: bytes, endpoint: str, now: float) -> ReservedSlot | Failure:
        """Uses the slot for a call, or returns the failure. An empty `endpoint` means the slot's."""
        slot = self._reserved_for(secret, endpoint, now)
        if isinstance(slot, Failure):
            return slot
        self._dispatched(slot)
        self.held_times.observe(now - slot.granted_at, 1)
        return slot

    def release(self, secret: bytes, now: float, by: ReservationIdentity | None = None) -> bool:
        """Ends a reserved slot. Returns whether there was one. `by`: one that no newer attempt has found."""
        slot = self._reserved(secret, now)
        if isinstance(slot, Failure) or (by is not None and slot.request is not None and by.order < slot.request.order):
            return False
        self.released += 1
        self._end(slot, SlotState.RELEASED, now)
        return True

    # -- slots of direct streams -----------------------------------------------------------------------------------

    def hold(self, secret: bytes, endpoint: str, lease_s: float, now: float) -> ReservedSlot | Failure:
        """Attaches the slot to a direct stream, or returns the failure. An empty `endpoint` means the slot's."""
        slot = self._reserved_for(secret, endpoint, now)
        if isinstance(slot, ReservedSlot):
            slot.state = SlotState.HELD
            slot.lease_s = min(lease_s, MAX_LEASE_S)
            if self.prolongs:
                slot.expires_at = now + slot.lease_s
            self._leases.put_off(slot.expires_at, slot)
        return slot

    def prolong(self, slot: ReservedSlot, now: float) -> None:
        """Restarts the lease of a held slot, unless the replica drains.

        The heap keeps the earlier deadline and checks the slot then, so a call does not have to update the heap.
        """
        if self.prolongs:
            slot.expires_at = now + slot.lease_s
        if slot.alarm == inf:
            self._leases.watch(slot.expires_at, slot)

    def begin(self, slot: ReservedSlot) -> None:
        """Marks a held slot as busy with a call."""
        slot.state = SlotState.BUSY
        self.busy += 1

    def let_go(self, slot: ReservedSlot, now: float) -> bool:
        """Detaches the slot from its stream. Returns whether that ends the slot; otherwise the call in it does."""
        slot.holder = None
        if slot.state is SlotState.BUSY:
            self.busy -= 1
            self._dispatched(slot)
            return False
        self.released += 1
        self._end(slot, SlotState.RELEASED, now)
        return True

    # -- events ----------------------------------------------------------------------------------------------------

    def done(self, slot: ReservedSlot, now: float) -> None:
        """Handles the end of the call in the slot, or that it will not start."""
        if slot.state is SlotState.BUSY:
            slot.state = SlotState.HELD
            self.busy -= 1
            self.prolong(slot, now)
        else:
            self._end(slot, SlotState.DONE, now)

    def expire(self, now: float) -> int:
        """Ends the slots whose leases have ended. Returns their number."""
        expired = 0
        for slot in self._leases.pop_due(now):
            if slot.state is SlotState.BUSY:
                continue  # its lease restarts when its call ends
            if slot.expires_at > now:
                self._leases.watch(slot.expires_at, slot)
                continue
            expired += 1
            self._end(slot, SlotState.EXPIRED, now)
            if slot.holder is not None:
                self.lapsed.append(slot)
        self.expired += expired
        return expired

    def next_deadline(self) -> float | None:
        """When the next lease ends; None if there is none."""
        return self._leases.next_deadline()

    def take_lapsed(self) -> list[ReservedSlot]:
        """Returns the slots of streams whose leases have ended since the last call."""
        lapsed, self.lapsed = self.lapsed, []
        return lapsed

    # -- within ----------------------------------------------------------------------------------------------------

    def _reserved(self, secret: bytes, now: float) -> ReservedSlot | Failure:
        """Returns the slot if it is reserved and its lease has not ended; otherwise the failure."""
        self._forget(now)
        slot = self._by_secret.get(secret)
        if slot is None:
            return failures.SLOT_UNKNOWN
        if slot.state is SlotState.RESERVED:
            return slot if now < slot.expires_at else failures.SLOT_EXPIRED
        return _ENDS[slot.state]

    def _reserved_for(self, secret: bytes, endpoint: str, now: float) -> ReservedSlot | Failure:
        """Like `_reserved`, and fails if the slot is for another endpoint. An empty `endpoint` matches every slot."""
        slot = self._reserved(secret, now)
        if isinstance(slot, ReservedSlot) and endpoint and endpoint != slot.endpoint:
            return failures.slot_of_another(slot.endpoint, endpoint)
        return slot

    def _dispatched(self, slot: ReservedSlot) -> None:
        self.dispatched += 1
        self.requested.ended(slot)
        self.quota.give(_counted(slot.identity))
        slot.state = SlotState.DISPATCHED
        slot.alarm = inf

    def _end(self, slot: ReservedSlot, state: SlotState, now: float) -> None:
        if slot.state is not SlotState.DISPATCHED:
            self.requested.ended(slot)
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
    """Returns the name whose quota counts; empty (not counted) for mesh members and unidentified callers."""
    return "" if is_member(identity) else identity


_ENDS = {
    SlotState.HELD: failures.SLOT_HELD,
    SlotState.BUSY: failures.SLOT_HELD,
    SlotState.DISPATCHED: failures.SLOT_USED,
    SlotState.DONE: failures.SLOT_USED,
    SlotState.RELEASED: failures.SLOT_RELEASED,
    SlotState.EXPIRED: failures.SLOT_EXPIRED,
}
"""The failure of an operation on a slot that is no longer reserved, by its state."""


class ReservedSlotCalls:
    """The table of slots, and the calls in them."""

    __slots__ = ("_permits", "due", "entered", "held", "held_up", "table", "vacated")

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self.table = SlotTable()
        self.held: dict[RouterPeer, dict[int, ReservedSlot]] = {}
        """The slots that direct streams hold, by the stream's number for them."""
        self.entered: deque[ReplicaRun] = deque()
        """Calls that have not started. Some may have been emptied by a cancel."""
        self.held_up: dict[ReplicaRun, float] = {}
        """Parked calls, and until when each may be parked, since it occupies a permit. Monotonic seconds."""
        self.due = inf
        """No lease and no parked call's time ends earlier; minus infinity if there is work to do immediately."""
        self.vacated: list[ReservedSlot] = []
        """Slots whose calls have ended since the last step."""

    def grant(self, secret: bytes, run: ReplicaRun, now: float) -> ReservedSlot:
        """Adds the slot that the run reserves; its lease begins."""
        slot = self.table.grant(secret, run.endpoint, run.lease_s, now, run.identity, run.reservation)
        self.due = min(self.due, slot.expires_at)
        return slot

    def hold_up(self, run: ReplicaRun, slot: ReservedSlot) -> None:
        """Parks the call for at least `FRESH_S`: the rest of a lease may be too short for a link to become fresh."""
        until = self.held_up[run] = min(run.deadline, max(slot.expires_at, run.arrived + FRESH_S))
        self.due = min(self.due, until)

    def vacate(self, slot: ReservedSlot, link: RouterPeer) -> None:
        """Handles the end of the call in the slot, or that it will not start. The caller frees the permit.

        The permit of a slot that a direct stream holds returns to the slot.
        """
        link.in_slots -= 1
        if slot.holder is not None:
            self._permits.in_use += 1
        self.vacated.append(slot)

    def forget_vacated(self, now: float) -> None:
        """Completes the slots whose calls ended in this step."""
        for slot in self.vacated:
            self.table.done(slot, now)
            self.due = min(self.due, slot.alarm)
        self.vacated.clear()

    def set_due(self) -> None:
        """Recomputes `due` after all due work was done."""
        self.due = min(self.held_up.values(), default=inf)
        deadline = self.table.next_deadline()
        if deadline is not None:
            self.due = min(self.due, deadline)
