"""Runs whose payloads are under way in chunks: they do not start until the payload is complete.

Invariants: a run is here exactly while `run.awaits`; it is a single call. An unkeyed one is in no queue, a keyed one in
its lane, which it blocks when its turn comes.
Owner: the scheduler.
"""

from __future__ import annotations

from math import inf

from replica_service.core.calls import ReplicaRun


class AwaitedPayloads:
    """The runs, and when the first of them is late."""

    __slots__ = ("due", "runs")

    def __init__(self) -> None:
        self.runs: dict[ReplicaRun, None] = {}
        self.due = inf
        """No deadline of theirs is before this moment; monotonic seconds."""

    def add(self, run: ReplicaRun) -> None:
        self.runs[run] = None
        self.due = min(self.due, run.deadline)

    def gone(self, run: ReplicaRun) -> None:
        """The payload is complete, or the call has its answer."""
        run.awaits = False
        del self.runs[run]

    def late(self, now: float) -> list[ReplicaRun]:
        """Runs whose deadlines have passed: they are answered next, without waiting for their payloads."""
        late = [run for run in self.runs if run.deadline <= now]
        self.due = min((run.deadline for run in self.runs if run.deadline > now), default=inf)
        return late
