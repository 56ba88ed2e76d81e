"""How long calls wait at the replica, and how long they run there.

Purpose: shows which replica of a backend is slow. Two histograms in plain integers: `waits` from the arrival of a call
until it starts, `runs` from its start to its end.
A call starts when it gets its permit, and a call of a batch method when its batch is cut. Calls of one ordering key run
one after another, so each counts with its share of the time of their turn. A call that yields values runs until its
generator is closed: a slow reader makes it longer.
Invariants: totals only grow; each call counts once, when it has ended; the cost is per piece of work, however many
calls are in it.
Owner: the scheduler.
"""

from __future__ import annotations

from replica_service.core.calls import ReplicaRun, StartTurn
from replica_service.core.commands import StartBatch
from slotmesh.histogram import CALL_TIMES, Histogram


class ReplicaCallTimes:
    """Of all calls since the start."""

    __slots__ = ("runs", "waits")

    def __init__(self) -> None:
        self.waits = Histogram(CALL_TIMES)
        self.runs = Histogram(CALL_TIMES)

    def calls_ended(self, run: ReplicaRun, count: int, now: float) -> None:
        """This number of calls of the run have ended."""
        self.waits.observe(run.started_at - run.arrived, count)
        self.runs.observe(now - run.started_at, count)

    def batch_ended(self, batch: StartBatch, now: float) -> None:
        """A batch has ended."""
        self.runs.observe(now - batch.started_at, batch.count)
        for run, lo, hi in batch.parts:
            self.waits.observe(batch.started_at - run.arrived, hi - lo)

    def turn_ended(self, turn: StartTurn, count: int, now: float) -> None:
        """A turn has ended, with this number of its calls, one after another."""
        if count:
            self.waits.observe(turn.started_at - turn.run.arrived, count)
            self.runs.observe((now - turn.started_at) / count, count)
