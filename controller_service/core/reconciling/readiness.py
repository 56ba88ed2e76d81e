"""Whether a backend can take the calls that a change of traffic gives it, and whether ready replicas can be expected.

Purpose: a change that moves calls to a backend without a ready replica is refused where its request asks for that.
Routers let calls wait for replicas that are starting, and fail them immediately if none is (docs/traffic.md).
Invariants: unknown is not no. A replica that the controller's store lists, and that has not attached since the
controller started, may be ready for `RETURN_WITHIN_S`; where replicas are started elsewhere, one that was never seen
may come. A backend that its autoscaling has scaled to zero is idle, not broken: calls that wait have a replica started.
A backend whose replicas fail to start is failing until one gets ready or its settings change, also while the next one
is tried: calls that arrive during a try would wait for nothing.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.shifts import SAME
from controller_service.core.desired.state import Desired
from controller_service.core.observed.replica_groups import RETURN_WITHIN_S
from controller_service.core.observed.state import Observed, ObservedReplica, wanted_replicas
from controller_service.core.reconciling.endpoints import has_failed_to_start, is_coming
from slotmesh.spec.model import Backend, InvalidSpec, Prospect, SpecViolation, TrafficPolicy
from slotmesh.spec.rules import show


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
        if _is_idle(backend, observed) or any(_may_be_ready(it, now) for it in observed.replicas(name)):
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


def _is_idle(backend: Backend, observed: Observed) -> bool:
    return backend.autoscale is not None and not wanted_replicas(backend, observed)


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
