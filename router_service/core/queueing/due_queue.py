"""The unkeyed runs that wait for one backend, whoever has sent them: the one that is due first leaves first.

Purpose: SLOs order among all callers, in place of fairness between them (`slo_scope: backend`).
Invariants: runs leave as of one `SloQueue`, but while the queue is braked: then only those do that came with few calls.
Owner: the backend.
"""

from __future__ import annotations

from router_service.core.queueing.fair_queue import FEW_CALLS
from router_service.core.queueing.run_queues import SloQueue
from router_service.core.runs import RouterRun


class DueQueue:
    """Runs of all flows. Used as `FairQueue` is."""

    __slots__ = ("_few", "_many", "is_braked")

    def __init__(self) -> None:
        self.is_braked = False
        """Clients have too many results unread: runs with many calls wait."""
        self._few = SloQueue()
        """Runs that came with few calls."""
        self._many = SloQueue()

    def brake(self, *, is_on: bool) -> None:
        """Puts the brake on, or takes it off."""
        self.is_braked = is_on

    def append(self, run: RouterRun) -> None:
        """Queues the newest run."""
        self._queue_of(run).append(run)

    def put_back(self, *runs: RouterRun) -> None:
        """Queues runs, oldest first, that are older than others."""
        for queue in (self._few, self._many):
            if back := [run for run in runs if self._queue_of(run) is queue]:
                queue.put_back(*back)

    def head(self) -> RouterRun | None:
        """The run that is due first of those that may leave, or None."""
        few = self._few.head()
        many = None if self.is_braked else self._many.head()
        if few is None or many is None:
            return few or many
        return few if (few.due, *few.age) <= (many.due, *many.age) else many

    def turn(self, run: RouterRun) -> int:
        """How many calls of the head may be sent: nobody else has a turn."""
        return run.waiting

    def served(self, count: int) -> None:
        """`count` calls of the head were sent."""

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits, oldest first."""
        return sorted((*self._few.drain(), *self._many.drain()), key=lambda run: run.age)

    def __bool__(self) -> bool:
        return self.head() is not None

    def _queue_of(self, run: RouterRun) -> SloQueue:
        return self._few if run.waiting <= FEW_CALLS else self._many
