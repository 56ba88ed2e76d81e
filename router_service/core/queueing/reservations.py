"""Reservations with constraints: they name the replica that they require, or some that they exclude.

Purpose: they wait beside the backend's queue, so that no call waits behind a reservation whose replica is full.
Invariants: room at a replica goes to the oldest reservation that accepts the replica, alternating with the queue, so
that neither starves the other. At most `MAX_WAITING` are admitted, so that scanning all of them costs little.
Owner: the backend; the sender serves it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from typing import TypeVar

from router_service.core.calls import Reserve
from router_service.core.limits.capacity import KnownReplica
from router_service.core.runs import RouterRun

MAX_WAITING = 256
"""Maximum number of one backend. Reservations that replicas hand back are admitted beyond it."""


GrantorT = TypeVar("GrantorT", bound=KnownReplica)


def constraint_of(run: RouterRun) -> Reserve | None:
    """The constraint of the reservation on its replica; None for a run without one."""
    work = run.slot
    return work if isinstance(work, Reserve) and work.is_constrained else None


class ConstrainedReservations:
    """The constrained reservations of one backend, by age, and whose turn it is."""

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
