"""Slots whose balancer wants to hear what became of them, from the grant until a call ends in them or they are over.

Purpose: the second half of the pair `routed` and `completed` or `abandoned`, for reservations.
Invariants: each slot leaves exactly once: taken, by what ends it here, or returned by `pop_due` when its lease, as far
as this router knows, is over. A slot that another router's caller uses is abandoned here.
What the heap says of slots that were taken, or renewed, is dropped once it is more than the rest.
Owner: the slot operations.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.core.replicas.replica import Replica


_MIN_STALE = 64


class RoutedSlots:
    """Slots by token."""

    def __init__(self) -> None:
        self._slots: dict[str, tuple[Replica, float]] = {}
        self._heap: list[tuple[float, str]] = []

    def lease(self, token: str, replica: Replica, until: float) -> None:
        """The slot was granted, or its lease prolonged."""
        self._slots[token] = replica, until
        heappush(self._heap, (until, token))
        if len(self._heap) > 2 * len(self._slots) + _MIN_STALE:
            self._heap = [(until, token) for token, (_, until) in self._slots.items()]
            heapify(self._heap)

    def knows(self, token: str) -> bool:
        """Whether the slot was granted here and is not over."""
        return token in self._slots

    def take(self, token: str) -> Replica | None:
        """Ends the slot; returns its replica, unless it was not known."""
        known = self._slots.pop(token, None)
        return known[0] if known is not None else None

    def next_deadline(self) -> float | None:
        """When to call `pop_due` next; None when there is nothing to wait for."""
        while self._heap and not self._is_live(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[Replica]:
        """Ends the slots whose lease is over; returns the replica of each."""
        over: list[Replica] = []
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)
            if self._is_live(entry):
                over.append(self._slots.pop(entry[1])[0])
        return over

    def __len__(self) -> int:
        return len(self._slots)

    def _is_live(self, entry: tuple[float, str]) -> bool:
        until, token = entry
        known = self._slots.get(token)
        return known is not None and known[1] == until
