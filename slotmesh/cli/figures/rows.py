"""The figures of a live view, from the controller's samples. Pure.

Purpose: one row for each endpoint, backend, replica and router; rates over the last seconds, totals since the start of
each present member.
Invariants: rates and totals come from the counters that Prometheus scrapes; an unknown value is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slotmesh.cli.figures.rates import CallQuantiles, Interval, TenantRow, intervals, is_heard, rate, tenants_of, total
from slotmesh.cli.figures.samples import (
    BackendNumbers,
    BackendSample,
    EndedTotals,
    MeshSample,
    SampledReplica,
    SampledRouter,
)
from slotmesh.cli.snapshot import READY_STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFigures:
    """An endpoint, over all routers."""

    name: str
    calls_per_s: float | None
    """Accepted."""
    failures_per_s: float | None
    times: CallQuantiles
    queued: int
    """What waits for the backends of its policy; without one, what waits for a policy."""
    calls_total: int
    """`slotmesh_router_calls_total`, summed over the present routers."""
    failures_total: int
    """`slotmesh_router_failures_total`, likewise."""
    weights: Mapping[str, float]
    """Of its policy, by backend."""
    shares: Mapping[str, float]
    """Of the calls that ended in the last seconds, by backend; none where none has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFigures:
    """A backend, over all routers and its replicas."""

    name: str
    numbers: BackendNumbers
    calls_per_s: float | None
    """Sent to replicas."""
    failures_per_s: float | None
    """Failed for what the backend is, or not answered in time; copies that it got as a shadow are among them."""
    times: CallQuantiles
    queued: int
    ongoing: int
    queue_time_s: float
    """How long what waits has to wait, at most of all routers."""
    slots: int | None
    """Reserved, with no call in them."""
    max_ongoing: int
    """Of the ready replicas together."""
    batch_size: float | None
    """Calls in a batch."""
    sent_total: int
    """`slotmesh_router_queue_time_seconds_count`, summed over the present routers."""
    ended_total: int
    failed_total: int
    unanswered_total: int
    shadow_ended_total: int = 0
    """Copies that it got as a shadow."""
    shadow_failed_total: int = 0
    """Those of them that failed, or were not answered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFigures:
    """A replica's own figures, over all paths by which calls reach it."""

    replica_id: str
    backend: str
    state: str
    links: int
    """Routers that have a working link to it."""
    routers: int
    """Routers that there are."""
    calls_per_s: float | None
    """Executed."""
    failures_per_s: float | None
    times: CallQuantiles
    """How long calls ran there; what they waited before that is not in it."""
    ongoing: int | None
    max_ongoing: int
    slots: int | None
    waiting: int | None
    batch_size: float | None
    restarts: int
    outdated: bool
    trouble: str
    """Its error, else its warning."""
    calls_total: int | None
    """`slotmesh_replica_calls_total`."""
    failures_total: int | None
    address: str
    pid: int

    @property
    def is_reached(self) -> bool:
        """Whether a router reaches it, as far as there are any."""
        return bool(self.links) or not self.routers


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterFigures:
    """A router, over all endpoints."""

    router_id: str
    address: str
    is_heard: bool
    """It has reported a moment ago."""
    is_current: bool
    """It has the newest routing table."""
    links: int
    """To ready replicas."""
    ready_replicas: int
    calls_per_s: float | None
    failures_per_s: float | None
    queued: int
    ongoing: int
    calls_total: int
    failures_total: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFigures:
    """All of one moment."""

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


def figures_of(sample: MeshSample) -> MeshFigures:
    spans = [*intervals(sample.routers)]
    return MeshFigures(
        at_s=sample.at_s,
        revision=sample.revision,
        endpoints=tuple(_endpoint(name, sample, spans) for name in sample.weights),
        backends=tuple(_backend(it, sample, spans) for it in sample.backends),
        replicas=tuple(_replica(it, sample) for it in sample.replicas),
        routers=tuple(_router(it, sample) for it in sample.routers),
        unlisted_replicas=sample.unlisted_replicas,
        tenants=tenants_of(sample),
    )


def _endpoint(name: str, sample: MeshSample, spans: list[Interval]) -> EndpointFigures:
    weights = sample.weights[name]
    newest = [it.newest.endpoints[name] for it in sample.routers if it.newest and name in it.newest.endpoints]
    pairs = [
        (span.newest.endpoints[name], span.earlier.endpoints[name], span.seconds)
        for span in spans
        if name in span.newest.endpoints and name in span.earlier.endpoints
    ]
    # Where nothing had come from an endpoint to a backend, its totals there begin with 0.
    ends = [
        (backend, ended, earlier.ends.get(backend, _nothing(ended)))
        for now, earlier, _ in pairs
        for backend, ended in now.ends.items()
    ]
    return EndpointFigures(
        name=name,
        calls_per_s=total(rate(now.accepted, before.accepted, span) for now, before, span in pairs),
        failures_per_s=total(rate(now.failed, before.failed, span) for now, before, span in pairs),
        times=CallQuantiles.between((ended, before) for _, ended, before in ends),
        queued=sum(it.queued for backend in weights for it in _at_routers(backend, sample))
        if weights
        else sum(it.waiting for it in newest),
        calls_total=sum(it.accepted for it in newest),
        failures_total=sum(it.failed for it in newest),
        weights=weights,
        shares=_shares([(backend, ended.total - before.total) for backend, ended, before in ends]),
    )


def _nothing(like: EndedTotals) -> EndedTotals:
    return EndedTotals(0, 0, 0, (0,) * len(like.times))


def _shares(ended: list[tuple[str, int]]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for backend, calls in ended:
        counts[backend] = counts.get(backend, 0) + max(0, calls)
    calls = sum(counts.values())
    return {backend: counts[backend] / calls for backend in sorted(counts)} if calls else {}


def _at_routers(backend: str, sample: MeshSample) -> list[BackendSample]:
    return [it.newest.backends[backend] for it in sample.routers if it.newest and backend in it.newest.backends]


def _backend(numbers: BackendNumbers, sample: MeshSample, spans: list[Interval]) -> BackendFigures:
    name = numbers.name
    newest = _at_routers(name, sample)
    pairs = [
        (span.newest.backends[name], span.earlier.backends[name], span.seconds)
        for span in spans
        if name in span.newest.backends and name in span.earlier.backends
    ]
    replicas = [it for it in sample.replicas if it.status.backend == name]
    ended = [it.ended for it in newest if it.ended is not None]
    copies = [it.shadow_ended for it in newest if it.shadow_ended is not None]
    slots = [it.newest.slots for it in replicas if it.newest is not None]
    return BackendFigures(
        name=name,
        numbers=numbers,
        calls_per_s=total(rate(now.sent, before.sent, span) for now, before, span in pairs),
        failures_per_s=total(rate(_bad(now), _bad(before), span) for now, before, span in pairs),
        times=CallQuantiles.between((now.ended, before.ended) for now, before, _ in pairs),
        queued=sum(it.queued for it in newest),
        ongoing=sum(it.ongoing for it in newest),
        queue_time_s=max((it.queue_time_s for it in newest), default=0.0),
        slots=sum(slots) if slots else None,
        max_ongoing=sum(it.status.max_ongoing for it in replicas if it.status.state == READY_STATE),
        batch_size=_batch_size(replicas),
        sent_total=sum(it.sent for it in newest),
        ended_total=sum(it.total for it in ended),
        failed_total=sum(it.failed for it in ended),
        unanswered_total=sum(it.unanswered for it in ended),
        shadow_ended_total=sum(it.total for it in copies),
        shadow_failed_total=sum(it.failed + it.unanswered for it in copies),
    )


def _bad(sample: BackendSample) -> int | None:
    if sample.ended is None:
        return None
    copies = sample.shadow_ended
    return sample.ended.failed + sample.ended.unanswered + (0 if copies is None else copies.failed + copies.unanswered)


def _batch_size(replicas: list[SampledReplica]) -> float | None:
    """Calls in a batch, of the last seconds; None where there was none."""
    batches = calls = 0
    for replica in replicas:
        newest, earlier = replica.newest, replica.earlier
        if newest is None or earlier is None:
            continue
        more = _more(newest.batches, earlier.batches)
        if more:
            batches += more
            calls += _more(newest.batched_calls, earlier.batched_calls)
    return calls / batches if batches else None


def _more(newest: int | None, earlier: int | None) -> int:
    return 0 if newest is None or earlier is None else max(0, newest - earlier)


def _replica(replica: SampledReplica, sample: MeshSample) -> ReplicaFigures:
    status, newest, earlier = replica.status, replica.newest, replica.earlier
    seconds = newest.at_s - earlier.at_s if newest is not None and earlier is not None else 0.0
    before = earlier or newest
    return ReplicaFigures(
        replica_id=status.replica_id,
        backend=status.backend,
        state=status.state,
        links=sum(status.replica_id in it.status.linked_replica_ids for it in sample.routers),
        routers=len(sample.routers),
        calls_per_s=rate(newest.calls, before.calls, seconds) if newest and before else None,
        failures_per_s=rate(newest.failed, before.failed, seconds) if newest and before else None,
        times=CallQuantiles.of_counts([(newest.times, earlier.times)] if newest and earlier else []),
        ongoing=newest.ongoing if newest else None,
        max_ongoing=status.max_ongoing,
        slots=newest.slots if newest else None,
        waiting=newest.waiting if newest else None,
        batch_size=_batch_size([replica]),
        restarts=status.restart_count,
        outdated=status.outdated,
        trouble=(status.error or status.warning).strip(),
        calls_total=newest.calls if newest else None,
        failures_total=newest.failed if newest else None,
        address=status.address,
        pid=status.pid,
    )


def _router(router: SampledRouter, sample: MeshSample) -> RouterFigures:
    status = router.status
    spans = [*intervals([router])]
    endpoints = [*router.newest.endpoints.values()] if router.newest else []
    backends = [*router.newest.backends.values()] if router.newest else []
    pairs = [
        (now, span.earlier.endpoints[name], span.seconds)
        for span in spans
        for name, now in span.newest.endpoints.items()
        if name in span.earlier.endpoints
    ]
    ready = {it.status.replica_id for it in sample.replicas if it.status.state == READY_STATE}
    return RouterFigures(
        router_id=status.router_id,
        address=status.address,
        is_heard=is_heard(router),
        is_current=(status.generation, status.revision) == (sample.generation, sample.revision),
        links=len(ready & status.linked_replica_ids),
        ready_replicas=len(ready),
        calls_per_s=total(rate(now.accepted, before.accepted, span) for now, before, span in pairs),
        failures_per_s=total(rate(now.failed, before.failed, span) for now, before, span in pairs),
        queued=sum(it.queued for it in backends),
        ongoing=sum(it.ongoing for it in backends),
        calls_total=sum(it.accepted for it in endpoints),
        failures_total=sum(it.failed for it in endpoints),
        version=status.version,
    )
