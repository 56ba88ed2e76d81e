"""Batches of one batch method: gathered until one may run, cut then.

Purpose: under load a batch fills while the one before it runs; without load its first call waits a bounded time.
Invariants: a batch is cut only when one of `max_concurrent_batches` is free; it has 1 … `max_batch_size` calls, of a
lane the first ones, in order; a lane is in one batch at a time. `waiting` is the number of calls in the queue.
Owner: the scheduler, which gives each unkeyed call and each lane in here a permit before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from replica_service.core.commands import Part, StartBatch
from replica_service.core.lanes import Lane
from replica_service.core.progress import is_passed
from replica_service.core.stops import is_stopped

if TYPE_CHECKING:
    from replica_service.core.calls import Run
    from slotmesh.handlers import BatchSettings


class Piece:
    """Unkeyed calls from `lo` up to `hi` of a run, each with a permit."""

    __slots__ = ("hi", "lo", "run")

    def __init__(self, run: Run, lo: int, hi: int) -> None:
        self.run = run
        self.lo = lo
        self.hi = hi


class Batcher:
    """The queue of one batch method."""

    __slots__ = ("_max_batch_size", "_most_running", "_wait_s", "method", "queue", "running", "size", "waiting")

    def __init__(self, method: str, settings: BatchSettings, max_ongoing: int) -> None:
        self.method = method
        self._max_batch_size = settings.max_batch_size
        self._wait_s = settings.batch_wait_timeout_s
        self._most_running = settings.max_concurrent_batches
        self.queue: deque[Piece | Lane] = deque()
        self.waiting = 0
        self.running = 0
        """Batches that run."""
        self.size = 0
        """Calls that fill a batch."""
        self.limit(max_ongoing)

    def limit(self, max_ongoing: int) -> None:
        """No batch is larger than all permits together: it would never fill."""
        self.size = min(self._max_batch_size, max_ongoing)
        for entry in self.queue:
            if isinstance(entry, Lane):
                self.recount(entry)

    # -- in --------------------------------------------------------------------------------------------------------

    def add(self, run: Run, lo: int, hi: int) -> None:
        """Unkeyed calls with permits."""
        self.queue.append(Piece(run, lo, hi))
        self.waiting += hi - lo

    def offer(self, lane: Lane) -> None:
        """A lane with a permit, whose head is a call of this method."""
        lane.batcher = self
        self.queue.append(lane)
        self.recount(lane)

    def recount(self, lane: Lane) -> bool:
        """The lane's calls have changed. Returns False where it has none of this method at its head: it is out then."""
        self.waiting -= lane.offered
        lane.offered = lane.offered_runs = 0
        lane.head()  # drops what is empty
        for run in lane.runs:
            if lane.offered >= self.size or run.options.method != self.method or run.awaits:
                break
            lane.offered += run.hi - run.lo
            lane.offered_runs += 1
        self.waiting += lane.offered
        if lane.offered:
            return True
        self.queue.remove(lane)
        lane.batcher = None
        return False

    def extend(self, lane: Lane, run: Run) -> None:
        """The run was just put at the end of the lane."""
        if (
            lane.offered < self.size
            and lane.offered_runs == len(lane.runs) - 1
            and run.options.method == self.method
            and not run.awaits
        ):
            lane.offered += run.hi - run.lo
            lane.offered_runs += 1
            self.waiting += run.hi - run.lo

    # -- out -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the first call has waited long enough; None while nothing waits or no batch may start."""
        if not self.queue or self.running >= self._most_running:
            return None
        first = self.queue[0]
        run = first.head() if isinstance(first, Lane) else first.run
        return run.arrived + self._wait_s if run is not None else None

    def is_due(self, now: float) -> bool:
        """Whether a batch is to be cut now."""
        if not self.queue or self.running >= self._most_running:
            return False
        if self.waiting >= self.size:
            return True
        deadline = self.next_deadline()
        return deadline is None or deadline <= now

    def cut(self, now: float) -> tuple[StartBatch, list[Part], list[Part], list[Lane]]:
        """The next batch, and what was found on the way.

        That is expired calls, calls whose link is not fresh, and lanes of which the batch has no call. A batch without
        calls does not count as running.
        """
        parts: list[Part] = []
        expired: list[Part] = []
        stale: list[Part] = []
        lanes: list[Lane] = []
        left: list[Lane] = []
        room = self.size
        queue = self.queue
        while room and queue:
            entry = queue[0]
            if isinstance(entry, Lane):
                queue.popleft()
                taken = self._take(entry, room, parts, expired, stale, now)
                (lanes if taken else left).append(entry)
                room -= taken
                continue
            run, lo, hi = entry.run, entry.lo, entry.hi
            if run.deadline <= now:
                expired.append((run, lo, hi))
                self.waiting -= hi - lo
                queue.popleft()
                continue
            if run.link.fresh_until <= now:
                stale.append((run, lo, hi))
                self.waiting -= hi - lo
                queue.popleft()
                continue
            count = min(room, hi - lo)
            parts.append((run, lo, lo + count))
            room -= count
            self.waiting -= count
            entry.lo = lo + count
            if entry.lo == hi:
                queue.popleft()
        count = self.size - room
        if count:
            self.running += 1
        return StartBatch(self, parts, lanes, count), expired, stale, left

    def _take(
        self, lane: Lane, room: int, parts: list[Part], expired: list[Part], stale: list[Part], now: float
    ) -> int:
        """Takes the lane's first calls; returns how many."""
        self.waiting -= lane.offered
        lane.offered = lane.offered_runs = 0
        lane.batcher = None
        taken = 0
        while taken < room and (run := lane.head()) is not None and run.options.method == self.method:
            if run.awaits or is_stopped(run, run.lo) or is_passed(run):
                break  # that is seen to where the lane asks for its next permit
            lo = run.lo
            if run.deadline <= now:
                run.lo = run.hi
                expired.append((run, lo, run.hi))
                continue
            if run.link.fresh_until <= now:
                lane.runs.popleft()
                stale.append((run, lo, run.hi))
                continue
            run.lo = lo + min(room - taken, run.hi - lo)
            parts.append((run, lo, run.lo))
            taken += run.lo - lo
        return taken

    def withdraw(self, run: Run, lo: int, hi: int) -> list[tuple[int, int]]:
        """Takes unkeyed calls of the run from `lo` up to `hi` out of the queue; returns the parts that were in it."""
        taken: list[tuple[int, int]] = []
        kept: deque[Piece | Lane] = deque()
        for entry in self.queue:
            if isinstance(entry, Lane) or entry.run is not run or entry.hi <= lo or hi <= entry.lo:
                kept.append(entry)
                continue
            begin, end = max(lo, entry.lo), min(hi, entry.hi)
            taken.append((begin, end))
            self.waiting -= end - begin
            if entry.lo < begin:
                kept.append(Piece(run, entry.lo, begin))
            if end < entry.hi:
                kept.append(Piece(run, end, entry.hi))
        self.queue = kept
        return taken
