"""Transitions of the observed state: `(observed, fact, now) -> (observed, notices)`.

Purpose: every rule about the life of members, in one place, without a stream or a process in sight.
Invariants: a fact about a replaced or ended incarnation changes nothing; a replica is gone only by a proof that it
starts nothing any more (`exited`, `ended`, a report of STOPPED, a successor under its id after it fell silent to the
controller and to all routers): silence alone is none.
Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from controller_service.core import adoption
from controller_service.core.notices import EventKind, Notice
from controller_service.core.observed import Observed, ObservedReplica, ReplicaState, Restarts
from controller_service.core.partitions import Incarnation
from controller_service.core.replacements import UnreplacedExit, take_place, with_exit

QUICK_DEATH_S: Final = 10.0
"""A replica that dies sooner than this after it got ready makes the next start wait."""
FIRST_INTERVAL_S: Final = 0.5
LONGEST_INTERVAL_S: Final = 30.0
ENDS: Final = frozenset({ReplicaState.STOPPED, ReplicaState.FAILED})
"""States after which a process should have ended."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The new observed state, and notices for people who watch."""

    observed: Observed
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The identity that a replica reports when it attaches."""

    replica_id: str
    incarnation: str
    backend: str
    pid: int = 0
    has_served: bool = False
    """It may own partitions that an earlier generation gave it."""
    generation: str = ""
    """The generation that it served under, where that is an earlier one."""
    newest_epoch: int = 0
    """The newest owner epoch that it has seen."""
    process: str = ""
    version: str = ""
    """Of slotmesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReport:
    """The state that a replica reports."""

    state: ReplicaState
    address: str = ""
    max_ongoing: int = 0
    error: str = ""
    metrics_address: str = ""
    unhealthy: bool = False
    reconfigures: bool = False
    warning: str = ""


class AttachRefused(Exception):
    """This incarnation must not belong to the mesh (any more)."""


class NamesakeLives(Exception):
    """Another process has this id, and is not known to have ended: this one may attach when it has."""


def launched(
    observed: Observed, replica_id: str, backend: str, *, template: str, pid: int, now: float, fixed: str = ""
) -> Transition:
    """This controller started a process."""
    record = ObservedReplica(
        replica_id=replica_id,
        backend=backend,
        state=ReplicaState.STARTING,
        started_at=now,
        pid=pid,
        launched=True,
        template=template,
        fixed=fixed,
    )
    observed, record = _in_place(observed, record)
    return Transition(observed.with_replica(record), (_notice(EventKind.REPLICA_LAUNCHED, record, f"process {pid}"),))


def launch_failed(
    observed: Observed, replica_id: str, backend: str, message: str, *, now: float, template: str = ""
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
        template=template,
    )
    observed, record = _in_place(observed, record)
    record = replace(record, last_exit=message)
    observed = _vacated(_count_death(observed, record, now), record).with_replica(record)
    return Transition(observed, (_notice(EventKind.REPLICA_FAILED, record, message),))


def attached(observed: Observed, hello: Hello, *, now: float, is_heard: bool = False) -> Transition:
    """A replica opened its membership stream, for the first time or again. Raises AttachRefused, NamesakeLives.

    `is_heard`: whether the incarnation that is known under its id has reported within its lease.
    """
    owner = Incarnation(hello.replica_id, hello.incarnation)
    must_fence_through = max(1, hello.newest_epoch) if hello.has_served else 0
    served_under = hello.generation if hello.has_served else ""
    known = observed.replica(hello.replica_id)
    if known is not None:
        if hello.incarnation in known.retired or (known.gone and known.incarnation == hello.incarnation):
            raise AttachRefused(
                f"incarnation {hello.incarnation} of replica {hello.replica_id} was replaced or has ended"
            )
        _require_no_namesake(observed, known, hello, is_heard=is_heard)
    if known is not None and _is_child(known, hello):
        # Or it was launched and reaped already, and this is the beginning of its last words.
        record = replace(_introduced(known, hello), incarnation=hello.incarnation)
        return Transition(
            observed.with_replica(record), (_notice(EventKind.REPLICA_ATTACHED, record, "after its launch"),)
        )
    same = observed.incarnation(owner)
    if same is not None:
        record = replace(
            _introduced(same, hello),
            suspect_since=None,
            brought_by=None,
            served_under=served_under,
            must_fence_through=max(same.must_fence_through, must_fence_through),
        )
        words = "again"
    else:
        record = ObservedReplica(
            replica_id=hello.replica_id,
            backend=hello.backend,
            state=ReplicaState.STARTING,
            started_at=now,
            incarnation=hello.incarnation,
            served_under=served_under,
            must_fence_through=must_fence_through,
        )
        record = _introduced(record, hello)
        words = "a replica that has served before" if hello.has_served else "a new replica"
    if known is None or known is same:
        return Transition(observed.with_replica(record), (_notice(EventKind.REPLICA_ATTACHED, record, words),))
    # An elder is not younger than other elders: nothing is proven of them.
    replaced = [it for it in observed.elders if it.replica_id == hello.replica_id and same is None]
    older = (elder.incarnation for elder in replaced)
    record = replace(record, retired=known.retired, restarts=known.restarts + 1, last_exit=known.last_exit)
    record = record.having_replaced(*older, known.incarnation)
    words = f"a new incarnation replaces {known.incarnation}"
    return Transition(
        observed.without_elders([*replaced, owner]).with_replica(record),
        (_notice(EventKind.REPLICA_ATTACHED, record, words),),
    )


def _introduced(record: ObservedReplica, hello: Hello) -> ObservedReplica:
    """What a hello says of the process, whether it is the first one or not."""
    return replace(record, pid=hello.pid or record.pid, process=hello.process, version=hello.version)


def _is_child(known: ObservedReplica, hello: Hello) -> bool:
    """It is the process that this controller has launched."""
    return known.launched and not known.incarnation and known.backend == hello.backend


def _require_no_namesake(observed: Observed, known: ObservedReplica, hello: Hello, *, is_heard: bool) -> None:
    """An incarnation keeps the id while the controller or a router has a link to it, or it can come back."""
    if known.incarnation == hello.incarnation or _is_child(known, hello):
        return
    is_elder = Incarnation(hello.replica_id, hello.incarnation) in observed.elders
    is_linked = observed.is_linked(hello.replica_id)
    has_elders = any(elder.replica_id == hello.replica_id for elder in observed.elders)
    if is_elder:
        may_live = not known.gone
    else:
        may_live = (not known.gone and (known.launched or is_heard)) or (is_linked and (has_elders or not known.gone))
    if not may_live:
        return
    if known.launched:
        who = f"process {known.pid}, which this controller launched for backend {known.backend}"
    else:
        who = f"incarnation {known.incarnation} of backend {known.backend}"
        who += f" at {known.address}" if known.address else ""
    raise NamesakeLives(
        f"hello.replica_id: another process with the id {hello.replica_id!r} lives ({who}): stop it, or choose another "
        "--replica-id; it is tried again"
    )


def reported(
    observed: Observed, replica_id: str, incarnation: str, report: ObservedReport, *, now: float
) -> Transition:
    """A replica has reported its state. Returns the same `Observed` where nothing is new."""
    known = observed.replica(replica_id)
    if known is None or known.incarnation != incarnation:
        return Transition(observed)
    if known.gone:
        return _last_words(observed, known, report)
    is_ready = report.state is ReplicaState.READY
    record = replace(
        known,
        # A replica that drains is never ready again, whatever report was under way when it was ordered to.
        state=known.state if is_ready and known.state is ReplicaState.DRAINING else report.state,
        address=report.address or known.address,
        max_ongoing=report.max_ongoing,
        error=report.error,
        metrics_address=report.metrics_address,
        reconfigures=report.reconfigures,
        warning=report.warning,
        is_unhealthy=known.is_unhealthy or report.unhealthy,
        ready_at=now if is_ready and known.ready_at is None else known.ready_at,
        ended_at=now if report.state in ENDS and known.ended_at is None else known.ended_at,
        suspect_since=None,
        gone=report.state is ReplicaState.STOPPED or (report.state is ReplicaState.FAILED and known.ready_at is None),
    )
    if record == known:
        return Transition(observed)
    is_sick = record.is_unhealthy and not known.is_unhealthy
    if is_sick or (record.ended_at is not None and known.ended_at is None and not known.is_unhealthy):
        observed = _count_death(observed, known, now)
    notices: tuple[Notice, ...] = ()
    if record.shown_state is not known.shown_state:
        kind = EventKind[f"REPLICA_{record.shown_state.name}"]
        notices = (_notice(kind, record, report.error or f"at {record.address or 'no address yet'}"),)
    if is_sick:
        notices = (*notices, _notice(EventKind.REPLICA_UNHEALTHY, record, report.error))
    return Transition(observed.with_replica(record), notices)


def _last_words(observed: Observed, known: ObservedReplica, report: ObservedReport) -> Transition:
    """A process was reaped before its last report was read: why it failed is worth knowing still."""
    if report.state is not ReplicaState.FAILED or not report.error or report.error == known.error:
        return Transition(observed)
    record = replace(known, state=ReplicaState.FAILED, error=report.error)
    return Transition(observed.with_replica(record), (_notice(EventKind.REPLICA_FAILED, record, report.error),))


def exited(observed: Observed, replica_id: str, how: str, *, failed: bool, now: float) -> Transition:
    """A launched process was reaped. `how` is for a person: `killed by SIGKILL`."""
    known = observed.replica(replica_id)
    if known is None or not known.launched:
        return Transition(observed)
    was_asked = known.is_told_to_drain
    never_ready = known.ready_at is None and not was_asked
    record = replace(
        known,
        gone=True,
        reaped=True,
        state=ReplicaState.FAILED
        if known.state is ReplicaState.FAILED or (failed and never_ready)
        else ReplicaState.STOPPED,
        error=known.error or (how if failed and not was_asked else ""),
        last_exit=how,
    )
    if not was_asked and not known.reaped:
        observed = _vacated(observed, record)
    if known.ended_at is None and not known.is_unhealthy:
        observed = _count_death(observed, known, now)
    return Transition(
        observed.with_replica(record), (_notice(EventKind.REPLICA_EXITED, record, f"process {known.pid} {how}"),)
    )


def ended(observed: Observed, owner: Incarnation, how: str, *, now: float) -> Transition:
    """It is proven that an incarnation starts nothing any more. `how` is for a person: `its process has ended`."""
    known = observed.incarnation(owner)
    if known is None or known.gone:
        return Transition(observed)
    if known.ended_at is None and not known.is_unhealthy:
        observed = _count_death(observed, known, now)
    return Transition(adoption.ended(observed, owner, now), (_notice(EventKind.REPLICA_STOPPED, known, how),))


def fell_silent(observed: Observed, replica_id: str, *, now: float) -> Transition:
    """A replica's lease ran out."""
    known = observed.replica(replica_id)
    if known is None or known.gone or known.suspect_since is not None:
        return Transition(observed)
    record = replace(known, suspect_since=now)
    return Transition(
        observed.with_replica(record), (_notice(EventKind.REPLICA_SUSPECT, record, "silent past its lease"),)
    )


def told_to_drain(observed: Observed, replica_id: str, message: str) -> Transition:
    """The controller decided that a replica should end."""
    known = observed.replica(replica_id)
    if known is None or known.gone or known.is_told_to_drain:
        return Transition(observed)
    state = ReplicaState.DRAINING if known.state is ReplicaState.READY else known.state
    record = replace(known, is_told_to_drain=True, state=state)
    return Transition(observed.with_replica(record), (_notice(EventKind.REPLICA_DRAINING, record, message),))


def after_death(restarts: Restarts, replica: ObservedReplica, now: float) -> Restarts:
    """When the next replica of the backend may start: at once after a long life, later and later after short ones."""
    if replica.ready_at is not None and now - replica.ready_at >= QUICK_DEATH_S:
        return Restarts(not_before=now)
    if replica.started_at < restarts.counted_at:
        return restarts  # of the same wave as a death that was counted
    interval_s = min(LONGEST_INTERVAL_S, FIRST_INTERVAL_S * 2.0 ** min(restarts.streak, 16))
    return Restarts(streak=restarts.streak + 1, counted_at=now, not_before=now + interval_s)


def _count_death(observed: Observed, replica: ObservedReplica, now: float) -> Observed:
    if not replica.launched or replica.is_told_to_drain:
        return observed
    restarts = after_death(observed.restarts.get(replica.backend, Restarts()), replica, now)
    return observed.with_restarts(replica.backend, restarts)


def _vacated(observed: Observed, replica: ObservedReplica) -> Observed:
    """The replica has ended unasked."""
    exit_ = UnreplacedExit(
        backend=replica.backend, template=replica.template, restarts=replica.restarts, how=replica.last_exit
    )
    return replace(observed, unreplaced=with_exit(observed.unreplaced, exit_))


def _in_place(observed: Observed, started: ObservedReplica) -> tuple[Observed, ObservedReplica]:
    """The replica was started, in place of one that has ended where there is such a place."""
    left, before = take_place(observed.unreplaced, started.backend, started.template)
    if before is None:
        return observed, started
    return replace(observed, unreplaced=left), replace(started, restarts=before.restarts + 1, last_exit=before.how)


def _notice(kind: EventKind, replica: ObservedReplica, message: str) -> Notice:
    return Notice(kind=kind, subject=f"replica/{replica.replica_id}", message=f"{replica.backend}: {message}")
