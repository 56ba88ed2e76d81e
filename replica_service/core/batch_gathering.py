"""Batches of one `@batch` method: calls are gathered until a batch may run, and the batch is cut then.

Purpose: under load a batch fills while the previous one runs; without load its first call waits a bounded time.
`BatchGathering` is the queue: unkeyed calls, and lanes with the calls at their heads. It counts the calls, and weighs
them if the method has a `batch_size_fn`, so that the batcher knows whether a batch is full without reading the queue.
Invariants: a batch is cut only when one of `max_concurrent_batches` is free, by the current settings. It has at least
one call and at most as many as fit, of a lane the first ones in order; a lane is in one batch at a time. Calls that do
not fit keep their place, and none overtakes them. A lane in a batcher or in a running batch holds one permit; an
unkeyed call in a batcher holds one. `waiting` is the number of calls in the queue, `load` their weight. Of a lane only
the calls that fill a batch count, and those of the same run as the last of them.
Owner: the scheduler, which assigns the permits first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from replica_service.core.call_metadata import Weighed
from replica_service.core.call_states import CallState
from replica_service.core.failures import too_heavy
from replica_service.core.runs import ReplicaLane, ReplicaRun
from replica_service.core.work import Part, StartBatch, is_passed, is_stopped, note_failure
from slotmesh.errors import Failure
from slotmesh.handlers.batch_settings import BatchControl

_UPLOADING: Final = CallState.UPLOADING
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
        lane.batch_method = self.method
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
            if self._fills(lane) or run.options.method != self.method or run.state is _UPLOADING:
                break
            self._count(lane, run)
        if lane.offered:
            return True
        self.queue.remove(lane)
        lane.batch_method = None
        return False

    def extend(self, lane: ReplicaLane, run: ReplicaRun) -> None:
        """The run was just put at the end of the lane."""
        if (
            not self._fills(lane)
            and lane.offered_runs == len(lane.runs) - 1
            and run.options.method == self.method
            and run.state is not _UPLOADING
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


class Cut(NamedTuple):
    """A batch, and what was found on the way."""

    batch: StartBatch
    """Without calls it does not count as running."""
    expired: list[Part]
    stale: list[Part]
    """Their links are not fresh."""
    failed: list[tuple[ReplicaRun, int, Failure]]
    """Single calls, by index, that cannot be executed."""
    left: list[ReplicaLane]
    """Lanes that are out of the queue, and of which the batch has no call."""


class _Room:
    """What still fits into a batch."""

    __slots__ = ("calls", "weight")

    def __init__(self, calls: int, weight: float) -> None:
        self.calls = calls
        """0: the batch is closed."""
        self.weight = weight


class Batcher:
    """Decides when a batch is cut, and what is in it."""

    __slots__ = ("_control", "gathered", "method", "running")

    def __init__(self, method: str, control: BatchControl, max_ongoing: int, weigh: Weigh | None = None) -> None:
        """`control` has the settings, which may change at any time. `weigh`: a batch is bounded by weight, too."""
        self.method = method
        self._control = control
        self.gathered = BatchGathering(method, control, max_ongoing, weigh)
        """What waits for a batch."""
        self.running: dict[StartBatch, None] = {}
        """Batches that run, in the order in which they were cut."""

    def next_deadline(self) -> float | None:
        """When one of the calls has waited long enough; None while nothing waits or no batch may start."""
        if not self.gathered.queue or len(self.running) >= self._control.max_concurrent_batches:
            return None
        return self.gathered.oldest() + self._control.batch_wait_timeout_s

    def is_due(self, now: float) -> bool:
        """Whether a batch is to be cut now."""
        gathered = self.gathered
        if not gathered.queue or len(self.running) >= self._control.max_concurrent_batches:
            return False
        gathered.follow()
        if gathered.waiting >= gathered.size or (
            gathered.weigh is not None and gathered.load >= gathered.max_batch_size
        ):
            return True
        return gathered.oldest() + self._control.batch_wait_timeout_s <= now

    def cut(self, now: float) -> Cut:
        """The next batch. Only when one is due."""
        parts: list[Part] = []
        lanes: list[ReplicaLane] = []
        batch = StartBatch(self.method, parts, lanes, 0)
        cut = Cut(batch, [], [], [], [])
        gathered = self.gathered
        room = _Room(gathered.size, gathered.max_batch_size)
        queue = gathered.queue
        gathered.oldest_at = None
        while room.calls and queue:
            entry = queue[0]
            if isinstance(entry, ReplicaLane):
                queue.popleft()
                if taken := self._take(entry, room, parts, cut, now):
                    batch.count += taken
                    lanes.append(entry)
                elif room.calls:
                    cut.left.append(entry)
                else:  # its first call does not fit
                    queue.appendleft(entry)
                    entry.batch_method = self.method
                    gathered.recount(entry)
                continue
            run, lo, hi = entry.run, entry.lo, entry.hi
            if run.deadline <= now:
                cut.expired.append((run, lo, hi))
            elif run.link.fresh_until <= now:
                cut.stale.append((run, lo, hi))
            elif (failure := gathered.unfit(run, lo)) is not None:
                hi = lo + 1
                cut.failed.append((run, lo, failure))
            else:
                hi = self._fit(run, lo, hi, room)
                batch.count += hi - lo
                if lo < hi:
                    parts.append((run, lo, hi))
            gathered.gone(run, lo, hi)
            entry.lo = hi
            if hi == entry.hi:
                queue.popleft()
        if not queue:
            gathered.load = 0.0  # sums of fractions do not come out even
        if batch.count:
            self.running[batch] = None
        return cut

    def _take(self, lane: ReplicaLane, room: _Room, parts: list[Part], cut: Cut, now: float) -> int:
        """Takes the lane's first calls; returns how many."""
        gathered = self.gathered
        gathered.discount(lane)
        lane.batch_method = None
        taken = 0
        while room.calls and (run := lane.head()) is not None and run.options.method == self.method:
            if run.state is _UPLOADING or is_stopped(run, run.lo) or is_passed(run):
                break  # that is seen to where the lane asks for its next permit
            lo = run.lo
            if run.deadline <= now:
                run.lo = run.hi
                cut.expired.append((run, lo, run.hi))
            elif run.link.fresh_until <= now:
                lane.runs.popleft()
                cut.stale.append((run, lo, run.hi))
                continue
            elif (failure := gathered.unfit(run, lo)) is not None:
                run.lo = lo + 1
                cut.failed.append((run, lo, failure))
            else:
                run.lo = self._fit(run, lo, run.hi, room)
                if lo < run.lo:
                    parts.append((run, lo, run.lo))
                    taken += run.lo - lo
                continue
            if run.options.stop_generation:
                note_failure(run, lo)  # now: the calls after it must not be in this batch either
        return taken

    def _fit(self, run: ReplicaRun, lo: int, hi: int, room: _Room) -> int:
        """Takes room for calls that are fit, from `lo` on; returns the index behind them.

        Where one finds no room, the batch is closed.
        """
        gathered = self.gathered
        if gathered.weigh is None:
            hi = min(hi, lo + room.calls)
            room.calls -= hi - lo
            return hi
        index = lo
        while index < hi and room.calls and gathered.unfit(run, index) is None:
            weight = weighed(run, index, gathered.weigh).weight
            if weight > room.weight:
                room.calls = 0
                break
            room.weight -= weight
            room.calls -= 1
            index += 1
        return index
