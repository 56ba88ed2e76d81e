"""The queue of one batch method: unkeyed calls, and lanes with the calls at their heads.

Purpose: counts the waiting calls, and weighs them if the method has a `batch_size_fn`, so that the batcher knows
whether a batch is full without reading the queue.
Invariants: `waiting` is the number of calls in the queue, `load` their weight. Of a lane only the calls that fill a
batch count, and those of the same run as the last of them.
Owner: the batcher, which takes calls off the queue when it cuts a batch, and updates the counts here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from replica_service.core.calls.call_metadata import Weighed
from replica_service.core.calls.runs import ReplicaLane, ReplicaRun
from replica_service.core.failures import too_heavy
from slotmesh.errors import Failure
from slotmesh.handlers.batching import BatchControl

Weigh = Callable[[ReplicaRun, int], Weighed]
"""Weighs the run's call at an index. Does not raise."""


class GatheredPiece:
    """Unkeyed calls from `lo` up to `hi` of a run, each with a permit."""

    __slots__ = ("hi", "lo", "run")

    def __init__(self, run: ReplicaRun, lo: int, hi: int) -> None:
        self.run = run
        self.lo = lo
        self.hi = hi


class BatchGathering:
    """The queue of one batch method, and its counts."""

    __slots__ = (
        "_control",
        "_max_ongoing",
        "load",
        "max_batch_size",
        "method",
        "oldest_at",
        "queue",
        "size",
        "waiting",
        "weigh",
    )

    def __init__(self, method: str, control: BatchControl, max_ongoing: int, weigh: Weigh | None = None) -> None:
        """`control` has the settings, which may change at any time. `weigh`: batches are bounded by weight as well."""
        self.method = method
        self._control = control
        self.weigh = weigh
        """None if calls have no weight."""
        self._max_ongoing = max_ongoing
        self.max_batch_size = 0
        """The setting that `size` and the lanes' counts were computed with."""
        self.queue: deque[GatheredPiece | ReplicaLane] = deque()
        self.oldest_at: float | None = None
        """When the longest waiting call arrived; None: to be computed."""
        self.waiting = 0
        self.load = 0.0
        """Total weight; 0 if calls have no weight."""
        self.size = 0
        """The number of calls that fill a batch, independently of weight."""
        self.limit(max_ongoing)

    def limit(self, max_ongoing: int) -> None:
        """Limits batches to the number of permits: a larger batch would never fill."""
        self._max_ongoing = max_ongoing
        self.max_batch_size = self._control.max_batch_size
        self.size = max_ongoing if self.weigh is not None else min(self.max_batch_size, max_ongoing)
        for entry in self.queue:
            if isinstance(entry, ReplicaLane):
                self.recount(entry)

    def follow(self) -> None:
        """Applies changed settings. To be called before each decision."""
        if self.max_batch_size != self._control.max_batch_size:
            self.limit(self._max_ongoing)

    # -- in --------------------------------------------------------------------------------------------------------

    def add(self, run: ReplicaRun, lo: int, hi: int) -> Sequence[tuple[int, Failure]]:
        """Adds unkeyed calls with permits. Returns the failures, by index, of calls that fit no batch and stay out."""
        if self.weigh is None:
            self._append(GatheredPiece(run, lo, hi))
            self.waiting += hi - lo
            return ()
        self.follow()
        unfit = [(index, failure) for index in range(lo, hi) if (failure := self.unfit(run, index)) is not None]
        for index, _ in [*unfit, (hi, None)]:
            if lo < index:
                self._append(GatheredPiece(run, lo, index))
                self.waiting += index - lo
                self.load += self._weight_of(run, lo, index)
            lo = index + 1
        return unfit

    def offer(self, lane: ReplicaLane) -> None:
        """Adds a lane with a permit, whose first call is of this method."""
        lane.batcher = self
        self._append(lane)
        self._recount(lane)

    def recount(self, lane: ReplicaLane) -> bool:
        """Counts the lane's calls anew. Returns False, and removes the lane, if its first call is of another method."""
        self.oldest_at = None
        return self._recount(lane)

    def _recount(self, lane: ReplicaLane) -> bool:
        self.discount(lane)
        lane.head()  # drops what is empty
        for run in lane.runs:
            if self._fills(lane) or run.options.method != self.method or run.awaits:
                break
            self._count(lane, run)
        if lane.offered:
            return True
        self.queue.remove(lane)
        lane.batcher = None
        return False

    def extend(self, lane: ReplicaLane, run: ReplicaRun) -> None:
        """The run was just put at the end of the lane."""
        if (
            not self._fills(lane)
            and lane.offered_runs == len(lane.runs) - 1
            and run.options.method == self.method
            and not run.awaits
        ):
            self._count(lane, run)

    def withdraw(self, run: ReplicaRun, lo: int, hi: int) -> list[tuple[int, int]]:
        """Takes unkeyed calls of the run from `lo` up to `hi` out of the queue; returns the parts that were in it."""
        self.oldest_at = None
        taken: list[tuple[int, int]] = []
        kept: deque[GatheredPiece | ReplicaLane] = deque()
        for entry in self.queue:
            if isinstance(entry, ReplicaLane) or entry.run is not run or entry.hi <= lo or hi <= entry.lo:
                kept.append(entry)
                continue
            begin, end = max(lo, entry.lo), min(hi, entry.hi)
            taken.append((begin, end))
            self.gone(run, begin, end)
            if entry.lo < begin:
                kept.append(GatheredPiece(run, entry.lo, begin))
            if end < entry.hi:
                kept.append(GatheredPiece(run, end, entry.hi))
        self.queue = kept
        return taken

    def unfit(self, run: ReplicaRun, index: int) -> Failure | None:
        """Returns the failure of a call that fits no batch; None if it fits."""
        if self.weigh is None:
            return None
        each = weighed(run, index, self.weigh)
        if each.failure is None and each.weight > self.max_batch_size:
            return too_heavy(each.weight, self.max_batch_size)
        return each.failure

    # -- what waits ------------------------------------------------------------------------------------------------

    def oldest(self) -> float:
        """Returns when the longest waiting call in the queue arrived, monotonic seconds.

        It may be at any position: permits are assigned in another order, and a lane's first call may be cancelled.
        """
        if self.oldest_at is None:
            self.oldest_at = min(map(_arrived, self.queue))
        return self.oldest_at

    def _append(self, entry: GatheredPiece | ReplicaLane) -> None:
        if not self.queue:
            self.oldest_at = _arrived(entry)
        elif self.oldest_at is not None:
            self.oldest_at = min(self.oldest_at, _arrived(entry))
        self.queue.append(entry)

    def _weight_of(self, run: ReplicaRun, lo: int, hi: int) -> float:
        return 0.0 if self.weigh is None else sum(weighed(run, index, self.weigh).weight for index in range(lo, hi))

    def gone(self, run: ReplicaRun, lo: int, hi: int) -> None:
        """Discounts unkeyed calls that were removed from the queue."""
        self.waiting -= hi - lo
        if self.weigh is not None:
            self.load -= self._weight_of(run, lo, hi)

    def _fills(self, lane: ReplicaLane) -> bool:
        """Whether the calls that the lane offers fill a batch."""
        return lane.offered >= self.size or (self.weigh is not None and lane.offered_weight >= self.max_batch_size)

    def _count(self, lane: ReplicaLane, run: ReplicaRun) -> None:
        """Counts the calls of the lane's next run: all, or if calls are weighed, those until a batch is full."""
        hi = run.hi
        if self.weigh is not None:
            hi, weight = run.lo, 0.0
            calls_left = self.size - lane.offered
            weight_left = self.max_batch_size - lane.offered_weight
            while hi < run.hi and hi - run.lo < calls_left and weight < weight_left:
                weight += weighed(run, hi, self.weigh).weight
                hi += 1
            lane.offered_weight += weight
            self.load += weight
        lane.offered += hi - run.lo
        lane.offered_runs += 1
        self.waiting += hi - run.lo

    def discount(self, lane: ReplicaLane) -> None:
        """Discounts the calls that the lane offers."""
        self.waiting -= lane.offered
        self.load -= lane.offered_weight
        lane.offered = lane.offered_runs = 0
        lane.offered_weight = 0.0


def _arrived(entry: GatheredPiece | ReplicaLane) -> float:
    run = entry.head() if isinstance(entry, ReplicaLane) else entry.run
    return run.arrived if run is not None else -inf


def weighed(run: ReplicaRun, index: int, weigh: Weigh) -> Weighed:
    """Returns the weight of the call at the index, and computes it at the first request."""
    known = run.weighed
    if known is None:
        known = run.weighed = {}
    each = known.get(index)
    if each is None:
        each = known[index] = weigh(run, index)
    return each
