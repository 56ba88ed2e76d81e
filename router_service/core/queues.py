"""Runs that wait, oldest first.

Invariants: ordered by age; a run whose waiting part was taken back stays until it surfaces, or until such runs are the
majority.
Owner: a backend's unkeyed runs, or one partition's keyed runs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_service.core.calls import Run

_SWEEP_FROM = 1024


class RunQueue:
    """A FIFO of runs into which refused ones go back by age."""

    __slots__ = ("_runs", "_sweep_at")

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()
        self._sweep_at = _SWEEP_FROM

    def append(self, run: Run) -> None:
        """Queues the newest run."""
        self._runs.append(run)
        if len(self._runs) > self._sweep_at:
            self._runs = deque(each for each in self._runs if each.waiting)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._runs))

    def put_back(self, run: Run) -> None:
        """Queues a run that is older than others: before all that are younger, after its own earlier slices."""
        runs = self._runs
        older: list[Run] = []
        while runs and (not runs[0].waiting or runs[0].age < run.age):
            older.append(runs.popleft())
        runs.appendleft(run)
        runs.extendleft(reversed(older))

    def head(self) -> Run | None:
        """The oldest run with something that waits, or None."""
        runs = self._runs
        while runs:
            run = runs[0]
            if run.cursor < len(run.payloads):
                return run
            runs.popleft()
        return None

    def drain(self) -> list[Run]:
        """Takes out all that waits, oldest first."""
        runs = [run for run in self._runs if run.waiting]
        self._runs.clear()
        return runs

    def __bool__(self) -> bool:
        return self.head() is not None
