"""When something must be looked at next: deadlines of calls, ends of leases, silence of members.

Purpose: `next_deadline` lets a shell sleep exactly, whatever was put off or has ended meanwhile.
Invariants: each item has one moment, its `alarm`. Entries for another moment are skipped when they surface, and swept
once they are the majority, so that the heap holds O(live items) however many passed through. It keeps no item alive:
its references are weak. Times are monotonic seconds.
Owner: the owner of the items; to stop watching one, its `alarm` becomes infinite.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, Protocol, TypeVar
from weakref import ref


class Watched(Protocol):
    """What is looked at in time. It has to be weakly referable."""

    alarm: float
    """When; infinite while it is not watched. Written by the heap, and by the code that ends the watch."""


ItemT = TypeVar("ItemT", bound=Watched)


class DeadlineHeap(Generic[ItemT]):
    """Items by the moment at which they are due; equal moments in the order in which they were set."""

    __slots__ = ("_pushes", "_sweep_at", "_sweep_from", "entries")

    def __init__(self, *, sweep_from: int = 64) -> None:
        """`sweep_from`: the number of entries from which on stale ones are swept."""
        self.entries: list[tuple[float, int, ref[ItemT]]] = []
        """Moment, number of the push, which orders equal moments, and item. To be read: most heaps are empty most of
        the time, and need not be asked for a deadline."""
        self._pushes = 0
        self._sweep_at = self._sweep_from = sweep_from

    def watch(self, when: float, item: ItemT) -> None:
        """The item is due at `when`, or before if that was set already."""
        if when >= item.alarm:
            return
        item.alarm = when
        self._pushes += 1
        heappush(self.entries, (when, self._pushes, ref(item)))
        if len(self.entries) > self._sweep_at:
            self._sweep()

    def put_off(self, when: float, item: ItemT) -> None:
        """The item is due at `when`, whatever was set before."""
        item.alarm = inf
        self.watch(when, item)

    def pop_due(self, now: float) -> list[ItemT]:
        """The items whose moment has come, in order; they are watched no more."""
        heap, due = self.entries, list[ItemT]()
        while heap and heap[0][0] <= now:
            when, _, reference = heappop(heap)
            item = reference()
            if item is not None and item.alarm == when:
                item.alarm = inf
                due.append(item)
        return due

    def next_deadline(self) -> float | None:
        """When to call `pop_due` next; None when there is nothing to wait for."""
        heap = self.entries
        while heap:
            when, _, reference = heap[0]
            item = reference()
            if item is not None and item.alarm == when:
                return when
            heappop(heap)
        return None

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self.entries)

    def _sweep(self) -> None:
        live: list[tuple[float, int, ref[ItemT]]] = []
        for entry in self.entries:
            item = entry[2]()
            if item is not None and item.alarm == entry[0]:
                live.append(entry)
        heapify(live)
        self.entries = live
        self._sweep_at = max(self._sweep_from, 2 * len(live))
