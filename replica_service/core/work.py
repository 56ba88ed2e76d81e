"""The work that executors get, and the claims by which they start its calls.

The three `Start…` commands are an executor's work: it keeps its position in them, and ends them by the events
`CallsEnded`, `TurnEnded`, `BatchEnded`, or `WorkReturned` if they have not started. `StartTurn` is in `runs.py`, beside
the lane that has it. A claim is the single check that every executor makes right before it runs a call's code: it
covers deadlines, links that are not fresh, sessions that moved, calls that were taken back, lanes that have stopped,
and the length of a turn. After the arguments are decoded, executors check the clock against `StartNow.until`.
Invariants: a claimed call has started: a later hold of its turn finds it before `turn.next`; a call that was not
claimed never starts. A claim and a hold of one turn exclude each other across threads.
The functions in between read and note, for runs, what their session remembers of lanes (`Progress`, `Stops`).
Owner: the scheduler makes the work; each executor has its own `TurnClaims`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple, TypeAlias

from replica_service.core.failures import CANCELLED, EXPIRED, UNHEARD
from replica_service.core.runs import ReplicaLane, ReplicaRun, StartTurn
from slotmesh.errors import Failure

Part: TypeAlias = tuple[ReplicaRun, int, int]
"""The calls from `lo` up to `hi` of a run."""


class StartCalls:
    """Start the calls from `lo` up to `hi` of the run concurrently, in any order: each holds a permit."""

    __slots__ = ("hi", "lo", "run")

    def __init__(self, run: ReplicaRun, lo: int, hi: int) -> None:
        self.run = run
        self.lo = lo
        """The first call that has not started; advanced by the executor."""
        self.hi = hi


class StartBatch:
    """Invoke the batch method with these calls."""

    __slots__ = ("began", "count", "lanes", "method", "parts", "runner", "started_at")

    def __init__(self, method: str, parts: Sequence[Part], lanes: Sequence[ReplicaLane], count: int) -> None:
        self.method = method
        self.parts = parts
        """In order. Parts of one run ascend."""
        self.lanes = lanes
        """The lanes that calls of the batch belong to."""
        self.count = count
        """Calls in all parts."""
        self.started_at = 0.0
        """When it was cut; monotonic seconds."""
        self.began: float | None = None
        """When an executor handed it to the method; monotonic seconds."""
        self.runner: Any = None
        """State of the executor that executes it; opaque here."""


WorkCommand = StartCalls | StartTurn | StartBatch
"""The work of executors."""


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


class StartNow(NamedTuple):
    """These calls start now."""

    hi: int
    """Index after the last one of them."""
    until: float
    """Monotonic seconds: a call whose code has not begun at this time needs another claim."""


class Skip(NamedTuple):
    """These calls must not start; all of them end in one failure."""

    hi: int
    """Index after the last one of them."""
    failure: Failure


Claim: TypeAlias = StartNow | Skip | None
"""None: no further call of this work starts. Calls that have not started are returned to the scheduler."""


def claim(run: ReplicaRun, lo: int, hi: int, now: float) -> Claim:
    """Whether calls of the run, from index `lo` up to `hi`, may start; in a lane that stops, one at a time."""
    link = run.link
    if now >= run.deadline:
        return Skip(hi, EXPIRED)
    if now >= link.fresh_until or (run.record is not None and run.record.is_fenced):
        return None
    if run.options.stop_generation:
        if is_stopped(run, lo):
            return None  # the lane's next turn fails the rest
        hi = lo + 1
    if (withdrawn := run.withdrawn) is not None:
        if lo in withdrawn:
            return Skip(lo + 1, CANCELLED)
        hi = next((index for index in range(lo + 1, hi) if index in withdrawn), hi)
    return StartNow(hi, min(run.deadline, link.fresh_until))


def too_late(run: ReplicaRun, now: float) -> Failure | None:
    """Returns why calls of the run must not start any more in a batch; None if they may."""
    if now >= run.deadline:
        return EXPIRED
    return UNHEARD if now >= run.link.fresh_until else None


def may_begin(parts: Sequence[Part], now: float) -> bool:
    """Whether all calls of a batch may start; if not, the whole batch is returned to the scheduler."""
    return all(
        now < run.link.fresh_until and now < run.deadline and not (run.record is not None and run.record.is_fenced)
        for run, _, _ in parts
    )


_OPEN: Final = nullcontext()


class TurnClaims:
    """Claims the calls of turns in sequence."""

    __slots__ = ("_guard", "_one_by_one")

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        """`lock`: another thread may hold turns while their calls are executed, so calls are claimed one by one."""
        self._guard = _OPEN if lock is None else lock
        self._one_by_one = lock is not None

    def claim(self, turn: StartTurn, index: int, now: float, most: int = sys.maxsize) -> Claim:
        """Claims up to `most` calls of the turn from `index` on.

        With a lock only the first of them has started, and `go_on` must be called before each other one.
        """
        if index == turn.lo:
            turn.over = now + MAX_TURN_S
        elif now >= turn.over:
            return None
        with self._guard:
            if index >= turn.stop:
                return None
            found = claim(turn.run, index, min(turn.stop, index + most), now)
            if found is None:
                return None
            turn.next = index + 1 if self._one_by_one and isinstance(found, StartNow) else found.hi
            return found

    def go_on(self, turn: StartTurn, index: int) -> bool:
        """Claims the next call after one that was claimed. Returns whether it starts."""
        run = turn.run
        with self._guard:
            if index >= turn.stop or (run.withdrawn is not None and index in run.withdrawn):
                return False
            turn.next = index + 1
            return True

    def hold(self, turn: StartTurn) -> None:
        """Prevents the turn's next calls from starting. Afterwards `turn.stop` is the first of them."""
        with self._guard:
            turn.stop = turn.next
