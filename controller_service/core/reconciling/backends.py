"""Actions that bring the observed state nearer to the desired one, and which replicas should end.

Purpose: `(desired, observed, now) -> outcome`, one backend at a time (endpoints: `reconciling.endpoints`).
Invariants: level-triggered (only the present states count, not how they came about) and idempotent (until an action's
effect is observed, the same states give the same actions); a call costs time for its own backend's replicas only.
Three-way result: done (`retry_after_s` is None), again after a time, or an error, which is an exception of the code
that executes the actions.
Owner: the reconcile loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import Desired
from controller_service.core.observed.replica_groups import group_replicas, is_counted, missed_within_s
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState, wanted_replicas
from controller_service.core.partition_owners import count_partitions
from controller_service.core.reconciling.endpoints import sooner
from controller_service.core.reconciling.rollouts import (
    NO_CALLS,
    NO_STEP,
    EndedCalls,
    RolloutMoves,
    RolloutStep,
    follow,
    plan_moves,
)
from slotmesh.spec.model import MAX_REPLICAS, Backend

LINGER_S: Final = 5.0
"""A process whose replica has reported its end may take this long to exit."""
UNHEALTHY: Final = "its health checks fail"
START_TIMEOUT_S: Final = 120.0
"""A process that was started may be silent for this long until it is ready, and one that was found running until it has
attached: imports keep a process busy, and a machine on which many start is slow."""
NEVER_S: Final = float("inf")
"""Replicas are not given up for their silence."""


@dataclass(slots=True)
class DueEndings:
    """Replicas that should end whatever their backend's settings are: asked to, unhealthy, lingering, or hung.

    A replica is killed only if this controller launched it, and after it was silent for as long as it may be:
    `give_up_after_s` for one that has served here, longer for one that starts or has not attached again. A replica that
    was started elsewhere is never ended for its silence, since its end could not be proven.
    """

    leaving: dict[str, str] = field(default_factory=dict[str, str])
    """Those that should drain: id -> reason."""
    hung: dict[str, str] = field(default_factory=dict[str, str])
    """Those that should be killed: id -> reason."""
    again_after_s: float | None = None
    """When to look again."""

    def look_again(self, after_s: float) -> None:
        """Look again in `after_s` seconds, or earlier."""
        if after_s < NEVER_S and (self.again_after_s is None or after_s < self.again_after_s):
            self.again_after_s = after_s


def find_endings(
    replicas: Iterable[ObservedReplica], now: float, *, launches: bool, give_up_after_s: float = NEVER_S
) -> DueEndings:
    """`give_up_after_s`: how long a launched replica may be suspect."""
    found = DueEndings()
    for replica in replicas:
        if replica.is_over or replica.is_given_up:
            continue
        if launches and replica.launched and not replica.reaped:
            left_s = _silence_left_s(replica, now, give_up_after_s)
            if left_s <= 0.0:
                found.hung[replica.replica_id] = "it was silent for too long: its process is killed"
                continue
            found.look_again(left_s)
        if replica.is_drain_requested:
            found.leaving[replica.replica_id] = "an operator drains it"
        elif replica.is_unhealthy and not replica.gone and not (launches and is_counted(replica, now)):
            found.leaving[replica.replica_id] = UNHEALTHY  # its own launcher will start another one
        elif replica.launched and replica.ended_at is not None:
            left_s = replica.ended_at + LINGER_S - now
            if left_s <= 0.0:
                found.leaving[replica.replica_id] = "it reported its end, and is still there"
            else:
                found.look_again(left_s)
    return found


def _silence_left_s(replica: ObservedReplica, now: float, give_up_after_s: float) -> float:
    """For how long it may still be silent; infinite if it is not silent, or has reported its end."""
    if replica.gone or give_up_after_s == NEVER_S or (replica.waits_for and not replica.has_attached):
        return NEVER_S  # one that is not started yet cannot report
    if not replica.has_attached:
        return (replica.started_at if replica.suspect_since is None else replica.suspect_since) + START_TIMEOUT_S - now
    if replica.suspect_since is None:
        return NEVER_S
    limit_s = give_up_after_s if replica.ready_at is not None else max(give_up_after_s, START_TIMEOUT_S)
    return replica.suspect_since + limit_s - now


FAILURES_KEPT: Final = 5
"""Ended replicas of a backend that stay listed, so that operators can see why."""
FORGET_AFTER_S: Final = 600.0
"""A silent replica that this controller did not start, and that no table has named, is dropped after this time."""


@dataclass(frozen=True, slots=True)
class StartReplicas:
    """Make sure that `count` replicas run that were started with the backend's present settings."""

    backend: Backend
    count: int
    """With those that run already, unless they were asked to end."""


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """Have a replica finish what runs, and end."""

    replica_id: str
    message: str
    grace_s: float
    """A launched process that takes longer is killed."""


@dataclass(frozen=True, slots=True)
class MakeWay:
    """Have replicas drain if others could be started in their places: what these need is there, as far as is known."""

    backend: Backend
    drains: tuple[DrainReplica, ...]


@dataclass(frozen=True, slots=True)
class KillReplica:
    """End the process of a replica that is hung."""

    replica_id: str
    message: str


@dataclass(frozen=True, slots=True)
class ForgetReplica:
    """Nothing depends on the record of an ended replica any more."""

    replica_id: str


Action: TypeAlias = StartReplicas | DrainReplica | MakeWay | KillReplica | ForgetReplica


@dataclass(frozen=True, slots=True)
class BackendOutcome:
    """What to do for a backend."""

    actions: tuple[Action, ...] = ()
    retry_after_s: float | None = None
    rollout: RolloutStep = NO_STEP
    """What is to be remembered of its rollout."""


@dataclass(frozen=True, slots=True)
class StartRoom:
    """How many replicas of a backend may start."""

    devices: int | None = None
    """For how many more than those that stay there are devices; None: they want none."""
    most_starting: int | None = None
    """The limit of those that were started and have not attached yet; None: there is none."""

    def left(self, replicas: Iterable[ObservedReplica]) -> int:
        """The number that may start now. When one of these attaches or ends, this is looked at again."""
        if self.most_starting is None:
            return MAX_REPLICAS
        unattached = (it for it in replicas if it.launched and not it.reaped and not it.has_attached)
        return self.most_starting - sum(not it.waits_for for it in unattached)


NO_BOUNDS: Final = StartRoom()


def reconcile_backend(
    name: str,
    desired: Desired,
    observed: Observed,
    now: float,
    *,
    owners: Collection[str],
    launches: bool,
    time_of_day_s: float,
    give_up_after_s: float = NEVER_S,
    ended_calls: Mapping[str, EndedCalls] = NO_CALLS,
    room: StartRoom = NO_BOUNDS,
) -> BackendOutcome:
    """Starts missing replicas, drains those that are too many or outdated, kills hung ones, drops those that ended.

    Replicas that this controller did not start are left alone, unless an operator drained them: it could not replace
    them. `owners`: ids of replicas that own partitions; `launches`: this controller starts replicas; `time_of_day_s`:
    Unix seconds at `now`; `give_up_after_s`: how long one that it started may be suspect; `ended_calls`: by replica.
    """
    backend = desired.backends.get(name)
    everything = [*observed.replicas(name)]
    live = [replica for replica in everything if not replica.gone]
    is_unsaid = launches and not desired.configured_at  # replicas were found running, and nothing is configured yet
    groups = group_replicas(everything, backend, now)
    current = groups.current
    wanted = wanted_replicas(backend, observed) if backend is not None and launches else 0
    rollout, moves = NO_STEP, RolloutMoves(leaving=() if is_unsaid else groups.outdated)
    if backend is not None and launches:
        record = desired.rollouts.get(name)
        rollout = follow(record, backend, wanted, everything, now, time_of_day_s=time_of_day_s, ended_calls=ended_calls)
        moves = plan_moves(groups, backend, wanted, now, record, room.devices)
    actions: list[Action] = []
    retry_after_s = sooner(rollout.again_after_s, moves.again_after_s)
    wait_s = 0.0
    if backend is not None and (moves.start > 0 or moves.are_ahead):
        wait_s = observed.restarts_of(name, template_of(backend)).not_before - now
        if wait_s > 0.0:
            retry_after_s = sooner(retry_after_s, wait_s)
        elif (more := min(moves.start, room.left(everything))) > 0:
            actions.append(_start(backend, more, everything))
    endings = find_endings(everything, now, launches=launches, give_up_after_s=give_up_after_s)
    leaving = endings.leaving
    actions += [KillReplica(replica_id, message) for replica_id, message in endings.hung.items()]
    retry_after_s = sooner(retry_after_s, endings.again_after_s)
    if launches:
        retry_after_s = sooner(retry_after_s, missed_within_s(live, now))
    why = "the backend was deleted" if backend is None else f"{wanted} should run"
    for replica in _surplus(current, wanted, desired):
        leaving[replica.replica_id] = why
    actions += _drains(backend, leaving, moves, why, can_check=wait_s <= 0.0)
    recovered = backend is None or (sum(it.takes_calls for it in current) if launches else len(live)) >= max(1, wanted)
    # It served a generation that is not covered: a table that names it may still come, and then it has departed.
    known = [it for it in everything if not it.served_under or desired.roster.covered_revision(it.served_under) >= 0]
    forgotten, forget_after_s = _forgettable(known, owners, now, keep_failures=not recovered)
    actions += [ForgetReplica(replica_id) for replica_id in forgotten]
    return BackendOutcome(tuple(actions), sooner(retry_after_s, forget_after_s), rollout)


def _drains(
    backend: Backend | None, leaving: dict[str, str], moves: RolloutMoves, why: str, *, can_check: bool
) -> Iterator[Action]:
    """`leaving`: those that leave besides the moves; `can_check`: it can be tried now whether others could start."""
    ahead, changed = dict[str, str](), why if backend is None else "its handler or configuration changed"
    for replica in moves.leaving:
        waits = moves.are_ahead and replica.replica_id not in leaving
        (ahead if waits else leaving)[replica.replica_id] = UNHEALTHY if replica.is_unhealthy else changed
    grace_s = Backend(name="").graceful_timeout_s if backend is None else backend.graceful_timeout_s
    yield from (DrainReplica(replica_id, message, grace_s) for replica_id, message in leaving.items())
    if backend is not None and ahead and can_check:
        drains = (DrainReplica(replica_id, message, grace_s) for replica_id, message in ahead.items())
        yield MakeWay(backend, tuple(drains))


def _start(backend: Backend, more: int, replicas: Iterable[ObservedReplica]) -> StartReplicas:
    """`more` than there are with the same settings."""
    template = template_of(backend)
    return StartReplicas(backend, more + sum(it.template == template and _is_kept(it) for it in replicas))


def _is_kept(replica: ObservedReplica) -> bool:
    """Its launcher has it, and was not asked to end it."""
    return replica.launched and not replica.reaped and not replica.is_drain_requested and not replica.is_given_up


def _surplus(current: Collection[ObservedReplica], wanted: int, desired: Desired) -> list[ObservedReplica]:
    """Those beyond the number: first that are not started, then that start, then whose ranks are beyond the number.

    Then those that own the fewest partitions.
    """
    if len(current) <= wanted:
        return []
    owned = count_partitions(desired.ownership.values(), {it.replica_id for it in current})

    def most_dispensable_first(replica: ObservedReplica) -> tuple[bool, bool, bool, int, float, str]:
        is_started = replica.has_attached or not replica.waits_for
        is_within, own = replica.rank is None or replica.rank < wanted, owned[replica.replica_id]
        return replica.takes_calls, is_started, is_within, own, -replica.started_at, replica.replica_id

    return sorted(current, key=most_dispensable_first)[: len(current) - wanted]


def _forgettable(
    replicas: Collection[ObservedReplica], owners: Collection[str], now: float, *, keep_failures: bool
) -> tuple[list[str], float | None]:
    """The records to forget, and when to look again."""
    free = [replica for replica in replicas if replica.replica_id not in owners]
    ended = [replica for replica in free if replica.is_over]
    failures = sorted(
        (replica for replica in ended if replica.state is ReplicaState.FAILED), key=lambda it: it.started_at
    )
    kept = {replica.replica_id for replica in failures[-FAILURES_KEPT:]} if keep_failures else set()
    forgotten = [replica.replica_id for replica in ended if replica.replica_id not in kept]
    again_after_s: float | None = None
    for replica in free:
        is_listed = replica.ready_at is not None or bool(replica.address)
        if replica.suspect_since is not None and not replica.gone and not replica.launched and not is_listed:
            left_s = replica.suspect_since + FORGET_AFTER_S - now
            if left_s <= 0.0:
                forgotten.append(replica.replica_id)
            else:
                again_after_s = sooner(again_after_s, left_s)
    return forgotten, again_after_s
