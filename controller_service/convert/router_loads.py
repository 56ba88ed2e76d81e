"""The load that routers report, from and to the controller's values.

Invariants: what a router counts in another way than this version is not known, which is not the same as nothing.
"""

from __future__ import annotations

from typing import Final

from controller_service.convert.times import seconds_of, timestamp
from controller_service.core.backend_load import NO_ENDS, BackendLoad, CallEnds, EndpointLoad, RouterLoad
from slotmesh.spec.wire import duration_to_wire, seconds
from slotmesh.v1 import membership_service_pb2, mesh_pb2

MAX_TENANTS: Final = 10
"""Of an endpoint at a router that are kept."""


def load_from_wire(report: membership_service_pb2.RouterReport, run_id: str) -> RouterLoad:
    """What a report of that start of a router says."""
    return RouterLoad(
        run_id=run_id,
        backends=tuple(map(_backend_from_wire, report.loads)),
        endpoints=tuple(map(_endpoint_from_wire, report.endpoint_loads)),
    )


def _backend_from_wire(wire: mesh_pb2.BackendLoad) -> BackendLoad:
    return BackendLoad(
        backend=wire.backend,
        queued=wire.queued,
        ongoing=wire.ongoing,
        slot_calls=wire.slot_calls,
        queue_time_s=max(0.0, seconds(wire.queue_time)),
        sent=wire.sent,
        shadow_copies=wire.shadow_copies,
        shadow_drops=wire.shadow_drops,
        sampled_at=seconds_of(wire.sample_time),
        ended=_ends_from_wire(wire.ended) if wire.HasField("ended") else None,
        shadow_ended=_ends_from_wire(wire.shadow_ended) if wire.HasField("shadow_ended") else None,
    )


def _endpoint_from_wire(wire: mesh_pb2.EndpointLoad) -> EndpointLoad:
    ends = ((it.backend, _ends_from_wire(it.ended)) for it in wire.ends)
    return EndpointLoad(
        endpoint=wire.endpoint,
        accepted=max(0, wire.accepted),
        failed=max(0, wire.failed),
        waiting=max(0, wire.waiting),
        ends=tuple((backend, ended) for backend, ended in ends if ended is not None),
        sampled_at=seconds_of(wire.sample_time),
        tenants=tuple(
            (it.tenant, it.calls_per_s, it.refused_per_s, it.unanswered) for it in wire.tenants[:MAX_TENANTS]
        ),
    )


def _ends_from_wire(wire: mesh_pb2.CallEnds) -> CallEnds | None:
    """None where the router counts in another way: then nothing is known, which is not that nothing went wrong."""
    times, rest = tuple(wire.times), wire.total - wire.failed - wire.unanswered
    if len(times) != len(NO_ENDS.times) or min(*times, wire.failed, wire.unanswered) < 0 or rest < sum(times):
        return None
    return CallEnds(wire.total, wire.failed, wire.unanswered, times)


def backend_load_to_wire(load: BackendLoad) -> mesh_pb2.BackendLoad:
    return mesh_pb2.BackendLoad(
        backend=load.backend,
        queued=load.queued,
        ongoing=load.ongoing,
        slot_calls=load.slot_calls,
        queue_time=duration_to_wire(load.queue_time_s) if load.queue_time_s else None,
        sent=load.sent,
        shadow_copies=load.shadow_copies,
        shadow_drops=load.shadow_drops,
        ended=None if load.ended is None else _ends_to_wire(load.ended),
        shadow_ended=None if load.shadow_ended is None else _ends_to_wire(load.shadow_ended),
        sample_time=None if load.sampled_at is None else timestamp(load.sampled_at),
    )


def endpoint_load_to_wire(load: EndpointLoad) -> mesh_pb2.EndpointLoad:
    return mesh_pb2.EndpointLoad(
        endpoint=load.endpoint,
        accepted=load.accepted,
        failed=load.failed,
        waiting=load.waiting,
        ends=[mesh_pb2.EndpointEnds(backend=backend, ended=_ends_to_wire(ended)) for backend, ended in load.ends],
        sample_time=None if load.sampled_at is None else timestamp(load.sampled_at),
        tenants=[
            mesh_pb2.TenantLoad(tenant=name, calls_per_s=calls, refused_per_s=refused, unanswered=unanswered)
            for name, calls, refused, unanswered in load.tenants
        ],
    )


def _ends_to_wire(ends: CallEnds) -> mesh_pb2.CallEnds:
    return mesh_pb2.CallEnds(total=ends.total, failed=ends.failed, unanswered=ends.unanswered, times=ends.times)
