"""Leases of granted slots whose balancer has hooks: each ends when a call takes the slot, or when its time is over.

Owner: the scheduler. Pure; `now` is monotonic seconds.
"""

from __future__ import annotations

from math import inf

from router_service.core.replicas.replica import RoutedReplica
from slotmesh.calls.deadline_heap import DeadlineHeap


class Routed:
    """A slot that was granted here, by a replica whose balancer has hooks. Compared by identity."""

    __slots__ = ("__weakref__", "alarm", "replica", "token")

    def __init__(self, token: str, replica: RoutedReplica) -> None:
        self.token = token
        self.replica = replica
        self.alarm = inf
        """When its lease is over, as far as this router knows; infinite once it was taken."""


class RoutedSlots:
    """Slots of balancers with hooks, by token, from the grant until a call ends in them or their lease expires.

    Purpose: for reservations, the second half of the pairs `routed` and `completed` or `abandoned`.
    Invariants: each slot leaves exactly once: taken by the operation that ends it here, or returned by `pop_due` when
    its lease has expired as far as this router knows. A slot that a caller of another router uses is abandoned here.
    """

    def __init__(self) -> None:
        self._slots: dict[str, Routed] = {}
        self.leases: DeadlineHeap[Routed] = DeadlineHeap()
        """To be read."""

    def lease(self, token: str, replica: RoutedReplica, until: float) -> None:
        """The slot was granted, or its lease prolonged."""
        known = self._slots.get(token)
        if known is None:
            known = self._slots[token] = Routed(token, replica)
        known.replica = replica
        self.leases.put_off(until, known)

    def knows(self, token: str) -> bool:
        """Whether the slot was granted here and is not over."""
        return token in self._slots

    def take(self, token: str) -> RoutedReplica | None:
        """Ends the slot; returns its replica, unless it was not known."""
        known = self._slots.pop(token, None)
        if known is None:
            return None
        known.alarm = inf
        return known.replica

    def next_deadline(self) -> float | None:
        """When to call `pop_due` next; None when there is nothing to wait for."""
        return self.leases.next_deadline()

    def pop_due(self, now: float) -> list[RoutedReplica]:
        """Ends the slots whose lease is over; returns the replica of each."""
        over = self.leases.pop_due(now)
        for each in over:
            del self._slots[each.token]
        return [each.replica for each in over]

    def __len__(self) -> int:
        return len(self._slots)
