"""Transitions of launched replicas: started, found running, given up, lost, reaped.

Invariants: a replica that ends unasked leaves one place for the next, however its end was learnt; a replica that was
given up is not gone before its process was reaped: until then it may start calls, and keeps its partitions.
Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from dataclasses import replace

from controller_service.core.event_log import EventKind
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.observed.transitions import (
    Transition,
    count_death,
    in_place,
    loop_notices,
    replica_notice,
    vacated,
)
from slotmesh.spec.devices import read_devices


def launched(
    observed: Observed,
    replica_id: str,
    backend: str,
    *,
    template: str,
    pid: int,
    now: float,
    fixed: str = "",
    process: str = "",
    handler_version: str = "",
    was_found: bool = False,
) -> Transition:
    """A process was started. `was_found`: by an earlier life of this controller; the replica is this one's from now."""
    known = observed.replica(replica_id) if was_found else None
    if known is not None and (known.launched or known.gone):
        return Transition(observed)
    base = known or ObservedReplica(replica_id=replica_id, backend=backend, state=ReplicaState.STARTING, started_at=now)
    record = replace(
        base,
        launched=True,
        template=template,
        fixed=fixed,
        handler_version=handler_version,
        pid=pid,
        process=process or base.process,
    )
    named = f"process {pid}" if pid else "its pod"
    kind, words = EventKind.REPLICA_ADOPTED, f"{named} runs on from before this controller's start"
    if not was_found:
        kind, words = EventKind.REPLICA_LAUNCHED, named
        observed, record = in_place(observed, record)
    return Transition(observed.with_replica(record), (replica_notice(kind, record, words),))


def holds(observed: Observed, replica_id: str, devices: str) -> Transition:
    """The devices of a replica that was started, as in `LaunchOrder.devices`."""
    known = observed.replica(replica_id)
    if known is None:
        return Transition(observed)
    return Transition(observed.with_replica(replace(known, devices=tuple(map(str, read_devices(devices))))))


def waits(observed: Observed, replica_id: str, why: str, *, now: float) -> Transition:
    """The system that starts a launched replica has not started it: `why`. Empty: it was started, now.

    Its time to get ready begins then.
    """
    known = observed.replica(replica_id)
    if known is None or not known.launched or known.waits_for == why:
        return Transition(observed)
    started_at = known.started_at if known.has_attached else now
    return Transition(observed.with_replica(replace(known, waits_for=why, started_at=started_at)))


def lost(observed: Observed, replica_id: str, why: str, *, now: float) -> Transition:
    """The launcher of a replica has lost it, without a proof of its end: another one may start in its place.

    It is like one that was started elsewhere, and is asked to drain if it still reports. It keeps its partitions until
    it has ended, has fenced itself, or an operator vouches for its end.
    """
    known = observed.replica(replica_id)
    if known is None or not known.launched or known.reaped:
        return Transition(observed)
    before = observed
    record = replace(
        known,
        launched=False,
        is_drain_requested=True,
        state=ReplicaState.DRAINING if known.state is ReplicaState.READY else known.state,
        suspect_since=known.suspect_since if known.has_attached else now,
        last_exit=why,
        waits_for="",
    )
    if not known.is_drain_requested and not known.is_given_up:
        observed = vacated(observed, record)
    if known.ended_at is None and not known.is_unhealthy and not known.is_given_up:
        observed = count_death(observed, known, now)
    notice = replica_notice(EventKind.REPLICA_SUSPECT, record, why)
    return Transition(observed.with_replica(record), (notice, *loop_notices(before, observed, record, why, now)))


def launch_failed(
    observed: Observed,
    replica_id: str,
    backend: str,
    message: str,
    *,
    now: float,
    template: str = "",
    handler_version: str = "",
) -> Transition:
    """This controller could not start a process."""
    record = ObservedReplica(
        replica_id=replica_id,
        backend=backend,
        state=ReplicaState.FAILED,
        started_at=now,
        error=message,
        launched=True,
        gone=True,
        reaped=True,
        has_not_started=True,
        template=template,
        handler_version=handler_version,
    )
    before = observed
    observed, record = in_place(observed, record)
    record = replace(record, last_exit=message)
    observed = vacated(count_death(observed, record, now), record).with_replica(record)
    notice = replica_notice(EventKind.REPLICA_FAILED, record, message)
    return Transition(observed, (notice, *loop_notices(before, observed, record, message, now)))


def given_up(observed: Observed, replica_id: str, message: str, *, now: float) -> Transition:
    """A launched replica is hung: it is being killed, and another one may start in its place."""
    known = observed.replica(replica_id)
    if known is None or not known.launched or known.reaped or known.is_given_up:
        return Transition(observed)
    before, was_asked = observed, known.is_drain_requested
    record = replace(known, is_given_up=True, error=message, last_exit=message)
    if not was_asked:
        observed = vacated(observed, record)
    if known.ended_at is None and not known.is_unhealthy:
        observed = count_death(observed, known, now)
    notice = replica_notice(EventKind.REPLICA_DEAD, record, message)
    return Transition(observed.with_replica(record), (notice, *loop_notices(before, observed, record, message, now)))


def exited(
    observed: Observed,
    replica_id: str,
    how: str,
    *,
    failed: bool,
    now: float,
    was_killed: bool = False,
    last_output: str = "",
) -> Transition:
    """A launched process was reaped. `how` is for a person: `killed by SIGKILL`.

    `was_killed`: by SIGKILL, from any sender. `last_output` are the last lines that it has written.
    """
    known = observed.replica(replica_id)
    if known is None or not known.launched:
        return Transition(observed)
    before, was_asked = observed, known.is_drain_requested
    words = known.with_own_reason(how)
    never_ready = known.ready_at is None and not was_asked
    record = replace(
        known,
        gone=True,
        reaped=True,
        state=ReplicaState.FAILED
        if known.state is ReplicaState.FAILED or (failed and never_ready)
        else ReplicaState.STOPPED,
        error=known.error or (how if failed and not was_asked else ""),
        last_exit=known.last_exit if known.is_given_up else words,
        last_output=last_output or known.last_output,
    )
    if not was_asked and not known.reaped and not known.is_given_up:
        observed = vacated(observed, record)
    if known.ended_at is None and not known.is_unhealthy and not known.is_given_up:
        observed = count_death(observed, known, now, was_killed=was_killed)
    named = f"process {known.pid}" if known.pid else "its process"
    notice = replica_notice(EventKind.REPLICA_EXITED, record, f"{named} {words}")
    return Transition(observed.with_replica(record), (notice, *loop_notices(before, observed, record, words, now)))
