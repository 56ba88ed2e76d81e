"""Reports to the controller: the links to replicas, and the load of each backend and endpoint.

Purpose: the table watch sends a report each second. Nothing is counted here: it reads what the scheduler counts.
Invariants: waiting calls that belong to no backend yet (their key has no owner, and the policy names several backends)
are divided among the backends they may go to, each share rounded up, so that each is seen to be needed.
Owner: the app; links write the `LinkReport`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from google.protobuf import timestamp_pb2

from router_service.core.counters import CallEndTotals, RouterCounters, ShadowOutcome
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.rosters import ReplicaKey
from router_service.core.routing.replica_links import unlinked
from router_service.core.routing.topology import Topology
from router_service.core.scheduler import RouterScheduler
from router_service.core.tenants import TenantBook, TenantLoad
from slotmesh.convert.specification import duration_to_wire
from slotmesh.runtime.clock import Clock
from slotmesh.v1 import mesh_pb2


class LinkReport:
    """Which links to replicas of the table work, and which replicas have ended in order."""

    def __init__(self, scheduler: RouterScheduler) -> None:
        self._scheduler = scheduler
        self._ended: set[ReplicaKey] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a replica was linked or lost, or has ended."""

    def ended(self, replica: RoutedReplica) -> None:
        """The replica has sent go_away, and has ended its stream in order."""
        self._ended.add(replica.key)
        self.on_change()

    def ended_replicas(self) -> list[ReplicaKey]:
        """Those that have."""
        self._ended &= self._scheduler.topology.replicas.keys()
        return sorted(self._ended)

    def linked_replicas(self) -> list[ReplicaKey]:
        """Those that there is a working link to."""
        return sorted(each.key for each in self._scheduler.topology.replicas.values() if each.linked)

    def unlinked_replicas(self) -> list[ReplicaKey]:
        """Where the router links to a part of them: those that it should have a link to, and that have none."""
        topology = self._scheduler.topology
        return sorted(each.key for each in unlinked(topology.replicas.values())) if topology.links.is_partial else []


MAX_IDLE_LOADS: Final = 1_000
"""With more endpoints than this, those without calls are not reported: a report is made each second."""


@dataclass(frozen=True, slots=True)
class RoutedLoad:
    """Load of one backend at this router."""

    backend: str
    queued: int
    ongoing: int
    slot_calls: int
    """Of `ongoing`."""
    queue_time_s: float
    """How long what waits now will have to wait until all of it was sent; 0 where nothing waits."""
    sent: int
    """Calls sent to replicas since the router's start."""
    shadow_copies: int
    """Copies for it as a shadow that have ended since then, dropped ones included."""
    shadow_drops: int
    """Those that were dropped: no slot was free."""
    ended: CallEndTotals
    """How its calls have ended since then."""
    shadow_ended: CallEndTotals
    """How the copies that it got have ended since then."""


def loads_of(topology: Topology, counters: RouterCounters, now: float) -> list[RoutedLoad]:
    """Of all backends."""
    unowned = Counter[str]()
    for endpoint in topology.endpoints.values():
        if calls := endpoint.account.calls:
            for name, weight in endpoint.traffic.weights.items():
                unowned[name] += math.ceil(calls * weight)
    return [
        RoutedLoad(
            backend=backend.name,
            queued=backend.account.calls + unowned[backend.name],
            ongoing=backend.ongoing,
            slot_calls=backend.slot_calls,
            queue_time_s=backend.account.retry_delay_s(now) if backend.account.calls else 0.0,
            sent=sum(backend.counts.queue_time.counts),
            shadow_copies=sum(counters.shadows[backend.name, outcome.value] for outcome in ShadowOutcome),
            shadow_drops=counters.shadows[backend.name, ShadowOutcome.DROPPED.value],
            ended=backend.counts.ended.sum(),
            shadow_ended=backend.counts.shadow_ended.sum(),
        )
        for backend in topology.backends.values()
    ]


@dataclass(frozen=True, slots=True)
class RoutedEndpointLoad:
    """Load of one endpoint at this router. Totals are of the time since its start."""

    endpoint: str
    accepted: int
    failed: int
    """In whatever failure."""
    waiting: int
    """Calls that belong to no backend yet."""
    ends: Mapping[str, CallEndTotals]
    """By backend; to be read."""
    tenants: Sequence[TenantLoad] = ()
    """The busiest, if they are among the busiest of the router."""


MAX_TENANT_LOADS: Final = 10
"""Of all endpoints together: the busiest tenants of a router."""


def endpoint_loads_of(
    topology: Topology, counters: RouterCounters, tenants: TenantBook, now: float
) -> list[RoutedEndpointLoad]:
    """Of all endpoints; of more than `MAX_IDLE_LOADS` of those only that were called since the router's start."""
    busiest = tenants.loads(MAX_TENANT_LOADS, now)
    failed = Counter[str]()
    for (endpoint, *_), calls in counters.failures.items():
        failed[endpoint] += calls
    waiting = {name: each.account.calls for name, each in topology.endpoints.items()}
    names: Collection[str] = topology.table.endpoints
    if len(names) > MAX_IDLE_LOADS:
        names = [name for name in names if waiting.get(name) or name in failed or counters.calls.get((name,))]
    return [
        RoutedEndpointLoad(
            endpoint=name,
            accepted=counters.calls[name,],
            failed=failed[name],
            waiting=waiting.get(name, 0),
            ends={
                backend: ends
                for backend, counts in counters.backends.items()
                if (ends := counts.ended.by_endpoint.get(name)) is not None
            },
            tenants=[each for each in busiest if each.endpoint == name] if busiest else (),
        )
        for name in names
    ]


class LoadReport(TypedDict):
    """Fields of `RouterReport`."""

    loads: list[mesh_pb2.BackendLoad]
    endpoint_loads: list[mesh_pb2.EndpointLoad]


def load_report(scheduler: RouterScheduler, clock: Clock) -> LoadReport:
    """All of one moment."""
    now = clock.now()
    sampled_at = timestamp_pb2.Timestamp()
    sampled_at.FromMicroseconds(round(clock.time_of_day() * 1e6))
    topology = scheduler.topology
    return LoadReport(
        loads=[_backend(load, sampled_at) for load in loads_of(topology, scheduler.counters, now)],
        endpoint_loads=[
            _endpoint(load, sampled_at)
            for load in endpoint_loads_of(topology, scheduler.counters, scheduler.tenants, now)
        ],
    )


def _backend(load: RoutedLoad, sampled_at: timestamp_pb2.Timestamp) -> mesh_pb2.BackendLoad:
    return mesh_pb2.BackendLoad(
        backend=load.backend,
        queued=load.queued,
        ongoing=load.ongoing,
        sample_time=sampled_at,
        slot_calls=load.slot_calls,
        queue_time=duration_to_wire(load.queue_time_s) if load.queue_time_s else None,
        sent=load.sent,
        shadow_copies=load.shadow_copies,
        shadow_drops=load.shadow_drops,
        ended=_ends(load.ended),
        shadow_ended=_ends(load.shadow_ended),
    )


def _endpoint(load: RoutedEndpointLoad, sampled_at: timestamp_pb2.Timestamp) -> mesh_pb2.EndpointLoad:
    return mesh_pb2.EndpointLoad(
        endpoint=load.endpoint,
        accepted=load.accepted,
        failed=load.failed,
        waiting=load.waiting,
        ends=[mesh_pb2.EndpointEnds(backend=name, ended=_ends(ends)) for name, ends in load.ends.items()],
        tenants=[
            mesh_pb2.TenantLoad(
                tenant=each.name,
                calls_per_s=each.calls_per_s,
                refused_per_s=each.refused_per_s,
                unanswered=each.unanswered,
            )
            for each in load.tenants
        ],
        sample_time=sampled_at,
    )


def _ends(ends: CallEndTotals) -> mesh_pb2.CallEnds:
    return mesh_pb2.CallEnds(total=ends.total, failed=ends.failed, unanswered=ends.unanswered, times=ends.times.counts)
