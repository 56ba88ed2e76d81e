"""Answers calls that have not started: cancelled by their router, handed back by the replica, or overdue.

Invariants: each call is answered once; the permit that a call or its lane holds comes free with the answer. A search
for runs in queues unparks them first (`starting/parking.py`).
Owner: the scheduler.
"""

from __future__ import annotations

from math import inf

from replica_service.core import failures
from replica_service.core.calls import ReplicaLane, ReplicaRun
from replica_service.core.commands import Fail, Refuse
from replica_service.core.lanes.lane_history import note_failure
from replica_service.core.scheduler_state import SchedulerState
from slotmesh.errors import Failure


class UnstartedCalls:
    """Takes calls out of where they wait, and answers them."""

    __slots__ = ("_batching", "_lanes", "_out", "_payloads", "_permits", "_slots")

    def __init__(self, state: SchedulerState) -> None:
        self._out = state.out
        self._permits = state.permits
        self._lanes = state.lanes
        self._batching = state.batching
        self._slots = state.slots
        self._payloads = state.payloads

    def take_back(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Answers those of the calls that have not started; those that an executor holds must not start any more."""
        handed = min(hi, run.lo)
        self.answer_waiting(run, max(lo, run.lo), min(hi, run.hi), failure)
        if lo >= handed:
            return
        if run.lane is not None:
            run.withdraw(lo, handed)
        elif batcher := self._batching.batchers.get(run.options.method):
            for begin, end in batcher.gathered.withdraw(run, lo, handed):
                self._permits.in_use -= end - begin
                self.answer(run, begin, end, failure)

    def answer_waiting(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Takes calls out that wait, and answers them: `run.lo <= lo` and `hi <= run.hi`."""
        if lo >= hi:
            return
        lane = run.lane
        if run.slot is not None:
            self._permits.in_use -= hi - lo
        elif lane is None:
            self._permits.waiting -= hi - lo
        if lo == run.lo:
            run.lo = hi
        else:
            if hi < run.hi:
                rest = run.split(hi, run.hi)
                queue = self._permits.queue if lane is None else lane.runs
                queue.insert(queue.index(run) + 1, rest)
            run.hi = lo
        self.answer(run, lo, hi, failure)
        if lane is not None:
            self._lanes.unblock(lane)
            self._batching.recount(lane)

    def answer_withdrawn(self, run: ReplicaRun, part: ReplicaRun, lo: int, hi: int) -> None:
        """The part, which has the run's calls from `lo` up to `hi`, has come back from an executor and waits again.

        Those of its calls that were taken back meanwhile do not.
        """
        # From the last one on: what is taken out in the middle splits off what follows.
        for index in sorted(run.withdrawn or (), reverse=True):
            if lo <= index < hi:
                self.answer_waiting(part, index, index + 1, failures.CANCELLED)

    def hand_back(self, lane: ReplicaLane, failure: Failure, *, through_epoch: float = inf) -> None:
        """Answers what waits in the lane and was sent at this owner epoch, or an older one."""
        for run in list(lane.runs):
            if run.owner_epoch <= through_epoch:
                self.answer_waiting(run, run.lo, run.hi, failure)

    def answer(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Calls never start that were taken out of where they waited; they have their answer."""
        if run.options.stop_generation and not run.link.closed and not failures.hands_back(failure):
            note_failure(run, lo)  # at once: the consequences are decided before the answer is written
        count = hi - lo
        run.close(count)
        run.ended(count)
        if run.awaits:
            self._payloads.gone(run)
        if run.lane is None:
            run.link.unkeyed -= count
            if run.slot is not None:
                self._slots.vacate(run.slot, run.link)
        else:
            self._lanes.gone(run.link, count)
        command = Refuse if failures.hands_back(failure) else Fail
        self._out.append(command(run, lo, hi, failure))
