"""Replicas that the routing table named until a while ago.

Purpose: a router that is new, and to which a session moves, asks those that may have executed its calls. It cannot ask
who is gone, and must know that there was somebody.
Invariants: kept for `KEEP_S`, longer than a session outlives its connection; bounded, the oldest go first.
Owner: the table board.
"""

from __future__ import annotations

from collections import OrderedDict

from controller_service.core.routing import Routes

KEEP_S = 120.0
MAX_KEPT = 4096

Incarnation = tuple[str, str]
"""Replica id and incarnation."""


class Departures:
    """When which incarnation left."""

    def __init__(self) -> None:
        self._listed: frozenset[Incarnation] = frozenset()
        self._left_at: OrderedDict[Incarnation, float] = OrderedDict()

    def announced(self, routes: Routes, now: float) -> None:
        """This is the table from `now` on, monotonic seconds."""
        listed = frozenset(
            (replica.replica_id, replica.incarnation) for backend in routes.backends for replica in backend.replicas
        )
        for each in sorted(self._listed - listed):
            self._left_at[each] = now
        self._listed = listed
        while self._left_at and (len(self._left_at) > MAX_KEPT or next(iter(self._left_at.values())) < now - KEEP_S):
            self._left_at.popitem(last=False)

    def ages(self, now: float) -> dict[Incarnation, float]:
        """Seconds since each of them left."""
        return {each: now - left_at for each, left_at in self._left_at.items() if left_at >= now - KEEP_S}
