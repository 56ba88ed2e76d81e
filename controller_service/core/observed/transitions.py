"""Transitions of the observed state: `(observed, fact, now) -> (observed, notices)`.

Purpose: every rule about the life of members, in one place, without a stream or a process in sight.
Invariants: a fact about a replaced or ended incarnation changes nothing; a replica is gone only by a proof that it
starts nothing any more (`exited`, `ended`, a report of STOPPED, a successor under its id after it fell silent to the
controller and to all routers): silence alone is none.
Restarts: after a long life the next replica starts immediately; after short ones with growing delays, unless replicas
that were ready were killed from outside: no handler ends by SIGKILL, so these start again soon. Deaths of one wave
count once. What is counted belongs to a template: a new version starts without delay, and a healthy replica of another
version does not make one of its own less of a crash loop. A long life ends the row, however it ended.
Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.desired.state import ReplicaOrder
from controller_service.core.event_log import EventKind, Notice
from controller_service.core.observed import adoption, ranks
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.replicas import STARTS_KEPT, UnreplacedExit, take_place, with_exit
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState, Restarts
from controller_service.core.partition_owners import Incarnation

QUICK_DEATH_S: Final = 10.0
"""A replica that dies sooner than this after it got ready makes the next start wait."""
FIRST_INTERVAL_S: Final = 0.5
LONGEST_INTERVAL_S: Final = 30.0
LOOPING_AFTER: Final = 3
"""This number of waves of quick deaths in a row makes a crash loop."""


def after_death(restarts: Restarts, replica: ObservedReplica, now: float, *, was_killed: bool = False) -> Restarts:
    """When the next replica of the template may start: immediately after a long life, later and later after short ones.

    `was_killed`: by SIGKILL, and not by this controller.
    """
    if _has_lived_long(replica, now):
        return Restarts()
    if replica.started_at < restarts.counted_at:
        return restarts  # of the same wave as a death that was counted
    if was_killed and replica.ready_at is not None:
        return replace(restarts, counted_at=now, not_before=now + FIRST_INTERVAL_S)
    interval_s = min(LONGEST_INTERVAL_S, FIRST_INTERVAL_S * 2.0 ** min(restarts.streak, 16))
    return Restarts(streak=restarts.streak + 1, counted_at=now, not_before=now + interval_s)


def count_death(observed: Observed, replica: ObservedReplica, now: float, *, was_killed: bool = False) -> Observed:
    """A replica has ended, as far as it was launched. One that was asked to does not count, but for its long life."""
    if not replica.launched or (replica.is_drain_requested and not _has_lived_long(replica, now)):
        return observed
    backend, template = replica.backend, replica.template
    restarts = observed.restarts_of(backend, template)
    if any(
        it.template == template and _has_lived_long(it, now) and (it.ready_at or 0.0) > restarts.counted_at
        for it in observed.replicas(backend)
        if it.ended_at is None and not it.gone
    ):
        restarts = Restarts()  # another one that was started since lives: the row has ended
    return observed.with_restarts(backend, template, after_death(restarts, replica, now, was_killed=was_killed))


def _has_lived_long(replica: ObservedReplica, now: float) -> bool:
    return replica.ready_at is not None and now - replica.ready_at >= QUICK_DEATH_S


def loop_notices(
    before: Observed, after: Observed, replica: ObservedReplica, how: str, now: float
) -> tuple[Notice, ...]:
    """A notice where one more wave of deaths makes, or prolongs, a crash loop. `how` the replica, the newest, ended."""
    backend, template = replica.backend, replica.template
    restarts = after.restarts_of(backend, template)
    if restarts.streak < LOOPING_AFTER or restarts.streak <= before.restarts_of(backend, template).streak:
        return ()
    wait_s = max(0.0, restarts.not_before - now)
    message = f"{restarts.streak} times in a row its replicas have ended soon after their start, the last one so: {how}"
    message += f"; the next start is in {wait_s:.1f} s"
    return (Notice(kind=EventKind.BACKEND_CRASH_LOOPING, subject=f"backend/{backend}", message=message),)


def vacated(observed: Observed, replica: ObservedReplica) -> Observed:
    """The replica has ended unasked."""
    exit_ = UnreplacedExit(
        backend=replica.backend,
        template=replica.template,
        restarts=replica.restarts,
        how=replica.last_exit,
        last_output=replica.last_output,
        starts=(*replica.earlier_starts, replica.started_at)[-STARTS_KEPT:],
    )
    return replace(observed, unreplaced=with_exit(observed.unreplaced, exit_))


def in_place(observed: Observed, started: ObservedReplica) -> tuple[Observed, ObservedReplica]:
    """The replica was started, in place of one that has ended where there is such a place."""
    left, before = take_place(observed.unreplaced, started.backend, started.template)
    if before is None:
        return observed, started
    record = replace(
        started,
        restarts=before.restarts + 1,
        earlier_starts=before.starts,
        last_exit=before.how,
        last_output=before.last_output,
    )
    return replace(observed, unreplaced=left), record


ENDS: Final = frozenset({ReplicaState.STOPPED, ReplicaState.FAILED})
"""States after which a process should have ended."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The new observed state, and notices for people who watch."""

    observed: Observed
    notices: tuple[Notice, ...] = ()


class AttachRefused(Exception):
    """This incarnation must not belong to the mesh (any more)."""


class NamesakeLives(Exception):
    """Another process has this id, and is not known to have ended: this one may attach when it has."""


def attached(
    observed: Observed, hello: Hello, *, now: float, is_heard: bool = False, has_departed: bool = False
) -> Transition:
    """A replica opened its membership stream, for the first time or again. Raises AttachRefused, NamesakeLives.

    `is_heard`: whether the incarnation that is known under its id has reported within its lease. `has_departed`: the
    roster lists this incarnation as departed, and no record of it is left.
    """
    if has_departed:
        raise AttachRefused(f"incarnation {hello.incarnation} of replica {hello.replica_id} counts as ended")
    owner = Incarnation(hello.replica_id, hello.incarnation)
    must_fence_through = _must_fence_through(hello)
    served_under = hello.generation if hello.has_served else ""
    known = observed.replica(hello.replica_id)
    if known is not None:
        if hello.incarnation in known.retired or (known.gone and known.incarnation == hello.incarnation):
            raise AttachRefused(
                f"incarnation {hello.incarnation} of replica {hello.replica_id} was replaced or has ended"
            )
        _require_no_namesake(observed, known, hello, is_heard=is_heard)
    if known is not None and _is_child(known, hello):
        return _attached_child(observed, known, hello)
    same = observed.incarnation(owner)
    if same is not None:
        record = replace(
            _introduced(same, hello),
            suspect_since=None,
            named_by=None,
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
        notices = (replica_notice(EventKind.REPLICA_ATTACHED, record, words),)
        return Transition(ranks.with_attached(observed, record), notices)
    # An unresolved incarnation is not newer than others of them: nothing is proven of those.
    replaced = [it for it in observed.unresolved if it.replica_id == hello.replica_id and same is None]
    record = replace(record, retired=known.retired, restarts=known.restarts + 1, last_exit=known.last_exit)
    record = record.having_replaced(*(it.incarnation for it in replaced), known.incarnation)
    words = f"a new incarnation replaces {known.incarnation}"
    return Transition(
        ranks.with_attached(observed.without_unresolved([*replaced, owner]), record),
        (replica_notice(EventKind.REPLICA_ATTACHED, record, words),),
    )


def _attached_child(observed: Observed, known: ObservedReplica, hello: Hello) -> Transition:
    """The first attachment here of a process that was launched; or it was reaped already, and has its last words."""
    record = replace(
        _introduced(known, hello),
        incarnation=hello.incarnation,
        served_under=hello.generation if hello.has_served else "",
        must_fence_through=max(known.must_fence_through, _must_fence_through(hello)),
    )
    words = "after its launch, for the first time here" if hello.has_served else "after its launch"
    return Transition(
        ranks.with_attached(observed.without_unresolved([record.owner]), record),
        (replica_notice(EventKind.REPLICA_ATTACHED, record, words),),
    )


def _must_fence_through(hello: Hello) -> int:
    return max(1, hello.newest_epoch) if hello.has_served else 0


def _introduced(record: ObservedReplica, hello: Hello) -> ObservedReplica:
    """The process as a hello describes it, whether it is the first one or not."""
    return replace(
        record,
        pid=hello.pid or record.pid,
        process=hello.process,
        version=hello.version,
        fenced_after_s=hello.fenced_after_s,
        process_began_s=hello.process_began_s,
        pod_uid=hello.pod_uid,
        devices=hello.devices or record.devices,
        rank=record.rank if hello.rank is None or (record.has_attached and record.rank is not None) else hello.rank,
        zone=hello.zone,
        process_facts=hello.process_facts,
    )


def _is_child(known: ObservedReplica, hello: Hello) -> bool:
    """It is the process that this controller has launched."""
    is_other = bool(known.process and hello.process) and known.process != hello.process
    return known.launched and not known.incarnation and known.backend == hello.backend and not is_other


def _require_no_namesake(observed: Observed, known: ObservedReplica, hello: Hello, *, is_heard: bool) -> None:
    """An incarnation keeps the id while the controller or a router has a link to it, or it can come back."""
    if known.incarnation == hello.incarnation or _is_child(known, hello):
        return
    is_unresolved = Incarnation(hello.replica_id, hello.incarnation) in observed.unresolved
    is_linked = observed.is_linked(hello.replica_id)
    has_unresolved = any(record.replica_id == hello.replica_id for record in observed.unresolved)
    if is_unresolved:
        may_live = not known.gone
    else:
        may_live = (not known.gone and (known.launched or is_heard)) or (
            is_linked and (has_unresolved or not known.gone)
        )
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
    if known.order and report.end_reason == "SIGTERM":  # the signal may arrive before the order
        report = replace(report, end_reason=f"ordered by the controller: {known.order}")
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
        end_reason=report.end_reason or known.end_reason,
        is_unhealthy=known.is_unhealthy or report.unhealthy,
        ready_at=now if is_ready and known.ready_at is None else known.ready_at,
        ended_at=now if report.state in ENDS and known.ended_at is None else known.ended_at,
        suspect_since=None,
        gone=report.state is ReplicaState.STOPPED or (report.state is ReplicaState.FAILED and known.ready_at is None),
    )
    if record == known:
        return Transition(observed)
    is_sick = record.is_unhealthy and not known.is_unhealthy
    notices: tuple[Notice, ...] = ()
    if is_sick or (record.ended_at is not None and known.ended_at is None and not known.is_unhealthy):
        before, observed = observed, count_death(observed, known, now)
        notices = loop_notices(before, observed, known, _last_line(report.error), now)
    if record.shown_state is not known.shown_state:
        kind = EventKind[f"REPLICA_{record.shown_state.name}"]
        words = report.error or record.with_own_reason(f"at {record.address or 'no address yet'}")
        notices = (replica_notice(kind, record, words), *notices)
    if is_sick:
        notices = (*notices, replica_notice(EventKind.REPLICA_UNHEALTHY, record, report.error))
    return Transition(observed.with_replica(record), notices)


def _last_words(observed: Observed, known: ObservedReplica, report: ObservedReport) -> Transition:
    """A process was reaped before its last report was read: why it has ended is worth knowing still."""
    if report.state is ReplicaState.FAILED and report.error and report.error != known.error:
        record = replace(known, state=ReplicaState.FAILED, error=report.error, end_reason=report.end_reason)
        words = report.error
    elif report.end_reason and not known.end_reason:
        record = replace(known, end_reason=report.end_reason)
        words = record.with_own_reason("its last report")
    else:
        return Transition(observed)
    kind = EventKind[f"REPLICA_{record.state.name}"]
    return Transition(observed.with_replica(record), (replica_notice(kind, record, words),))


def ended(observed: Observed, owner: Incarnation, how: str, *, now: float) -> Transition:
    """It is proven that an incarnation starts nothing any more. `how` is for a person: `its process has ended`."""
    known = observed.incarnation(owner)
    if known is None or known.gone:
        return Transition(observed)
    if known.ended_at is None and not known.is_unhealthy and not known.is_given_up:
        observed = count_death(observed, known, now)
    return Transition(
        adoption.ended(observed, owner, now),
        (replica_notice(EventKind.REPLICA_STOPPED, known, known.with_own_reason(how)),),
    )


def fell_silent(observed: Observed, replica_id: str, why: str = "", *, now: float, lease_s: float = 0.0) -> Transition:
    """A replica's lease of `lease_s` ran out. `why`: for what its stream has ended, if that is known."""
    known = observed.replica(replica_id)
    if known is None or known.gone or known.suspect_since is not None:
        return Transition(observed)
    record = replace(known, suspect_since=now, silent_since=now - lease_s)
    text = known.with_own_reason("silent past its lease" + (f": {why}" if why else ""))
    return Transition(observed.with_replica(record), (replica_notice(EventKind.REPLICA_SUSPECT, record, text),))


def drain_requested(observed: Observed, replica_id: str, message: str) -> Transition:
    """The controller decided that a replica should end."""
    known = observed.replica(replica_id)
    if known is None or known.gone or known.is_drain_requested:
        return Transition(observed)
    state = ReplicaState.DRAINING if known.state is ReplicaState.READY else known.state
    record = replace(known, is_drain_requested=True, state=state, order=message if known.launched else "")
    return Transition(observed.with_replica(record), (replica_notice(EventKind.REPLICA_DRAINING, record, message),))


def ordered(observed: Observed, order: ReplicaOrder, *, now: float) -> Transition:
    """An operator's order is carried out, if the incarnation is known."""
    if order.is_end:
        return ended(observed, order.owner, f"an operator declared that it has ended: {order.who}", now=now)
    known = observed.replica(order.owner.replica_id)
    if known is None or order.owner.incarnation not in {"", known.incarnation}:
        return Transition(observed)
    return drain_requested(observed, known.replica_id, f"an operator asked for it: {order.who}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it reported its end"])[-1]


def replica_notice(kind: EventKind, replica: ObservedReplica, message: str) -> Notice:
    return Notice(kind=kind, subject=f"replica/{replica.replica_id}", message=f"{replica.backend}: {message}")
