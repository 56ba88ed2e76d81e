"""What waits: queues of the runs of one flow or one partition, the runs of suspended sessions, and reservations.

Constrained reservations name the replica that they require, or some that they exclude.

Invariants: runs without an SLO leave in order of age. Where runs have one, the run that is due first leaves first; a
run without an SLO counts as due `SLO_UNLESS_STATED_S` after its arrival. A run whose waiting part was withdrawn stays
until it surfaces, or until such runs are the majority.
Owner: a flow's share of a backend's queue, or one partition's keyed runs; `Acknowledgements` owns `SuspendedRuns`, and
the backend its `ConstrainedReservations`.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from math import inf
from typing import TypeVar

from router_service.core.calls import Reserve
from router_service.core.limits.capacity import KnownReplica
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
LOOK_AHEAD = 32
"""Runs of a queue of which one may leave before the head, because the replica that has room suits it better."""


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

    def insert(self, run: RouterRun) -> None:
        """Queues a run before those that are younger, of which there are few."""
        younger: list[RouterRun] = []
        while self.runs and not (self.runs[-1].waiting and self.runs[-1].age <= run.age):
            last = self.runs.pop()
            if last.waiting:
                younger.append(last)
        self.append(run)
        self.runs.extend(reversed(younger))

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

    def behind(self) -> list[RouterRun]:
        """The runs behind the head with waiting calls, oldest first, of the first `LOOK_AHEAD` places."""
        return [run for run in islice(self.runs, 1, LOOK_AHEAD) if run.cursor < len(run.payloads)]

    def overtook(self, run: RouterRun) -> None:
        """Calls of a run behind the head were sent: one without waiting calls leaves, so that the others move up."""
        if not run.waiting:
            self.runs.remove(run)

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits, oldest first."""
        runs = [run for run in self.runs if run.waiting]
        self.runs.clear()
        return runs

    def __bool__(self) -> bool:
        return self.head() is not None


class SloQueue:
    """Runs of one flow, the one that is due first at the head: a FIFO beside a heap of those that state an SLO."""

    __slots__ = ("_fifo", "_overtaken", "_overtook", "_pushes", "_stated", "_sweep_at")

    def __init__(self) -> None:
        self._fifo = RunQueue()
        self._overtaken: tuple[int, int] = (0, 0)
        """Age of the head that calls overtook last."""
        self._overtook = 0
        """The number of these calls."""
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

    def overtakers(self, head: RouterRun) -> int:
        """The number of calls that have overtaken the head."""
        return self._overtook if self._overtaken == head.age else 0

    def behind(self, head: RouterRun) -> list[RouterRun]:
        """Runs that may overtake the head, oldest first. None with an SLO overtakes or is overtaken."""
        stated = self._stated
        if head.options.slo_s is not None:
            return []
        if stated:
            first = stated[0][:2]
            return [run for run in self._fifo.behind() if (run.due, run.seq) <= first]
        return self._fifo.behind()

    @property
    def may_delay(self) -> bool:
        """Whether the head may wait for a replica while others have room: no call with an SLO would wait with it."""
        return not self._stated

    def overtook(self, head: RouterRun, run: RouterRun, count: int) -> None:
        """`count` calls of a run behind the head were sent."""
        self._overtaken, self._overtook = head.age, self.overtakers(head) + count
        self._fifo.overtook(run)

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


MAX_WAITING = 256
"""Maximum number of constrained ones of one backend. Reservations that replicas hand back are admitted beyond it."""

GrantorT = TypeVar("GrantorT", bound=KnownReplica)


def constraint_of(run: RouterRun) -> Reserve | None:
    """The constraint of the reservation on its replica; None for a run without one."""
    work = run.slot
    return work if isinstance(work, Reserve) and work.is_constrained else None


class ConstrainedReservations:
    """The constrained reservations of one backend, by age, and whose turn it is.

    Purpose: they wait beside the backend's queue, so that no call waits behind a reservation whose replica is full.
    Invariants: room at a replica goes to the oldest reservation that accepts the replica, alternating with the queue,
    so that neither starves the other. At most `MAX_WAITING` are admitted, so that scanning all of them costs little.
    """

    __slots__ = ("_alike", "is_next")

    def __init__(self) -> None:
        self._alike: dict[tuple[str, frozenset[str]], list[RouterRun]] = {}
        """Reservations with the same constraint, by age. Cancelled ones are dropped lazily."""
        self.is_next = True
        """If a replica suits one of these and the queue, it goes to these."""

    @property
    def is_full(self) -> bool:
        """Whether no more are admitted."""
        return sum(1 for _ in self) >= MAX_WAITING

    def add(self, run: RouterRun) -> None:
        """Adds a reservation by its age."""
        constraint = constraint_of(run) or Reserve()
        alike = constraint.replica_id, constraint.excluded
        runs = self._alike[alike] = [each for each in self._alike.get(alike, ()) if each.waiting]
        insort(runs, run, key=_age)

    def match(self, replicas: Collection[GrantorT]) -> tuple[RouterRun, GrantorT] | None:
        """The oldest reservation that one of these replicas (all with room) satisfies, and the least loaded of them.

        The caller must send it immediately. Costs one step per distinct constraint: called whenever a replica answers.
        """
        ids = {each.replica_id for each in replicas}
        fit = [
            runs[0]
            for (wanted, excluded), runs in self._alike.items()
            if (not ids <= excluded if not wanted else wanted in ids and wanted not in excluded) and _drop_gone(runs)
        ]
        run = min(fit, key=_age, default=None)
        replica = best_for(run, replicas) if run is not None else None
        return (run, replica) if run is not None and replica is not None else None

    def drain(self) -> list[RouterRun]:
        """Takes out all that waits, oldest first."""
        runs = sorted(self, key=_age)
        self._alike.clear()
        return runs

    def __bool__(self) -> bool:
        if not self._alike:
            return False
        for alike in [alike for alike, runs in self._alike.items() if not _drop_gone(runs)]:
            del self._alike[alike]
        return bool(self._alike)

    def __iter__(self) -> Iterator[RouterRun]:
        """What waits, in no order."""
        return (run for runs in self._alike.values() for run in runs if run.waiting)


def _age(run: RouterRun) -> int:
    return run.seq


def _drop_gone(runs: list[RouterRun]) -> bool:
    """Drops runs that no longer wait from the front; returns whether any run is left."""
    while runs and not runs[0].waiting:
        del runs[0]
    return bool(runs)


def best_for(run: RouterRun, replicas: Collection[GrantorT]) -> GrantorT | None:
    """The least loaded replica with room that satisfies the reservation."""
    constraint = constraint_of(run)
    fit = [each for each in replicas if each.free > 0 and (not constraint or constraint.admits(each.replica_id))]
    return min(fit, key=lambda each: each.load, default=None)


def can_serve(replicas: Collection[KnownReplica], constraint: Reserve) -> bool:
    """Whether one of the replicas satisfies the constraint, now or later."""
    return any(constraint.admits(each.replica_id) for each in replicas)
