"""The figures as values of JSON. Pure.

Invariants: an unknown value is null; a time above all bounds is the last bound, and marked as above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from slotmesh.cli.figures.rates import CallQuantiles, TenantRow
from slotmesh.cli.figures.rows import BackendFigures, EndpointFigures, MeshFigures, ReplicaFigures, RouterFigures
from slotmesh.cli.parameters import BACKEND, ENDPOINT, REPLICA, ROUTER
from slotmesh.cli.top.columns import name_of_row, rows_of
from slotmesh.cli.top.state import VIEWS, TopView
from slotmesh.histogram import CALL_TIMES


def document_of(controller: str, figures: MeshFigures, views: Collection[TopView] = VIEWS) -> dict[str, Any]:
    """The figures of these views at one moment."""
    document: dict[str, Any] = {
        "controller": controller,
        "time": datetime.fromtimestamp(figures.at_s, UTC).isoformat(),
        "revision": figures.revision,
    }
    for view, write in _WRITERS.items():
        if view in views:
            document[view.value] = [write(it) for it in rows_of(view, figures)]
            if view is TopView.REPLICAS:
                document["unlisted_replicas"] = figures.unlisted_replicas
    return document


def names_of(figures: MeshFigures, views: Collection[TopView] = VIEWS) -> list[str]:
    """The names of the rows of these views, as `backend/NAME`; tenants have none of this form."""
    return [
        f"{kind}/{name_of_row(view, it)}"
        for view, kind in _KINDS.items()
        if view in views
        for it in rows_of(view, figures)
    ]


def _endpoint(it: EndpointFigures) -> dict[str, Any]:
    return {
        "name": it.name,
        "calls_per_s": _rounded(it.calls_per_s),
        "failures_per_s": _rounded(it.failures_per_s),
        **_times(it.times),
        "queued": it.queued,
        "calls_total": it.calls_total,
        "failures_total": it.failures_total,
        "traffic": dict(it.weights),
        "shares": {name: _rounded(share) for name, share in it.shares.items()},
    }


def _backend(it: BackendFigures) -> dict[str, Any]:
    numbers = it.numbers
    return {
        "name": it.name,
        "calls_per_s": _rounded(it.calls_per_s),
        "failures_per_s": _rounded(it.failures_per_s),
        **_times(it.times),
        "queued": it.queued,
        "queue_time_s": _rounded(it.queue_time_s),
        "ongoing": it.ongoing,
        "max_ongoing": it.max_ongoing,
        "slots": it.slots,
        "batch_size": _rounded(it.batch_size),
        "sent_total": it.sent_total,
        "ended_total": it.ended_total,
        "failed_total": it.failed_total,
        "unanswered_total": it.unanswered_total,
        "shadow_ended_total": it.shadow_ended_total,
        "shadow_failed_total": it.shadow_failed_total,
        "wanted_replicas": numbers.wanted,
        "ready_replicas": numbers.ready,
        "live_replicas": numbers.live,
        "failed_replicas": numbers.failed,
        "restart_count": numbers.restarts,
    }


def _replica(it: ReplicaFigures) -> dict[str, Any]:
    return {
        "replica_id": it.replica_id,
        "backend": it.backend,
        "state": it.state,
        "linked_routers": it.links,
        "routers": it.routers,
        "calls_per_s": _rounded(it.calls_per_s),
        "failures_per_s": _rounded(it.failures_per_s),
        **_times(it.times),
        "ongoing": it.ongoing,
        "max_ongoing": it.max_ongoing,
        "slots": it.slots,
        "waiting": it.waiting,
        "batch_size": _rounded(it.batch_size),
        "calls_total": it.calls_total,
        "failures_total": it.failures_total,
        "restart_count": it.restarts,
        "outdated": it.outdated,
        "trouble": it.trouble,
        "address": it.address,
        "pid": it.pid,
    }


def _router(it: RouterFigures) -> dict[str, Any]:
    return {
        "router_id": it.router_id,
        "address": it.address,
        "reports": it.is_heard,
        "current": it.is_current,
        "linked_replicas": it.links,
        "ready_replicas": it.ready_replicas,
        "calls_per_s": _rounded(it.calls_per_s),
        "failures_per_s": _rounded(it.failures_per_s),
        "queued": it.queued,
        "ongoing": it.ongoing,
        "calls_total": it.calls_total,
        "failures_total": it.failures_total,
        "version": it.version,
    }


def _tenant(it: TenantRow) -> dict[str, Any]:
    return {
        "endpoint": it.endpoint,
        "tenant": it.tenant,
        "calls_per_s": _rounded(it.calls_per_s),
        "refused_per_s": _rounded(it.refused_per_s),
        "unanswered": it.unanswered,
    }


def _times(times: CallQuantiles) -> dict[str, Any]:
    named = {"p50_s": times.p50_s, "p99_s": times.p99_s}
    return {
        **{name: value if value is None or isfinite(value) else CALL_TIMES[-1] for name, value in named.items()},
        "above_bounds": [name for name, value in named.items() if value is not None and not isfinite(value)],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


_WRITERS: Final[Mapping[TopView, Callable[[Any], dict[str, Any]]]] = {
    TopView.ENDPOINTS: _endpoint,
    TopView.BACKENDS: _backend,
    TopView.REPLICAS: _replica,
    TopView.ROUTERS: _router,
    TopView.TENANTS: _tenant,
}
_KINDS: Final = {
    TopView.ENDPOINTS: ENDPOINT,
    TopView.BACKENDS: BACKEND,
    TopView.REPLICAS: REPLICA,
    TopView.ROUTERS: ROUTER,
}
