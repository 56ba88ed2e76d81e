"""Permits: how many calls may run, how many do, and which unkeyed calls wait for a permit.

Invariants: `in_use <= max_ongoing` unless `max_ongoing` was lowered meanwhile; `waiting` counts the unkeyed calls in
the queue, and those whose payloads are under way. Lanes wait in a queue of their own (`lanes/lanes.py`); a call in a
slot has the permit of the slot and waits for none.
Owner: the scheduler, whose parts take permits here and give them back.
"""

from __future__ import annotations

from collections import deque

from replica_service.core.calls import ReplicaRun


class Permits:
    """The permits of one replica, and the queue of unkeyed calls."""

    __slots__ = ("in_use", "max_ongoing", "prefetch", "queue", "waiting")

    def __init__(self, max_ongoing: int, prefetch: int) -> None:
        self.max_ongoing = max_ongoing
        self.prefetch = prefetch
        """Unkeyed calls that may wait for a permit."""
        self.in_use = 0
        """Calls that run or are in a batcher, lanes that have their turn, slots."""
        self.waiting = 0
        """Unkeyed calls and reservations without a permit."""
        self.queue: deque[ReplicaRun] = deque()
        """Unkeyed runs with calls that wait for permits, by age. Some may have been emptied by a cancel."""

    @property
    def has_room(self) -> bool:
        """Whether one unkeyed call more would be taken."""
        return self.in_use + self.waiting < self.max_ongoing + self.prefetch

    def wait_first(self, run: ReplicaRun) -> None:
        """The run, which was here before, waits again, before all others."""
        self.waiting += run.hi - run.lo
        self.queue.appendleft(run)
