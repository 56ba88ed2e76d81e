"""When the next run expires.

Purpose: one heap for deadlines and queue times, with one live entry a run: its earliest moment (`run.alarm`).
Invariants: entries of ended runs, and those put off by an earlier moment, are skipped when they surface, and swept
once they are the majority, so the heap holds O(live runs) however many passed through. It keeps no run alive: the
payloads of an answered call would stay until its deadline.
Owner: the scheduler.
"""

from __future__ import annotations

import heapq
import weakref
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.core.runs import Run

_SWEEP_FROM = 1024

Entry = tuple[float, int, "weakref.ref[Run]"]


class DeadlineHeap:
    """Runs by the moment at which somebody must look at them."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._pushes = 0
        self._sweep_at = _SWEEP_FROM

    def watch(self, when: float, run: Run) -> None:
        """Look at the run at `when` (monotonic seconds) or before, unless it has ended by then."""
        if when >= run.alarm:
            return
        run.alarm = when
        self._pushes += 1
        heapq.heappush(self._heap, (when, self._pushes, weakref.ref(run)))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if _live(entry)]
            heapq.heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))

    def pop_due(self, now: float) -> list[Run]:
        """Drops and returns the live runs whose moment has come; they are watched no more."""
        due: list[Run] = []
        while self._heap and self._heap[0][0] <= now:
            if run := _live(heapq.heappop(self._heap)):
                run.alarm = inf
                due.append(run)
        return due

    def next_deadline(self) -> float | None:
        """When to call `pop_due` next; None when there is nothing to wait for."""
        while self._heap and not _live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)


def _live(entry: Entry) -> Run | None:
    run = entry[2]()
    return run if run is not None and run.unanswered and run.alarm == entry[0] else None
