"""Batchers, one per batch method: calls are gathered until a batch may run, and the batch is cut then.

Purpose: under load a batch fills while the previous one runs; without load its first call waits a bounded time.
Invariants: a batch is cut only when one of `max_concurrent_batches` is free, by the current settings. It has at least
one call and at most as many as fit, of a lane the first ones in order; a lane is in one batch at a time. Calls that do
not fit keep their place, and none overtakes them. A lane in a batcher or in a running batch holds one permit; an
unkeyed call in a batcher holds one.
Owner: the scheduler, which assigns the permits first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from replica_service.core.calls.commands import Part, StartBatch
from replica_service.core.calls.runs import ReplicaLane, ReplicaRun
from replica_service.core.state.batch_gathering import BatchGathering, Weigh, weighed
from replica_service.core.state.lanes import Lanes, is_passed, is_stopped, note_failure
from replica_service.core.state.permits import Permits
from slotmesh.errors import Failure
from slotmesh.handlers.batching import BatchControl


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
        batch = StartBatch(self, parts, lanes, 0)
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
                    entry.batcher = gathered
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

    def ended(self, batch: StartBatch) -> None:
        """The batch runs no more."""
        del self.running[batch]

    def _take(self, lane: ReplicaLane, room: _Room, parts: list[Part], cut: Cut, now: float) -> int:
        """Takes the lane's first calls; returns how many."""
        gathered = self.gathered
        gathered.discount(lane)
        lane.batcher = None
        taken = 0
        while room.calls and (run := lane.head()) is not None and run.options.method == self.method:
            if run.awaits or is_stopped(run, run.lo) or is_passed(run):
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


class Batching:
    """The batchers of all batch methods of one replica."""

    __slots__ = ("_lanes", "_permits", "batchers", "gathering")

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        weigh: Mapping[str, Weigh],
        permits: Permits,
        lanes: Lanes,
    ) -> None:
        """`methods` has the settings of batch methods, by name. `weigh`: see `ReplicaScheduler`."""
        self.batchers = {
            name: Batcher(name, control, permits.max_ongoing, weigh.get(name))
            for name, control in methods.items()
            if control is not None
        }
        """By method."""
        self.gathering: dict[Batcher, None] = {}
        """Batchers in which calls wait."""
        self._permits = permits
        self._lanes = lanes

    def limit(self, max_ongoing: int) -> None:
        """Sets the number of permits."""
        for batcher in self.batchers.values():
            batcher.gathered.limit(max_ongoing)

    def recount(self, lane: ReplicaLane) -> None:
        """Counts a changed lane anew; removes it from its batcher if its first call is of another method."""
        if (batcher := lane.batcher) is not None and not batcher.recount(lane):
            self.release((lane,))

    def release(self, lanes: Iterable[ReplicaLane]) -> None:
        """Takes the permits of these lanes; they wait for another one, or are dropped if they have no calls."""
        for lane in lanes:
            self._permits.in_use -= 1
            self._lanes.give_back(lane)
