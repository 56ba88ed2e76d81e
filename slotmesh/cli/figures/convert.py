"""`GetSnapshot`, as values. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from slotmesh.cli.figures.samples import (
    BackendNumbers,
    BackendSample,
    EndedTotals,
    EndpointSample,
    MeshSample,
    ReplicaSample,
    RouterReport,
    SampledReplica,
    SampledRouter,
    TenantSample,
)
from slotmesh.cli.statuses import replica_from_wire, router_from_wire
from slotmesh.convert.specification import seconds
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2


def sample_from_wire(wire: pb.GetSnapshotResponse) -> MeshSample:
    at_s = _seconds(wire.time)
    return MeshSample(
        at_s=at_s,
        generation=wire.generation,
        revision=wire.revision,
        weights={it.name: dict(it.traffic.weights) for it in wire.endpoints},
        backends=tuple(map(_numbers, wire.backends)),
        replicas=tuple(map(_replica, wire.replicas)),
        unlisted_replicas=wire.unlisted_replicas,
        routers=tuple(_router(it, at_s) for it in wire.routers),
    )


def _numbers(wire: pb.BackendSummary) -> BackendNumbers:
    return BackendNumbers(
        name=wire.name,
        wanted=wire.wanted_replicas if wire.HasField("wanted_replicas") else None,
        ready=wire.ready_replicas,
        live=wire.live_replicas,
        failed=wire.failed_replicas,
        restarts=wire.restart_count,
    )


def _replica(wire: pb.SampledReplica) -> SampledReplica:
    return SampledReplica(
        status=replica_from_wire(wire.replica),
        newest=_replica_load(wire.replica.load) if wire.replica.HasField("load") else None,
        earlier=_replica_load(wire.earlier_load) if wire.HasField("earlier_load") else None,
    )


def _replica_load(wire: mesh_pb2.ReplicaLoad) -> ReplicaSample:
    totals = wire.totals if wire.HasField("totals") else None
    return ReplicaSample(
        at_s=_seconds(wire.sample_time),
        ongoing=wire.ongoing,
        slots=wire.slots,
        waiting=wire.waiting,
        calls=None if totals is None else totals.calls,
        failed=None if totals is None else totals.failed,
        batches=None if totals is None else totals.batches,
        batched_calls=None if totals is None else totals.batched_calls,
        times=None if totals is None else tuple(totals.times),
    )


def _router(wire: pb.SampledRouter, at_s: float) -> SampledRouter:
    has_reported = wire.HasField("report_time")
    return SampledRouter(
        status=router_from_wire(wire.router),
        age_s=max(0.0, at_s - _seconds(wire.report_time)) if has_reported else None,
        newest=_report(wire.router.loads, wire.router.endpoint_loads) if has_reported else None,
        earlier=_report(wire.earlier_loads, wire.earlier_endpoint_loads)
        if wire.earlier_loads or wire.earlier_endpoint_loads
        else None,
    )


def _report(backends: Sequence[mesh_pb2.BackendLoad], endpoints: Sequence[mesh_pb2.EndpointLoad]) -> RouterReport:
    """All loads of a report were sampled at one time."""
    times = [*(_seconds(it.sample_time) for it in backends), *(_seconds(it.sample_time) for it in endpoints)]
    return RouterReport(
        at_s=max(times, default=0.0),
        backends={
            it.backend: BackendSample(
                queued=it.queued,
                ongoing=it.ongoing,
                queue_time_s=max(0.0, seconds(it.queue_time)),
                sent=it.sent,
                ended=_ended(it.ended) if it.HasField("ended") else None,
                shadow_ended=_ended(it.shadow_ended) if it.HasField("shadow_ended") else None,
            )
            for it in backends
        },
        endpoints={
            it.endpoint: EndpointSample(
                accepted=it.accepted,
                failed=it.failed,
                waiting=it.waiting,
                ends={each.backend: _ended(each.ended) for each in it.ends},
                tenants=tuple(
                    TenantSample(
                        name=each.tenant,
                        calls_per_s=each.calls_per_s,
                        refused_per_s=each.refused_per_s,
                        unanswered=each.unanswered,
                    )
                    for each in it.tenants
                ),
            )
            for it in endpoints
        },
    )


def _ended(wire: mesh_pb2.CallEnds) -> EndedTotals:
    return EndedTotals(wire.total, wire.failed, wire.unanswered, tuple(wire.times))


def _seconds(wire: Timestamp) -> float:
    return wire.ToMicroseconds() / 1e6
