"""The report to the controller on how loaded this router is, and what has become of its calls.

Owner: the table watch asks for it each second. Nothing here is counted: it reads what the scheduler counts.
"""

from __future__ import annotations

from typing import TypedDict

from google.protobuf import timestamp_pb2

from router_service.core.call_ends import CallEndTotals
from router_service.core.routing.loads import RoutedEndpointLoad, RoutedLoad, endpoint_loads_of, loads_of
from router_service.core.scheduler import RouterScheduler
from slotmesh.runtime.clock import Clock
from slotmesh.spec.wire import duration_to_wire
from slotmesh.v1 import mesh_pb2


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
