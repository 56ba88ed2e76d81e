"""What a lane's history means for a call: whether later calls have run, and whether an earlier one has failed.

Purpose: reads and notes, for runs, what their session remembers of lanes (`Progress`, `Stops`). Whether a call may
start is answered in `starting/claims.py`.
Owner: the scheduler's parts and the shell's sessions note; executors mark and read.
"""

from __future__ import annotations

from replica_service.core.calls import ReplicaRun


def note_progress(run: ReplicaRun, index: int) -> None:
    """The calls of the run up to this one have started."""
    record = run.record
    if record is not None and (session := record.session) is not None:
        session.progress.started(run.endpoint, run.ordering_key, record.call_ids[index])


def is_passed(run: ReplicaRun) -> bool:
    """Whether calls that came after the next one of this run have started, or may have."""
    record = run.record
    if record is None or (session := record.session) is None:
        return False
    call_id = record.call_ids[run.lo]
    return session.progress.is_passed(run.endpoint, run.ordering_key, call_id, again=record.attempt > 0)


def is_stopped(run: ReplicaRun, index: int) -> bool:
    """Whether a call must not start because one before it has failed."""
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
    """Whether a call that ends now has failed, whatever it returns: it is overdue, in a lane that stops."""
    return run.options.stop_generation > 0 and now >= run.deadline


def mark_failure(run: ReplicaRun, lo: int) -> None:
    """The same as `note_failure`, on the thread that executes the run; the engine notes it later."""
    if run.options.stop_generation:
        run.failed_at = min(run.failed_at, lo)


def note_failure(run: ReplicaRun, lo: int) -> None:
    """The calls of the run from index `lo` on, one at least, have failed."""
    record = run.record
    if run.ordering_key and record is not None and (session := record.session) is not None:
        session.stops.failed(run.endpoint, run.ordering_key, run.options.stop_generation, record.call_ids[lo])
