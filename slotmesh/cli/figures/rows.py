"""The rows of `slotmesh top`: figures of endpoints, backends, replicas, routers and tenants. Pure.

Invariants: a row is also its document, with the names of its fields; an unknown value is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final

from slotmesh.histogram import CALL_TIMES, quantile_bound
from slotmesh.telemetry.names import OTHER_TENANTS

READY: Final = "READY"
FAILED: Final = "FAILED"
"""States of replicas."""


@dataclass(frozen=True, slots=True)
class CallQuantiles:
    """The times within which half of the calls ended, and 99 of 100: upper bounds of buckets, seconds."""

    p50_s: float | None
    p99_s: float | None

    @classmethod
    def of_counts(cls, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> CallQuantiles:
        """For the calls that were added to buckets since, (newest, earlier) of each member. Empty: not reported."""
        counts = [0] * (len(CALL_TIMES) + 1)
        for newest, earlier in pairs:
            if not len(newest) == len(earlier) == len(counts):
                continue
            fresh = [now - before for now, before in zip(newest, earlier, strict=True)]
            if min(fresh) >= 0:
                counts = [one + another for one, another in zip(counts, fresh, strict=True)]
        return cls(quantile_bound(CALL_TIMES, counts, 0.5), quantile_bound(CALL_TIMES, counts, 0.99))

    def document(self) -> dict[str, Any]:
        """Values of JSON: a time above all bounds is the last bound, and marked as above it."""
        named = {"p50_s": self.p50_s, "p99_s": self.p99_s}
        above = [name for name, value in named.items() if value is not None and not isfinite(value)]
        return {**named, **dict.fromkeys(above, CALL_TIMES[-1]), "above_bounds": above}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFigures:
    """An endpoint, over all routers."""

    name: str
    calls_per_s: float | None
    """Accepted calls."""
    failures_per_s: float | None
    times: CallQuantiles
    queued: int
    """Calls that wait for the backends of its policy; without a policy, calls that wait for one."""
    calls_total: int
    """`slotmesh_router_calls_total`, summed over the present routers."""
    failures_total: int
    """`slotmesh_router_failures_total`, likewise."""
    traffic: Mapping[str, float]
    """The weights of its policy, by backend."""
    shares: Mapping[str, float]
    """The division of the calls that ended in the last seconds, by backend; empty if none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFigures:
    """A backend, over all routers and its replicas."""

    name: str
    calls_per_s: float | None
    """Calls sent to replicas."""
    failures_per_s: float | None
    """Calls, including copies for it as a shadow, that failed because of it or were not answered in time."""
    times: CallQuantiles
    queued: int
    queue_time_s: float
    """How long waiting calls have to wait, the maximum over all routers."""
    ongoing: int
    max_ongoing: int
    """The sum over the ready replicas."""
    slots: int | None
    """Reserved slots without a call."""
    batch_size: float | None
    """Calls in a batch."""
    sent_total: int
    """`slotmesh_router_queue_time_seconds_count`, summed over the present routers."""
    ended_total: int
    failed_total: int
    unanswered_total: int
    shadow_ended_total: int
    """Copies that it got as a shadow."""
    shadow_failed_total: int
    """Copies among them that failed, or were not answered in time."""
    wanted_replicas: int | None
    """None: any number."""
    ready_replicas: int
    live_replicas: int
    failed_replicas: int
    restart_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFigures:
    """A replica's own figures, over all paths by which calls reach it."""

    replica_id: str
    backend: str
    state: str
    linked_routers: int
    """Routers that have a working link to it."""
    routers: int
    """All routers."""
    calls_per_s: float | None
    """Executed calls."""
    failures_per_s: float | None
    times: CallQuantiles
    """Execution times, without the time that calls waited before."""
    ongoing: int | None
    max_ongoing: int
    slots: int | None
    waiting: int | None
    batch_size: float | None
    calls_total: int | None
    """`slotmesh_replica_calls_total`."""
    failures_total: int | None
    restart_count: int
    outdated: bool
    trouble: str
    """Its error; otherwise its warning."""
    address: str
    pid: int

    @property
    def name(self) -> str:
        return self.replica_id

    @property
    def is_reached(self) -> bool:
        """Whether a router reaches it, if there are routers."""
        return bool(self.linked_routers) or not self.routers


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFigures:
    """A router, over all endpoints."""

    router_id: str
    address: str
    reports: bool
    """It has reported a moment ago."""
    current: bool
    """It has the newest routing table."""
    linked_replicas: int
    """Ready replicas that it has a link to."""
    ready_replicas: int
    calls_per_s: float | None
    failures_per_s: float | None
    queued: int
    ongoing: int
    calls_total: int
    failures_total: int
    version: str

    @property
    def name(self) -> str:
        return self.router_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant of an endpoint, over the routers at which it is among the busiest."""

    endpoint: str
    tenant: str
    """Empty: all tenants beyond the number that routers track."""
    calls_per_s: float
    """Including refused ones."""
    refused_per_s: float
    """Refused by a limit of the tenant, or by a queue without room for them."""
    unanswered: int

    @property
    def name(self) -> str:
        """As ENDPOINT/TENANT."""
        return f"{self.endpoint}/{self.tenant or OTHER_TENANTS}"


AnyFigures = EndpointFigures | BackendFigures | ReplicaFigures | RouterFigures | TenantRow


def figures_document(row: AnyFigures) -> dict[str, Any]:
    """A row as values of JSON, with three digits after the point."""
    document: dict[str, Any] = {}
    for field in fields(row):
        match getattr(row, field.name):
            case CallQuantiles() as times:
                document |= times.document()
            case float(value):
                document[field.name] = round(value, 3)
            case Mapping() as shares:
                document[field.name] = dict(shares)
            case value:
                document[field.name] = value
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFigures:
    """All figures of one moment."""

    at_s: float
    revision: int
    endpoints: tuple[EndpointFigures, ...] = ()
    backends: tuple[BackendFigures, ...] = ()
    replicas: tuple[ReplicaFigures, ...] = ()
    routers: tuple[RouterFigures, ...] = ()
    unlisted_replicas: int = 0
    tenants: tuple[TenantRow, ...] = ()
    """The busiest first."""


NO_FIGURES: Final = MeshFigures(at_s=0.0, revision=0)
"""Nothing is known."""


def shown_time(time_s: float | None) -> str:
    """As `≤ 20 ms`, `≤ 1.5 s`, `> 30 s`; empty if unknown."""
    if time_s is None:
        return ""
    if not isfinite(time_s):
        return f"> {CALL_TIMES[-1]:g} s"
    return f"≤ {time_s:g} s" if time_s >= 1 else f"≤ {time_s * 1000:g} ms"


def shown_rate(value: float | None) -> str:
    """Three digits, or whole numbers; empty if unknown."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
