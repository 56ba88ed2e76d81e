"""Lanes: calls of one ordering key, executed in sequence; and what a session's lane history means for a run.

Purpose: keeps the order of each key, and serves the keys in turn. The functions read and note, for runs, what their
session remembers of lanes (`Progress`, `Stops`); whether a call may start is decided in `work.py`.
Invariants: a lane is in exactly one place: idle (empty, and then dropped), in the ready queue, blocked (the payload of
its first call is still arriving, or a hook of the handler runs for its partition), or held by a turn or a batcher, with
one permit. Calls leave it in the order of arrival. A partition that moves away is tracked while one of its lanes is
left.
Owner: the scheduler. The scheduler's parts and the shell's sessions note history; executors mark and read it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping

from replica_service.core.runs import ReplicaLane, ReplicaRun, RouterPeer

MAX_TURN_CALLS = 256
"""Calls that a lane executes before other lanes get a turn."""
MAX_TURN_S = 0.050
"""Seconds after which a lane starts no further call before other lanes get a turn."""


def note_progress(run: ReplicaRun, index: int) -> None:
    """Notes that the calls of the run up to this one have started."""
    record = run.record
    if record is not None and (session := record.session) is not None:
        session.progress.started(run.endpoint, run.ordering_key, record.call_ids[index])


def is_passed(run: ReplicaRun) -> bool:
    """Whether calls after this run's next one have started in its lane, or may have."""
    record = run.record
    if record is None or (session := record.session) is None:
        return False
    call_id = record.call_ids[run.lo]
    return session.progress.is_passed(run.endpoint, run.ordering_key, call_id, again=record.attempt > 0)


def is_stopped(run: ReplicaRun, index: int) -> bool:
    """Whether a call must not start because an earlier one of its lane has failed."""
    generation = run.options.stop_generation
    if not generation or not run.ordering_key:
        return False
    if index > run.failed_at:
        return True
    record = run.record
    if record is None or record.session is None or not (stops := record.session.stops):
        return False
    return stops.is_stopped(run.endpoint, run.ordering_key, generation, record.call_ids[index])


def is_late(run: ReplicaRun, now: float) -> bool:
    """Whether a call that ends now fails regardless of its result: it is overdue, in a lane that stops."""
    return run.options.stop_generation > 0 and now >= run.deadline


def mark_failure(run: ReplicaRun, lo: int) -> None:
    """Marks the failure on the run, in the thread that executes it; the engine calls `note_failure` later."""
    if run.options.stop_generation:
        run.failed_at = min(run.failed_at, lo)


def note_failure(run: ReplicaRun, lo: int) -> None:
    """Notes that calls of the run from index `lo` on have failed."""
    record = run.record
    if run.ordering_key and record is not None and (session := record.session) is not None:
        session.stops.failed(run.endpoint, run.ordering_key, run.options.stop_generation, record.call_ids[lo])


class Lanes:
    """All lanes that have calls, and the queue of those that wait for a permit."""

    __slots__ = ("_by_key", "_leaving", "calls", "on_returned", "ready")

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], ReplicaLane] = {}
        self._leaving: dict[tuple[str, int], int] = {}
        """Number of lanes left of each partition (endpoint, number) that moves away; no entry is 0."""
        self.calls = 0
        """Present keyed calls, running or not."""
        self.ready: deque[ReplicaLane] = deque()
        """Lanes that wait for a permit, in the order of their turns."""
        self.on_returned: Callable[[ReplicaLane], None] | None = None
        """Called with each lane whose turn is over."""

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, run: ReplicaRun) -> ReplicaLane:
        """Puts the run at the end of its key's lane, which becomes ready if it was idle."""
        lane = self._lane_of(run)
        lane.runs.append(run)
        return lane

    def put_back(self, run: ReplicaRun) -> ReplicaLane:
        """Puts the run at the head of its key's lane, which becomes ready if it was idle."""
        lane = self._lane_of(run)
        lane.runs.appendleft(run)
        return lane

    def _lane_of(self, run: ReplicaRun) -> ReplicaLane:
        key = (run.endpoint, run.ordering_key)
        lane = self._by_key.get(key)
        if lane is None:
            lane = self._by_key[key] = ReplicaLane(key, run.partition)
            if self._leaving and (run.endpoint, run.partition) in self._leaving:
                self._leaving[run.endpoint, run.partition] += 1
        run.lane = lane
        if lane.is_idle:
            lane.is_idle = False
            self.ready.append(lane)
        elif lane.is_blocked:
            self.unblock(lane)
        return lane

    def unblock(self, lane: ReplicaLane) -> None:
        """Makes the lane ready if it was blocked."""
        if lane.is_blocked:
            lane.is_blocked = False
            self.ready.append(lane)

    def gone(self, link: RouterPeer, count: int) -> None:
        """Subtracts keyed calls that have ended or have an outcome from the link's count."""
        self.calls -= count
        link.keyed -= count
        if not link.keyed:
            link.overrun = False

    def give_back(self, lane: ReplicaLane) -> None:
        """Ends the lane's turn: it moves to the back of the queue, or is dropped if it has no calls."""
        if self.on_returned is not None:
            self.on_returned(lane)
        if lane.head() is not None:
            self.ready.append(lane)
        else:
            self._forget(lane)

    def forget_empty(self) -> None:
        """Drops ready lanes without calls, without waiting for a permit for them."""
        for _ in range(len(self.ready)):
            self.give_back(self.ready.popleft())

    def forget_those_that_left(self) -> None:
        """Like `forget_empty`, if any partition moves away: cancelled calls may have made it empty."""
        if self._leaving:
            self.forget_empty()

    def leave(self, partitions: Mapping[str, Container[int]]) -> None:
        """Tracks these partitions, by endpoint, which move away: none of their calls starts any more."""
        self._leaving |= Counter((lane.key[0], lane.partition) for lane in self.of(partitions))

    def is_left(self, endpoint: str, partition: int) -> bool:
        """Whether a partition that moves away still has lanes here."""
        return (endpoint, partition) in self._leaving

    def of(self, partitions: Mapping[str, Container[int]]) -> list[ReplicaLane]:
        """Returns the lanes of these partitions, by endpoint. Iterates over all lanes: for rare events."""
        return [lane for lane in self._by_key.values() if lane.partition in partitions.get(lane.key[0], ())]

    def all(self) -> list[ReplicaLane]:
        """Returns every lane that has calls, running or not."""
        return list(self._by_key.values())

    def _forget(self, lane: ReplicaLane) -> None:
        lane.is_idle = True
        del self._by_key[lane.key]
        if self._leaving:
            partition = (lane.key[0], lane.partition)
            left = self._leaving.pop(partition, 0) - 1
            if left > 0:
                self._leaving[partition] = left
