"""Queues of the runs of one flow or one partition, and the runs of suspended sessions.

Invariants: runs without an SLO leave in order of age. Where runs have one, the run that is due first leaves first; a
run without an SLO counts as due `SLO_UNLESS_STATED_S` after its arrival. A run whose waiting part was withdrawn stays
until it surfaces, or until such runs are the majority.
Owner: a flow's share of a backend's queue, or one partition's keyed runs; `Acknowledgements` owns `SuspendedRuns`.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from router_service.core.rosters import SessionConnection
from router_service.core.runs import RouterRun


class _Held:
    """The waiting runs of one session."""

    __slots__ = ("runs", "sweep_at")

    def __init__(self) -> None:
        self.runs: deque[tuple[RouterRun, float, bool]] = deque()
        """Waiting runs, since when each waits, and whether it was admitted before."""
        self.sweep_at = _SWEEP_FROM


class SuspendedRuns:
    """Runs that wait until the client of their session acknowledges all replicas that calls go to, by session.

    Invariants: a run that waits here is in no queue, and stays no longer than the connection of its session.
    """

    def __init__(self) -> None:
        self._held: dict[SessionConnection, _Held] = {}

    def hold(self, session: SessionConnection, run: RouterRun, now: float, *, is_admitted: bool) -> None:
        """The run waits until the client knows all replicas that calls go to."""
        held = self._held.setdefault(session, _Held())
        held.runs.append((run, now, is_admitted))
        if len(held.runs) > held.sweep_at:
            held.runs = deque(each for each in held.runs if each[0].waiting)
            held.sweep_at = max(_SWEEP_FROM, 2 * len(held.runs))

    def since(self, session: SessionConnection) -> float:
        """When the oldest run of the session began to wait, monotonic seconds; infinite where none waits."""
        held = self._held.get(session)
        if held is None:
            return inf
        while held.runs and not held.runs[0][0].waiting:
            held.runs.popleft()
        return held.runs[0][1] if held.runs else inf

    def release(self, session: SessionConnection) -> list[tuple[RouterRun, bool]]:
        """Removes and returns the runs of the session, by age, and whether each was admitted before."""
        held = self._held.pop(session, None)
        waiting = sorted((each for each in held.runs if each[0].waiting), key=lambda each: each[0].age) if held else []
        return [(run, is_admitted) for run, _, is_admitted in waiting]

    def forget(self, session: SessionConnection) -> None:
        """The connection has ended."""
        self._held.pop(session, None)

    def __len__(self) -> int:
        return sum(len(held.runs) for held in self._held.values())


_SWEEP_FROM = 1024


class RunQueue:
    """A FIFO of runs into which refused ones go back by age."""

    __slots__ = ("_sweep_at", "runs")

    def __init__(self) -> None:
        self.runs: deque[RouterRun] = deque()
        """Some may have no waiting calls; `head` drops those."""
        self._sweep_at = _SWEEP_FROM

    def append(self, run: RouterRun) -> None:
        """Queues the newest run."""
        self.runs.append(run)
        if len(self.runs) > self._sweep_at:
            self.runs = deque(each for each in self.runs if each.waiting)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self.runs))

    def put_back(self, *runs: RouterRun) -> None:
        """Queues runs, oldest first, that are older than others: each before all younger, after its earlier slices.

        One pass over the runs older than the last of them, however many they are.
        """
        queue = self.runs
        first: list[RouterRun] = []
        for run in runs:
            age = run.age
            while queue and (not queue[0].waiting or queue[0].age < age):
                older = queue.popleft()
                if older.waiting:
                    first.append(older)
            first.append(run)
        queue.extendleft(reversed(first))

    def head(self) -> RouterRun | None:
        """The oldest run with waiting calls, or None."""
        runs = self.runs
        while runs:
            run = runs[0]
            if run.cursor < len(run.payloads):
                return run
            runs.popleft()
        return None

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits, oldest first."""
        runs = [run for run in self.runs if run.waiting]
        self.runs.clear()
        return runs

    def __bool__(self) -> bool:
        return self.head() is not None


class SloQueue:
    """Runs of one flow, the one that is due first at the head: a FIFO beside a heap of those that state an SLO."""

    __slots__ = ("_fifo", "_pushes", "_stated", "_sweep_at")

    def __init__(self) -> None:
        self._fifo = RunQueue()
        self._stated: list[tuple[float, int, int, int, RouterRun]] = []
        """(due, age, number of the push): no two entries are equal, so runs are never compared. The age is that of the
        time when the run was pushed or last at the head: only calls of the head can have left since."""
        self._pushes = 0
        self._sweep_at = _SWEEP_FROM

    def append(self, run: RouterRun) -> None:
        """Queues the newest run."""
        if run.options.slo_s is None:
            self._fifo.append(run)
        else:
            self._push(run)

    def put_back(self, *runs: RouterRun) -> None:
        """Queues runs, oldest first, that are older than others."""
        self._fifo.put_back(*(run for run in runs if run.options.slo_s is None))
        for run in runs:
            if run.options.slo_s is not None:
                self._push(run)

    def head(self) -> RouterRun | None:
        """The run that is due first, or None."""
        oldest = self._fifo.head()
        stated = self._stated
        while stated:
            due, seq, first, number, run = stated[0]
            if not run.waiting:
                heappop(stated)
            elif run.ids[run.cursor] != first:  # some of it has left: what comes back of that is older than the rest
                heapreplace(stated, (due, seq, run.ids[run.cursor], number, run))
            else:
                break
        else:
            return oldest
        if oldest is not None and (oldest.due, oldest.seq) <= stated[0][:2]:
            return oldest
        return stated[0][-1]

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits."""
        runs = [*self._fifo.drain(), *(entry[-1] for entry in self._stated if entry[-1].waiting)]
        self._stated.clear()
        return runs

    def _push(self, run: RouterRun) -> None:
        self._pushes += 1
        heappush(self._stated, (run.due, *run.age, self._pushes, run))
        if len(self._stated) > self._sweep_at:
            self._stated = [entry for entry in self._stated if entry[-1].waiting]
            heapify(self._stated)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._stated))
