"""What the owners of endpoints' partitions should become.

Purpose: `(desired, observed, now) -> outcome`, one endpoint at a time, or all of one moment (`EndpointOutcomes`).
Invariants: level-triggered and idempotent, as `core.reconciling.backends`; endpoints with the same relevant state get
the same object, which is computed once.
Readiness, for changes that move calls to a backend, and for routers (docs/traffic.md): unknown is not no. A replica
that the store lists, and that has not attached since the controller started, may be ready for `RETURN_WITHIN_S`; where
replicas are started elsewhere, one that was never seen may come. A backend that its autoscaling has scaled to zero is
idle, not broken. One whose replicas fail to start is failing until one gets ready or its settings change, also while
the next one is tried: calls that arrive during a try would wait for nothing.
Owner: the reconcile loop; readiness: pure functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Final

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.shifts import SAME
from controller_service.core.desired.state import Desired
from controller_service.core.observed.replica_groups import RETURN_WITHIN_S
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState, wanted_replicas
from controller_service.core.partition_owners import (
    NO_HANDOVERS,
    Handovers,
    Incarnation,
    PartitionOwnership,
    assign,
    hand_over,
    has_live_owner,
    shares,
)
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, Prospect, SpecViolation, TrafficPolicy
from slotmesh.spec.rules import show

COMPLETE_WITHIN_S: Final = 5.0
"""The first assignment waits for all replicas that should run, but no longer than this after the first got ready."""
STARTED_WITHIN_S: Final = 20.0
"""Likewise, where all that are missing are starting: a replica that comes too late would own nothing for long."""
SETTLED_AFTER_S: Final = 1.0
"""Where the number of replicas is not known: the first division waits until none got ready for this long."""
BALANCE_EVERY_S: Final = 1.0
"""Partitions leave live owners for better shares this often at most: weights that swing move keys no faster."""
PATIENCE_S: Final = 10.0
"""Likewise, while hand-overs are under way: these end first, unless a call that takes long holds one of them up."""
FENCED_WITHIN_S: Final = 1.0
"""Interval of the check whether replicas that an earlier controller knew have answered, and its tables were read."""
TABLE_WITHIN_S: Final = 5.0
"""No partition is given away for this time after the controller's start, while a router is expected to send the table,
or a newer table, of an earlier generation: routers come back within a second or two, and cold starts expect none."""
NOTHING_BUSY: Final = frozenset[tuple[Incarnation, int]]()


@dataclass(frozen=True, slots=True)
class EndpointOutcome:
    """What the ownership of an endpoint should become."""

    ownership: PartitionOwnership | None = None
    """None: as it is."""
    without_handover: PartitionOwnership | None = None
    """The same without hand-overs that begin now: for where too many are under way. None: as it is."""
    begins_handover: bool = False
    balancing: bool = False
    """Whether partitions leave for better shares."""
    retry_after_s: float | None = None


class EndpointOutcomes:
    """What should become of endpoints, by the states of one moment.

    Gives partitions without a live owner to ready replicas; the first time, waits for an even share. Then has
    partitions leave their owners where these drain, or have too many. No partition is given away before all replicas
    that served under an earlier generation have given up what they owned, nor while a router may yet bring that
    generation's table. Computed once for all endpoints that have the same owners, weights and hand-overs: a mesh may
    have 10,000 endpoints in front of few backends, and each has 4,096 partitions.
    """

    def __init__(
        self, desired: Desired, observed: Observed, now: float, *, launches: bool, started_at: float = float("-inf")
    ) -> None:
        """`started_at`: when the controller started."""
        self._desired = desired
        self._observed = observed
        self._now = now
        self._launches = launches
        self._started_at = started_at
        self._busy = observed.busy_endpoints()
        self._known: dict[tuple[object, ...], EndpointOutcome] = {}

    def of(self, endpoint: Endpoint) -> EndpointOutcome:
        """What should become of its owners."""
        name, observed = endpoint.name, self._observed
        current, weights = self._desired.ownership.get(name), _weights_of(endpoint)
        known = observed.handovers.get(name, NO_HANDOVERS)
        busy = observed.busy_partitions(name) if name in self._busy else NOTHING_BUSY
        key = (id(current), tuple(weights.items()), known, busy)
        if (outcome := self._known.get(key)) is None:
            outcome = self._known[key] = self._reconciled(current, weights, known, busy)
        return outcome

    def _reconciled(
        self,
        current: PartitionOwnership | None,
        weights: Mapping[str, float],
        known: Handovers,
        busy: frozenset[tuple[Incarnation, int]],
    ) -> EndpointOutcome:
        """Of any endpoint with these owners, weights and hand-overs."""
        desired, observed, now = self._desired, self._observed, self._now
        ready = {name: [it for it in observed.replicas(name) if it.takes_calls] for name in weights}
        candidates = shares(
            weights, {name: [it.owner for it in group if it.is_fenced] for name, group in ready.items()}
        )
        held_s = _held_s(desired, observed, now, self._started_at)
        wait_s = 0.0
        if held_s <= 0.0 and candidates and not has_live_owner(current, observed.is_dead):
            wait_s = _wait_s(
                [desired.backends.get(name) for name in weights], ready, observed, now, launches=self._launches
            )
        if held_s > 0.0 or wait_s > 0.0:
            candidates = []
        wait_s = wait_s or held_s
        if not candidates and current is None:
            return EndpointOutcome(retry_after_s=wait_s or None)
        assigned = assign(
            current,
            candidates,
            observed.is_dead,
            epoch_floor=desired.epoch_floor,
            emptied=known.emptied,
            busy=busy,
            fenced_through=observed.fenced_through,
        )
        drained = hand_over(assigned, candidates, is_draining=observed.is_draining, balance=False)
        rest_s = known.balanced_at + (PATIENCE_S if drained.leaving else BALANCE_EVERY_S) - now
        if rest_s > 0.0:
            return EndpointOutcome(
                drained if drained is not current else None,
                without_handover=assigned if assigned is not current else None,
                begins_handover=drained is not assigned,
                retry_after_s=sooner(wait_s or None, rest_s),
            )
        balanced = hand_over(
            drained, candidates, is_draining=observed.is_draining, balance=True, stays=observed.awaits_fence_of
        )
        return EndpointOutcome(
            balanced if balanced is not current else None,
            without_handover=assigned if assigned is not current else None,
            begins_handover=balanced is not assigned,
            balancing=balanced is not drained,
            retry_after_s=wait_s or None,
        )


def _weights_of(endpoint: Endpoint) -> Mapping[str, float]:
    if endpoint.traffic is None:
        return {}
    return {name: weight for name, weight in endpoint.traffic.weights.items() if weight > 0.0}


def _held_s(desired: Desired, observed: Observed, now: float, started_at: float) -> float:
    """How long no partition may be given away, as far as is known; 0 if they may be."""
    if observed.awaits_fence() or observed.earlier_tables:
        return FENCED_WITHIN_S
    left_s = started_at + TABLE_WITHIN_S - now
    if left_s <= 0.0:
        return 0.0
    if not observed.routers:
        return left_s  # no router could send calls yet, and the first one may bring owners
    covered = {it.generation for it in desired.roster.covers}
    expected = {it.served_under for it in observed.replicas() if it.served_under and not it.gone}
    is_complete = observed.older_routers <= {router.address for router in observed.routers.values()}
    return 0.0 if expected <= covered and is_complete else left_s


def _wait_s(
    backends: Collection[Backend | None],
    ready: Mapping[str, Collection[ObservedReplica]],
    observed: Observed,
    now: float,
    *,
    launches: bool,
) -> float:
    """How long the first assignment should still wait, seconds; 0 for no longer."""
    ready_at = [it.ready_at for group in ready.values() for it in group if it.ready_at is not None]
    first_ready_at = min(ready_at, default=now)
    deadline = first_ready_at + COMPLETE_WITHIN_S
    known = [
        it
        for it in backends
        if it is not None and (ready[it.name] or not any(map(has_failed_to_start, observed.replicas(it.name))))
    ]
    if launches or all(it.num_replicas is not None or it.autoscale is not None for it in known):
        wanted = {it.name: wanted_replicas(it, observed) for it in known}
        if all(len(ready[name]) >= count for name, count in wanted.items()):
            return 0.0
        coming = {backend.name: sum(map(is_coming, observed.replicas(backend.name))) for backend in known}
        if all(len(ready[name]) + coming[name] >= count for name, count in wanted.items()):
            deadline = first_ready_at + STARTED_WITHIN_S
    else:
        deadline = min(deadline, max(ready_at, default=now) + SETTLED_AFTER_S)
    return max(0.0, deadline - now)


def is_coming(replica: ObservedReplica) -> bool:
    """It may well get ready."""
    return replica.state is ReplicaState.STARTING and not replica.gone and not replica.is_drain_requested


def has_failed_to_start(replica: ObservedReplica) -> bool:
    """It has ended before it was ready: its handler could not be constructed, or its process not be started."""
    return replica.gone and replica.state is ReplicaState.FAILED and replica.ready_at is None


def sooner(one: float | None, other: float | None) -> float | None:
    """The earlier of two times; None is never."""
    return min((it for it in (one, other) if it is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Concerns:
    """An index of one revision: which endpoints a backend's replicas concern, and which replicas own partitions.

    With it, a change of one replica makes the loop look at its own backend and those endpoints only. The reconcile loop
    builds it anew when policies or ownership change.
    """

    endpoints_of: Mapping[str, Set[str]]
    """By backend: the endpoints whose policies name it, and those that its replicas own partitions of."""
    owner_ids: Set[str]
    """Replicas that own a partition of any endpoint."""


def find_concerns(desired: Desired, observed: Observed) -> Concerns:
    endpoints_of: defaultdict[str, set[str]] = defaultdict(set)
    owner_ids: set[str] = set()
    for name, endpoint in desired.endpoints.items():
        if endpoint.traffic is not None:
            for backend in endpoint.traffic.weights:
                endpoints_of[backend].add(name)
    backends_of: dict[int, set[str]] = {}
    """By object: endpoints share what is the same for them."""
    for name, ownership in desired.ownership.items():
        backends = backends_of.get(id(ownership))
        if backends is None:
            ids = [owner.replica_id for owner in ownership.owners]
            owner_ids.update(ids)
            backends = backends_of[id(ownership)] = {of for it in ids if (of := observed.backend_of.get(it))}
        for backend in backends:
            endpoints_of[backend].add(name)
    return Concerns(endpoints_of=endpoints_of, owner_ids=owner_ids)


def changed_keys(before: Desired, after: Desired) -> tuple[set[str], set[str]]:
    """The backends and the endpoints that differ between two revisions, by name."""
    return (
        _differing(before.backends, after.backends) | _differing(before.rollouts, after.rollouts),
        _differing(before.endpoints, after.endpoints) | _differing(before.ownership, after.ownership),
    )


def _differing(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    if before is after:
        return set()
    return {name for name in {**before, **after} if before.get(name) is not after.get(name)}


def find_prospect(name: str, desired: Desired, observed: Observed, *, launches: bool) -> Prospect:
    """What becomes of a backend, given that none of its replicas is ready.

    `launches`: whether this controller starts replicas.
    """
    backend = desired.backends.get(name)
    if backend is None:
        return Prospect.NONE
    replicas = [*observed.replicas(name)]
    coming = [replica for replica in replicas if is_coming(replica)]
    if not launches:
        return _of_others(replicas, coming, wanted_replicas(backend, observed))
    if not wanted_replicas(backend, observed):
        # Where the number follows the load, a waiting call has a replica started; old failures do not count.
        return Prospect.NONE if backend.autoscale is None else Prospect.COMING
    template = template_of(backend)
    if not any(has_failed_to_start(it) and it.template == template for it in replicas):
        return Prospect.COMING
    # Those that were started after the newest death are tries in place of what has failed.
    counted_at = observed.restarts_of(name, template).counted_at
    is_first_try = any(it.template == template and it.started_at < counted_at for it in coming)
    return Prospect.COMING if is_first_try else Prospect.FAILING


def _of_others(replicas: Collection[ObservedReplica], coming: Collection[ObservedReplica], wanted: int) -> Prospect:
    """For replicas that are started elsewhere: failing if all that should run have failed."""
    if coming:
        return Prospect.COMING
    failed = [replica for replica in replicas if has_failed_to_start(replica)]
    return Prospect.FAILING if len(failed) >= max(1, wanted) else Prospect.UNKNOWN


_ERROR_CHARS: Final = 200
"""Of the last error of a replica, in a message."""


def rising(before: TrafficPolicy | None, after: TrafficPolicy) -> list[str]:
    """The backends that get a larger share of an endpoint's calls, by name."""
    old = {} if before is None else before.weights
    return sorted(name for name, weight in after.weights.items() if weight - old.get(name, 0.0) > SAME)


def require_ready(
    desired: Desired, observed: Observed, endpoint: str, backends: Collection[str], *, launches: bool, now: float
) -> None:
    """Raises InvalidSpec, which names each backend that has no ready replica, why, and what to do.

    `launches`: whether this controller starts replicas.
    """
    violations: list[SpecViolation] = []
    for name in backends:
        backend = desired.backends[name]
        is_idle = backend.autoscale is not None and not wanted_replicas(backend, observed)
        if is_idle or any(_may_be_ready(it, now) for it in observed.replicas(name)):
            continue
        reason, way_out = _why_unready(backend, desired, observed, launches=launches)
        text = (
            f"backend {name} has no ready replica: {reason}. {way_out}, or change the traffic nevertheless: --force "
            "(in a request: without require_ready)"
        )
        violations.append(SpecViolation(f"endpoints.{show(endpoint)}.traffic.{show(name)}", text))
    if violations:
        raise InvalidSpec(violations)


def is_ready(replica: ObservedReplica) -> bool:
    """Whether it takes calls, as far as it has reported to this controller."""
    return replica.takes_calls and replica.suspect_since is None


def _may_be_ready(replica: ObservedReplica, now: float) -> bool:
    if is_ready(replica):
        return True
    since = replica.suspect_since
    return replica.takes_calls and not replica.has_attached and since is not None and now < since + RETURN_WITHIN_S


def _why_unready(backend: Backend, desired: Desired, observed: Observed, *, launches: bool) -> tuple[str, str]:
    """Why no replica is ready, and what to do about that."""
    name, replicas = backend.name, [it for it in observed.replicas(backend.name) if not it.is_over]
    if launches and not wanted_replicas(backend, observed):
        return "its number of replicas is 0", f"Start one with `slotmesh scale {name} 1`"
    match find_prospect(name, desired, observed, launches=launches):
        case Prospect.FAILING:
            errors = [it.error for it in observed.replicas(name) if it.error]
            last = (errors[-1].strip().splitlines() or [""])[-1][:_ERROR_CHARS] if errors else "no error was reported"
            return f"its replicas fail to start ({last})", f"See `slotmesh describe backend/{name}`"
        case Prospect.COMING if replicas or launches:
            return "its replicas are starting", "Wait until one is ready (`slotmesh status`)"
        case _ if replicas:
            return "its replicas drain, or do not report", f"See `slotmesh describe backend/{name}`"
        case _:
            return "no replica of it is attached to this controller", "Start one"
