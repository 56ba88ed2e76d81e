"""The replica with the smallest share of its permits in use; among equals the one that waited longest.

Invariants: every replica with free permits has an entry of its newest version; older entries are skipped when they
surface. A pick costs O(log n) amortised, whatever the number of replicas.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.core.replicas import Replica

_SWEEP_FROM = 256


class LeastLoaded:
    """A heap of (load, turn) over the replicas of one backend."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Replica]] = []
        self._turn = 0
        self._sweep_at = _SWEEP_FROM

    def changed(self, replica: Replica) -> None:
        """See `Balancer.changed`."""
        replica.version += 1
        if replica.free <= 0:
            return
        self._turn += 1
        heap = self._heap
        heapq.heappush(heap, (replica.load, self._turn, replica.version, replica))
        if len(heap) > self._sweep_at:
            self._heap = [entry for entry in heap if entry[2] == entry[3].version]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 4 * len(self._heap))

    def pick(self) -> Replica | None:
        """See `Balancer.pick`."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[2] == entry[3].version:
                return entry[3]
            heapq.heappop(heap)
        return None
