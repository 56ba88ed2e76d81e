"""Calls, rates and latencies of the mesh, from the two reports of each member in a `GetSnapshotResponse`. Pure.

Purpose: rates over the last seconds, totals since the start of each present member.
Invariants: rates and totals come from the counters that Prometheus scrapes. A rate belongs to one run of one member, so
it is never negative. Routers whose reports have stopped have no rates. A row is also its document, with the names of
its fields; an unknown value is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.controller_view import READY_STATE
from slotmesh.cli.documents import word_of
from slotmesh.convert.specification import seconds
from slotmesh.histogram import CALL_TIMES, quantile_bound
from slotmesh.telemetry.names import OTHER_TENANTS
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

SILENT_AFTER_S: Final = 3.5
"""The figures of a router whose newest report is older are unknown. Reports are a second apart."""
LoadT = TypeVar("LoadT")
FiguresRow: TypeAlias = Mapping[str, Any]
"""The figures of one endpoint, backend, replica, router or tenant."""


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
class MeshFigures:
    """All figures of one moment."""

    at_s: float
    revision: int
    endpoints: Sequence[FiguresRow] = ()
    backends: Sequence[FiguresRow] = ()
    replicas: Sequence[FiguresRow] = ()
    routers: Sequence[FiguresRow] = ()
    unlisted_replicas: int = 0
    tenants: Sequence[FiguresRow] = ()
    """The busiest first."""


NO_FIGURES: Final = MeshFigures(at_s=0.0, revision=0)
"""Nothing is known."""


@dataclass(frozen=True, slots=True)
class RouterReport:
    """The loads in one report of a router, by name."""

    at_s: float
    """By the router's clock, seconds since 1970: all loads of a report were sampled at one time."""
    backends: Mapping[str, mesh_pb2.BackendLoad]
    endpoints: Mapping[str, mesh_pb2.EndpointLoad]

    @classmethod
    def of(cls, backends: Iterable[mesh_pb2.BackendLoad], endpoints: Iterable[mesh_pb2.EndpointLoad]) -> RouterReport:
        loads = cls(0.0, {it.backend: it for it in backends}, {it.endpoint: it for it in endpoints})
        times = [it.sample_time for each in (loads.backends, loads.endpoints) for it in each.values()]
        return cls(max(map(unix_time, times), default=0.0), loads.backends, loads.endpoints)


@dataclass(frozen=True, slots=True)
class RouterReports:
    """A router with its newest report, and an earlier one of the same start."""

    router: mesh_pb2.Router
    is_heard: bool
    """It has reported a moment ago."""
    newest: RouterReport
    """Empty if it has not reported yet."""
    earlier: RouterReport

    @classmethod
    def of(cls, sampled: pb.SampledRouter, sample: pb.GetSnapshotResponse) -> RouterReports:
        router, age_s = sampled.router, report_age_s(sampled, sample)
        newest = ((), ()) if age_s is None else (router.loads, router.endpoint_loads)
        earlier = RouterReport.of(sampled.earlier_loads, sampled.earlier_endpoint_loads)
        return cls(router, age_s is not None and age_s <= SILENT_AFTER_S, RouterReport.of(*newest), earlier)


def unix_time(time: Timestamp) -> float:
    return time.ToMicroseconds() / 1e6


def report_age_s(sampled: pb.SampledRouter, sample: pb.GetSnapshotResponse) -> float | None:
    """The age of a router's newest report, by the controller's clock; None if it has not reported yet."""
    if not sampled.HasField("report_time"):
        return None
    return max(0.0, unix_time(sample.time) - unix_time(sampled.report_time))


def rate(newest: int | None, earlier: int | None, seconds_between: float) -> float | None:
    """The rate per second; None if unknown."""
    if newest is None or earlier is None or seconds_between <= 0 or newest < earlier:
        return None
    return (newest - earlier) / seconds_between


def _total(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _pairs(
    routers: Iterable[RouterReports], loads: Callable[[RouterReport], Mapping[str, LoadT]], name: str = ""
) -> list[tuple[LoadT, LoadT, float]]:
    """The newest and the earlier loads of this name, or of all, and the seconds between them.

    Only those of routers that have reported a moment ago.
    """
    return [
        (newest, loads(it.earlier)[each], it.newest.at_s - it.earlier.at_s)
        for it in routers
        if it.is_heard and it.newest.at_s > it.earlier.at_s
        for each, newest in loads(it.newest).items()
        if each in loads(it.earlier) and name in {"", each}
    ]


def figures_of(sample: pb.GetSnapshotResponse) -> MeshFigures:
    routers = [RouterReports.of(it, sample) for it in sample.routers]
    return MeshFigures(
        at_s=unix_time(sample.time),
        revision=sample.revision,
        endpoints=tuple(_endpoint(it, routers) for it in sample.endpoints),
        backends=tuple(_backend(it, sample.replicas, routers) for it in sample.backends),
        replicas=tuple(_replica(it, sample) for it in sample.replicas),
        routers=tuple(_router(it, sample) for it in routers),
        unlisted_replicas=sample.unlisted_replicas,
        tenants=_tenants(routers),
    )


def _endpoint(endpoint: mesh_pb2.Endpoint, routers: Sequence[RouterReports]) -> FiguresRow:
    name, weights = endpoint.name, dict(sorted(endpoint.traffic.weights.items()))
    newest = [it.newest.endpoints[name] for it in routers if name in it.newest.endpoints]
    pairs = _pairs(routers, lambda report: report.endpoints, name)
    ends: list[tuple[str, mesh_pb2.CallEnds, mesh_pb2.CallEnds]] = []
    for now, before, _ in pairs:
        earlier = {it.backend: it.ended for it in before.ends}
        for it in now.ends:
            # If no call had reached the backend before, its totals begin with 0.
            nothing = mesh_pb2.CallEnds(times=[0] * len(it.ended.times))
            ends.append((it.backend, it.ended, earlier.get(it.backend, nothing)))
    waiting = [it.newest.backends[each].queued for each in weights for it in routers if each in it.newest.backends]
    return {
        "name": name,
        "calls_per_s": _total(rate(now.accepted, before.accepted, span) for now, before, span in pairs),
        "failures_per_s": _total(rate(now.failed, before.failed, span) for now, before, span in pairs),
        "times": CallQuantiles.of_counts((ended.times, before.times) for _, ended, before in ends),
        # Calls that wait for the backends of its policy; without a policy, calls that wait for one.
        "queued": sum(waiting) if weights else sum(it.waiting for it in newest),
        "calls_total": sum(it.accepted for it in newest),
        "failures_total": sum(it.failed for it in newest),
        "traffic": weights,  # of its policy
        "shares": _shares([(backend, ended.total - before.total) for backend, ended, before in ends]),
    }


def _shares(ended: list[tuple[str, int]]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for backend, calls in ended:
        counts[backend] = counts.get(backend, 0) + max(0, calls)
    calls = sum(counts.values())
    return {backend: round(counts[backend] / calls, 3) for backend in sorted(counts)} if calls else {}


def _backend(
    summary: pb.BackendSummary, sampled: Iterable[pb.SampledReplica], routers: Sequence[RouterReports]
) -> FiguresRow:
    name, status = summary.name, summary.status
    newest = [it.newest.backends[name] for it in routers if name in it.newest.backends]
    pairs = _pairs(routers, lambda report: report.backends, name)
    replicas = [it for it in sampled if it.replica.backend == name]
    slots = [it.replica.load.slots for it in replicas if it.replica.HasField("load")]
    return {
        "name": name,
        "calls_per_s": _total(rate(now.sent, before.sent, span) for now, before, span in pairs),
        "failures_per_s": _total(rate(_bad(now), _bad(before), span) for now, before, span in pairs),
        "times": CallQuantiles.of_counts((now.ended.times, before.ended.times) for now, before, _ in pairs),
        "queued": sum(it.queued for it in newest),
        "queue_time_s": max((max(0.0, seconds(it.queue_time)) for it in newest), default=0.0),
        "ongoing": sum(it.ongoing for it in newest),
        "max_ongoing": sum(it.replica.max_ongoing for it in replicas if it.replica.state == READY_STATE),
        "slots": sum(slots) if slots else None,  # reserved, without a call
        "batch_size": _batch_size(replicas),
        # Sums over the present routers.
        "sent_total": sum(it.sent for it in newest),
        "ended_total": sum(it.ended.total for it in newest),
        "failed_total": sum(it.ended.failed for it in newest),
        "unanswered_total": sum(it.ended.unanswered for it in newest),
        "shadow_ended_total": sum(it.shadow_ended.total for it in newest),
        "shadow_failed_total": sum(it.shadow_ended.failed + it.shadow_ended.unanswered for it in newest),
        "wanted_replicas": status.wanted_replicas if status.HasField("wanted_replicas") else None,
        "ready_replicas": status.ready_replicas,
        "live_replicas": status.live_replicas,
        "failed_replicas": status.failed_replicas,
        "restart_count": status.restart_count,
    }


def _bad(load: mesh_pb2.BackendLoad) -> int:
    return load.ended.failed + load.ended.unanswered + load.shadow_ended.failed + load.shadow_ended.unanswered


def _batch_size(replicas: Iterable[pb.SampledReplica]) -> float | None:
    """Calls in a batch in the last seconds; None if there was no batch."""
    batches = calls = 0
    for it in replicas:
        if it.replica.load.HasField("totals") and it.earlier_load.HasField("totals"):
            newest, earlier = it.replica.load.totals, it.earlier_load.totals
            if newest.batches > earlier.batches:
                batches += newest.batches - earlier.batches
                calls += max(0, newest.batched_calls - earlier.batched_calls)
    return calls / batches if batches else None


def _replica(sampled: pb.SampledReplica, sample: pb.GetSnapshotResponse) -> FiguresRow:
    it, newest, earlier = sampled.replica, sampled.replica.load, sampled.earlier_load
    has_load, has_totals = it.HasField("load"), newest.HasField("totals")
    span = unix_time(newest.sample_time) - unix_time(earlier.sample_time) if earlier.HasField("totals") else 0.0
    return {
        "replica_id": it.replica_id,
        "backend": it.backend,
        "state": word_of(it, "state"),
        "linked_routers": sum(it.replica_id in each.router.linked_replica_ids for each in sample.routers),
        "routers": len(sample.routers),
        "calls_per_s": rate(newest.totals.calls, earlier.totals.calls, span) if has_totals else None,
        "failures_per_s": rate(newest.totals.failed, earlier.totals.failed, span) if has_totals else None,
        "times": CallQuantiles.of_counts([(newest.totals.times, earlier.totals.times)]),
        "ongoing": newest.ongoing if has_load else None,
        "max_ongoing": it.max_ongoing,
        "slots": newest.slots if has_load else None,
        "waiting": newest.waiting if has_load else None,
        "batch_size": _batch_size([sampled]),
        "calls_total": newest.totals.calls if has_totals else None,
        "failures_total": newest.totals.failed if has_totals else None,
        "restart_count": it.restart_count,
        "outdated": it.outdated,
        "trouble": (it.error or it.warning).strip(),
        "address": it.address,
        "pid": it.pid,
    }


def _router(reports: RouterReports, sample: pb.GetSnapshotResponse) -> FiguresRow:
    router, newest = reports.router, reports.newest
    pairs = _pairs([reports], lambda report: report.endpoints)
    ready = {it.replica.replica_id for it in sample.replicas if it.replica.state == READY_STATE}
    return {
        "router_id": router.router_id,
        "address": router.address,
        "reports": reports.is_heard,  # a moment ago
        "current": (router.generation, router.table_revision) == (sample.generation, sample.table_revision),
        "linked_replicas": len(ready.intersection(router.linked_replica_ids)),
        "ready_replicas": len(ready),
        "calls_per_s": _total(rate(now.accepted, before.accepted, span) for now, before, span in pairs),
        "failures_per_s": _total(rate(now.failed, before.failed, span) for now, before, span in pairs),
        "queued": sum(it.queued for it in newest.backends.values()),
        "ongoing": sum(it.ongoing for it in newest.backends.values()),
        "calls_total": sum(it.accepted for it in newest.endpoints.values()),
        "failures_total": sum(it.failed for it in newest.endpoints.values()),
        "version": router.version,
    }


def _tenants(routers: Iterable[RouterReports]) -> list[FiguresRow]:
    """Over the routers that have reported a moment ago, and at which a tenant is among the busiest."""
    loads: dict[tuple[str, str], list[mesh_pb2.TenantLoad]] = {}
    for router in routers:
        for endpoint, load in router.newest.endpoints.items() if router.is_heard else ():
            for it in load.tenants:
                loads.setdefault((endpoint, it.tenant), []).append(it)
    rows: list[FiguresRow] = [
        {
            "endpoint": endpoint,
            "tenant": tenant,  # empty: all tenants beyond the number that routers track
            "calls_per_s": sum(it.calls_per_s for it in each),  # refused ones, too
            "refused_per_s": sum(it.refused_per_s for it in each),
            "unanswered": sum(it.unanswered for it in each),
        }
        for (endpoint, tenant), each in loads.items()
    ]
    return sorted(rows, key=lambda it: (-it["calls_per_s"], row_name(it)))


def row_name(row: FiguresRow) -> str:
    """The name of a row; of a tenant as ENDPOINT/TENANT."""
    if "tenant" in row:
        return f"{row['endpoint']}/{row['tenant'] or OTHER_TENANTS}"
    return str(next(row[field] for field in ("name", "replica_id", "router_id") if field in row))


def figures_document(row: FiguresRow) -> dict[str, Any]:
    """A row as values of JSON, with three digits after the point."""
    document: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, CallQuantiles):
            document |= value.document()
        else:
            document[name] = round(value, 3) if isinstance(value, float) else value
    return document


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
