"""How what happens changes what is observed: `(observed, fact, now) -> (observed, notices)`.

Purpose: every rule about the life of members, in one place, without a stream or a process in sight.
Invariants: a fact about a replaced or ended incarnation changes nothing; only `exited`, a report of STOPPED, and a
successor under the same id make a replica gone: silence never does.
Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.observed import (
    BackendLoad,
    Handovers,
    Observed,
    Replica,
    ReplicaState,
    Restarts,
    Router,
)
from controller_service.core.partitions import Owner, Ownership

QUICK_DEATH_S: Final = 10.0
"""A replica that dies sooner than this after it got ready makes the next start wait."""
FIRST_INTERVAL_S: Final = 0.5
LONGEST_INTERVAL_S: Final = 30.0
ENDS: Final = frozenset({ReplicaState.STOPPED, ReplicaState.FAILED})
"""States after which a process has no business to live."""
RETIRED_KEPT: Final = 16
"""Replaced incarnations remembered for each replica id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that people who watch the mesh are told."""

    kind: str
    """Low cardinality, in the past tense: `replica_ready`."""
    subject: str
    """What it is about: `replica/digits-v1-x7f3q`."""
    message: str


@dataclass(frozen=True, slots=True)
class Transition:
    """What is observed from now on, and what to tell."""

    observed: Observed
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who a replica says it is."""

    replica_id: str
    incarnation: str
    backend: str
    pid: int = 0
    has_served: bool = False
    """It may own partitions from before this controller knew it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a replica says it does."""

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


def launched(
    observed: Observed, replica_id: str, backend: str, *, template: str, pid: int, now: float, fixed: str = ""
) -> Transition:
    """This controller started a process."""
    record = Replica(
        replica_id=replica_id,
        backend=backend,
        state=ReplicaState.STARTING,
        started_at=now,
        pid=pid,
        launched=True,
        template=template,
        fixed=fixed,
    )
    return Transition(observed.with_replica(record), (_notice("replica_launched", record, f"process {pid}"),))


def launch_failed(observed: Observed, replica_id: str, backend: str, message: str, *, now: float) -> Transition:
    """This controller could not start a process."""
    record = Replica(
        replica_id=replica_id,
        backend=backend,
        state=ReplicaState.FAILED,
        started_at=now,
        error=message,
        launched=True,
        gone=True,
        reaped=True,
    )
    observed = _count_death(observed, record, now).with_replica(record)
    return Transition(observed, (_notice("replica_failed", record, message),))


def attached(observed: Observed, hello: Hello, *, now: float) -> Transition:
    """A replica opened its membership stream, for the first time or again. Raises AttachRefused."""
    known = observed.replica(hello.replica_id)
    if known is None:
        record = Replica(
            replica_id=hello.replica_id,
            backend=hello.backend,
            state=ReplicaState.STARTING,
            started_at=now,
            incarnation=hello.incarnation,
            pid=hello.pid,
            is_fenced=not hello.has_served,
        )
        words = "a replica that has served before" if hello.has_served else "a new replica"
        return Transition(observed.with_replica(record), (_notice("replica_attached", record, words),))
    if hello.incarnation in known.retired or (known.gone and known.incarnation == hello.incarnation):
        raise AttachRefused(f"incarnation {hello.incarnation} of replica {hello.replica_id} was replaced or has ended")
    if known.launched and not known.gone and known.incarnation not in {"", hello.incarnation}:
        raise AttachRefused(
            f"replica {hello.replica_id} runs already: process {known.pid}, which this controller launched"
        )
    if known.backend != hello.backend and known.launched:
        raise AttachRefused(f"replica {hello.replica_id} was launched for backend {known.backend}")
    if known.launched and not known.incarnation:
        # Or it was launched and reaped already, and this is the beginning of its last words.
        record = replace(known, incarnation=hello.incarnation, pid=hello.pid or known.pid)
        return Transition(observed.with_replica(record), (_notice("replica_attached", record, "after its launch"),))
    if known.incarnation == hello.incarnation:
        record = replace(known, pid=hello.pid or known.pid, suspect_since=None)
        return Transition(observed.with_replica(record), (_notice("replica_attached", record, "again"),))
    record = Replica(
        replica_id=hello.replica_id,
        backend=hello.backend,
        state=ReplicaState.STARTING,
        started_at=now,
        incarnation=hello.incarnation,
        pid=hello.pid,
        retired=(*known.retired, known.incarnation)[-RETIRED_KEPT:],
        is_fenced=not hello.has_served,
    )
    return Transition(
        observed.with_replica(record),
        (_notice("replica_attached", record, f"a new incarnation replaces {known.incarnation}"),),
    )


def reported(observed: Observed, replica_id: str, incarnation: str, report: Report, *, now: float) -> Transition:
    """A replica said how it does. The very same Observed comes back where that is nothing new."""
    known = observed.replica(replica_id)
    if known is None or known.incarnation != incarnation:
        return Transition(observed)
    if known.gone:
        return _last_words(observed, known, report)
    is_ready = report.state is ReplicaState.READY
    record = replace(
        known,
        # Who drains is never ready again, whatever was under way when it was told to.
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
        kind = f"replica_{record.shown_state.name.lower()}"
        notices = (_notice(kind, record, report.error or f"at {record.address or 'no address yet'}"),)
    if is_sick:
        notices = (*notices, _notice("replica_unhealthy", record, report.error))
    return Transition(observed.with_replica(record), notices)


def _last_words(observed: Observed, known: Replica, report: Report) -> Transition:
    """A process was reaped before its last report was read: why it failed is worth knowing still."""
    if report.state is not ReplicaState.FAILED or not report.error or report.error == known.error:
        return Transition(observed)
    record = replace(known, state=ReplicaState.FAILED, error=report.error)
    return Transition(observed.with_replica(record), (_notice("replica_failed", record, report.error),))


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
    )
    if known.ended_at is None and not known.is_unhealthy:
        observed = _count_death(observed, known, now)
    return Transition(observed.with_replica(record), (_notice("replica_exited", record, f"process {known.pid} {how}"),))


def fell_silent(observed: Observed, replica_id: str, *, now: float) -> Transition:
    """A replica's lease ran out."""
    known = observed.replica(replica_id)
    if known is None or known.gone or known.suspect_since is not None:
        return Transition(observed)
    record = replace(known, suspect_since=now)
    return Transition(observed.with_replica(record), (_notice("replica_suspect", record, "silent past its lease"),))


def told_to_drain(observed: Observed, replica_id: str, message: str) -> Transition:
    """The controller decided that a replica should end."""
    known = observed.replica(replica_id)
    if known is None or known.gone or known.is_told_to_drain:
        return Transition(observed)
    state = ReplicaState.DRAINING if known.state is ReplicaState.READY else known.state
    record = replace(known, is_told_to_drain=True, state=state)
    return Transition(observed.with_replica(record), (_notice("replica_draining", record, message),))


def emptied(observed: Observed, owner: Owner, endpoints: Mapping[str, Mapping[int, int]]) -> Transition:
    """A replica said that nothing of these partitions (endpoint -> partition -> epoch) is left there."""
    for endpoint, epochs in endpoints.items():
        known = observed.handovers.get(endpoint, Handovers())
        said = known.emptied | {(owner, partition, epoch) for partition, epoch in epochs.items()}
        observed = observed.with_handovers(endpoint, replace(known, emptied=said))
    return Transition(observed)


def fenced(observed: Observed, owner: Owner, busy: Mapping[str, frozenset[int]]) -> Transition:
    """A replica said that nothing of earlier generations starts there, and of which partitions something still runs."""
    known = observed.replica(owner.replica_id)
    if known is None or known.incarnation != owner.incarnation or known.is_fenced:
        return Transition(observed)
    return Transition(observed.with_replica(replace(known, is_fenced=True, busy=busy)))


def told_to_leave(observed: Observed, ownership: Ownership, *, balancing: bool, now: float) -> Transition:
    """The hand-overs of an endpoint are these now. What owners said of others is of no use any more."""
    known = observed.handovers.get(ownership.endpoint, Handovers())
    leaving = {
        (ownership.owners[ownership.partition_owners[number]], number, ownership.epochs[number])
        for number in ownership.leaving
    }
    changed = replace(known, emptied=known.emptied & leaving, balanced_at=now if balancing else known.balanced_at)
    return Transition(observed if changed == known else observed.with_handovers(ownership.endpoint, changed))


def endpoint_deleted(observed: Observed, endpoint: str) -> Transition:
    """Nothing of it is on the move any more."""
    return Transition(observed.without_handovers(endpoint))


def router_attached(observed: Observed, router: Router) -> Transition:
    """A router opened its membership stream, for the first time or again."""
    known = observed.routers.get(router.router_id)
    if known is not None:
        router = replace(router, started_at=known.started_at)
    notice = Notice(
        kind="router_attached",
        subject=f"router/{router.router_id}",
        message=f"at {router.address}" if known is None else f"again, at {router.address}",
    )
    return Transition(observed.with_router(router), (notice,))


def router_reported(
    observed: Observed,
    router_id: str,
    *,
    generation: str,
    revision: int,
    linked_replica_ids: tuple[str, ...],
    loads: tuple[BackendLoad, ...] = (),
) -> Transition:
    """A router said which table is in force there, which links work, and how much it has to do."""
    known = observed.routers.get(router_id)
    if known is None:
        return Transition(observed)
    router = replace(
        known, generation=generation, revision=revision, linked_replica_ids=linked_replica_ids, loads=loads
    )
    return Transition(observed if router == known else observed.with_router(router))


def router_left(observed: Observed, router_id: str, message: str) -> Transition:
    """A router said goodbye, or was silent past its lease."""
    if router_id not in observed.routers:
        return Transition(observed)
    notice = Notice(kind="router_left", subject=f"router/{router_id}", message=message)
    return Transition(observed.without_router(router_id), (notice,))


def after_death(restarts: Restarts, replica: Replica, now: float) -> Restarts:
    """When the next replica of the backend may start: at once after a long life, later and later after short ones."""
    if replica.ready_at is not None and now - replica.ready_at >= QUICK_DEATH_S:
        return Restarts(not_before=now)
    if replica.started_at < restarts.counted_at:
        return restarts  # of the same wave as a death that was counted
    interval_s = min(LONGEST_INTERVAL_S, FIRST_INTERVAL_S * 2.0 ** min(restarts.streak, 16))
    return Restarts(streak=restarts.streak + 1, counted_at=now, not_before=now + interval_s)


def _count_death(observed: Observed, replica: Replica, now: float) -> Observed:
    if not replica.launched or replica.is_told_to_drain:
        return observed
    restarts = after_death(observed.restarts.get(replica.backend, Restarts()), replica, now)
    return observed.with_restarts(replica.backend, restarts)


def _notice(kind: str, replica: Replica, message: str) -> Notice:
    return Notice(kind=kind, subject=f"replica/{replica.replica_id}", message=f"{replica.backend}: {message}")
