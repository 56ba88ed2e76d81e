"""Reservations by request id: a caller that repeats the id gets the same one.

Purpose: a client whose reply was lost in transit repeats its request, and does not take a second slot.
Invariants: an id stands for one reservation, from its request until it has failed or its lease has expired as far as
this router knows. Each caller that waits for one gets its outcome exactly once. When the last of them has left, the
reservation ends. Entries live no longer than the longest lease, and at most the `MAX_GRANTED` newest granted slots are
known: ids take memory even if their slots ended elsewhere.
Owner: the scheduler. Pure; `now` is monotonic seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from router_service.core.callers import Window
from router_service.core.calls import LeasedSlot, RouterCallOptions, SlotWork
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import Caller
from slotmesh.calls.deadline_heap import DeadlineHeap
from slotmesh.calls.request_ids import ReservationIdentity

ONE_CALL = range(1, 2)
"""The call id of each operation: its caller has no other."""
MAX_GRANTED = 65_536
"""Granted slots that are found again by their ids. Repeating an older id takes another slot."""


class RequestedSlot(NamedTuple):
    """The arguments: a repeated id must have the same ones."""

    endpoint: str
    work: SlotWork
    shard_key: str
    affinity_key: str
    prefix_blocks: tuple[int, ...]
    model_id: str

    @classmethod
    def of(cls, endpoint: str, options: RouterCallOptions, work: SlotWork) -> RequestedSlot:
        """How long to wait is left out: a caller that asks again has less time."""
        chosen = options.shard_key, options.affinity_key, options.prefix_blocks, options.model_id
        return cls(endpoint, work, *chosen)


@dataclass(frozen=True, slots=True)
class Lease:
    """A slot, as far as this router knows."""

    slot: LeasedSlot
    replica: RoutedReplica
    until: float

    def at(self, now: float) -> LeasedSlot:
        """The slot, with what is left of its lease."""
        return replace(self.slot, ttl_s=self.until - now)


class SlotRequest:
    """One id. Compared by identity."""

    __slots__ = ("__weakref__", "alarm", "attempt", "caller", "lease", "replica", "request_id", "waiters", "wish")

    def __init__(self, request: ReservationIdentity, wish: RequestedSlot, first: Caller) -> None:
        self.request_id = request.request_id
        self.attempt = request.attempt
        """The newest one of those that wait."""
        self.wish = wish
        self.caller = Caller(Window(0, 0), first.flow)
        self.caller.knows = first.knows
        """The caller that owns the reservation, for all that wait for it. It queues in the flow of the first."""
        self.waiters: dict[Caller, float] = {}
        """Until when each wants to wait."""
        self.lease: Lease | None = None
        """None until the slot is granted."""
        self.replica: RoutedReplica | None = None
        """The replica that grants it."""
        self.alarm = inf
        """When its next deadline is, monotonic seconds; infinite while there is none."""


class Requests:
    """All request ids whose reservation waits, or whose slot is known."""

    def __init__(self) -> None:
        self._by_id: dict[str, SlotRequest] = {}
        self._by_token: OrderedDict[str, SlotRequest] = OrderedDict()
        self.pending: dict[Caller, SlotRequest] = {}
        """Those that are waited for, by the caller that stands for all who wait."""
        self.deadlines: DeadlineHeap[SlotRequest] = DeadlineHeap()
        """To be read."""

    def find(self, request_id: str, now: float) -> SlotRequest | None:
        """The request of this id, if there is one."""
        request = self._by_id.get(request_id)
        if request is None or request.lease is None:
            return request
        if request.lease.until <= now or not request.lease.replica.listed:
            self._forget(request)
            return None
        return request

    def begin(self, identity: ReservationIdentity, wish: RequestedSlot, first: Caller) -> SlotRequest:
        """Records a new reservation under the id, which no caller has joined yet."""
        request = self._by_id[identity.request_id] = SlotRequest(identity, wish, first)
        self.pending[request.caller] = request
        return request

    def join(self, request: SlotRequest, caller: Caller, deadline: float) -> None:
        """Adds a caller that gets the outcome, too."""
        request.waiters[caller] = deadline
        caller.request_id = request.request_id
        self.deadlines.watch(deadline, request)

    def waited_for_by(self, caller: Caller) -> SlotRequest | None:
        """What the caller waits for."""
        return self._by_id.get(caller.request_id) if caller.request_id else None

    def leave(self, caller: Caller) -> SlotRequest | None:
        """The caller no longer waits; returns the request if no other caller waits for it: it must be cancelled."""
        request = self.waited_for_by(caller)
        caller.request_id = ""
        if request is None:
            return None
        request.waiters.pop(caller, None)
        if request.waiters or request.caller not in self.pending:
            return None
        self._forget(request)
        return request

    def ended(self, request: SlotRequest, lease: Lease | None) -> list[Caller]:
        """The reservation was granted, or has failed (None); returns the callers that get the outcome."""
        waiters = list(request.waiters)
        request.waiters.clear()
        for each in waiters:
            each.request_id = ""
        self.pending.pop(request.caller, None)
        if lease is None:
            self._forget(request)
        else:
            request.lease = lease
            if len(self._by_token) >= MAX_GRANTED:
                self._forget(next(iter(self._by_token.values())))
            self._by_token[lease.slot.token] = request
            self.deadlines.watch(lease.until, request)
        return waiters

    def renewed(self, slot: LeasedSlot, now: float) -> None:
        """A lease was prolonged here."""
        request = self._by_token.get(slot.token)
        if request is not None and request.lease is not None:
            request.lease = Lease(slot, request.lease.replica, now + slot.ttl_s)
            self.deadlines.watch(request.lease.until, request)

    def over(self, token: str) -> None:
        """The slot was released, or dispatched into, here."""
        if (request := self._by_token.get(token)) is not None:
            self._forget(request)

    def next_deadline(self) -> float | None:
        """When to call `pop_due` next; None when there is nothing to wait for."""
        return self.deadlines.next_deadline()

    def pop_due(self, now: float) -> list[Caller]:
        """Forgets the leases that are over; returns the callers that have waited for as long as they wanted."""
        overdue: list[Caller] = []
        for request in self.deadlines.pop_due(now):
            if request.lease is None:
                overdue += [caller for caller, deadline in request.waiters.items() if deadline <= now]
                later = [deadline for deadline in request.waiters.values() if deadline > now]
                self.deadlines.watch(min(later, default=inf), request)
            elif request.lease.until <= now:
                self._forget(request)
            else:
                self.deadlines.watch(request.lease.until, request)
        return overdue

    def __len__(self) -> int:
        return len(self._by_id)

    def _forget(self, request: SlotRequest) -> None:
        if self._by_id.get(request.request_id) is request:
            del self._by_id[request.request_id]
        request.alarm = inf
        self.pending.pop(request.caller, None)
        if request.lease is not None:
            self._by_token.pop(request.lease.slot.token, None)
