"""Messages of routers, and the load that they report, from and to the controller's values.

Invariants: whatever a router sends becomes a value or a `BadRequest` that names the field; nothing here decides. A
figure that a router counts in another way than this version is unknown, which is not the same as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from controller_service.convert.checks import (
    ID,
    MAX_VERSION_CHARS,
    refuse,
    refuse_frame,
    require,
    require_address,
    seconds_of,
    timestamp,
)
from controller_service.core.loads import NO_ENDS, BackendLoad, CallEnds, EndpointLoad, RouterLoad
from controller_service.core.observed.state import ObservedRouter
from controller_service.core.partitions import Incarnation
from slotmesh.convert.specification import duration_to_wire, seconds
from slotmesh.v1 import membership_service_pb2, mesh_pb2

MAX_TENANTS: Final = 10
"""Of an endpoint at a router that are kept."""


def load_from_wire(report: membership_service_pb2.RouterReport, run_id: str) -> RouterLoad:
    """The load in a report of that start of a router."""
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
    """None if the router counts in another way: then nothing is known, which is not that nothing went wrong."""
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


MAX_RUN_ID_CHARS: Final = 64


def router_from_wire(frame: membership_service_pb2.AttachRouterRequest, *, started_at: float) -> ObservedRouter:
    """The first frame of a router."""
    if frame.WhichOneof("frame") != "hello":
        refuse("hello", "must be the first frame")
    hello = frame.hello
    require(ID, "hello.router_id", hello.router_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
    require_address("hello.address", hello.address)
    if hello.metrics_address:
        require_address("hello.metrics_address", hello.metrics_address)
    if hello.token_address:
        require_address("hello.token_address", hello.token_address)
    return ObservedRouter(
        router_id=hello.router_id,
        address=hello.address,
        token_address=hello.token_address,
        metrics_address=hello.metrics_address,
        version=hello.version[:MAX_VERSION_CHARS],
        started_at=started_at,
        run_id=hello.incarnation[:MAX_RUN_ID_CHARS],
        pid=max(0, hello.pid),
        process_began_s=seconds_of(hello.start_time),
    )


def linked_from_wire(report: membership_service_pb2.RouterReport) -> frozenset[Incarnation] | None:
    """The incarnations that the router has a link to; None if it names ids only."""
    if report.linked_replica_ids and not report.linked:
        return None
    return frozenset(Incarnation(it.replica_id, it.incarnation) for it in report.linked)


def router_report_from_wire(
    frame: membership_service_pb2.AttachRouterRequest,
) -> membership_service_pb2.RouterReport:
    """Any later frame of a router."""
    kind = frame.WhichOneof("frame")
    if kind != "report":
        refuse_frame(kind, known={"hello": "must be the first frame, and no other"})
    return frame.report


def router_to_wire(
    router: ObservedRouter, wall_s: Callable[[float], float], endpoints: Iterable[EndpointLoad] = ()
) -> mesh_pb2.Router:
    """`wall_s` turns monotonic seconds into seconds since 1970. `endpoints`: their newest load there."""
    return mesh_pb2.Router(
        router_id=router.router_id,
        address=router.address,
        generation=router.generation,
        revision=router.revision,
        linked_replica_ids=router.linked_replica_ids,
        start_time=timestamp(router.process_began_s or wall_s(router.started_at)),
        metrics_address=router.metrics_address,
        loads=map(backend_load_to_wire, router.loads),
        version=router.version,
        endpoint_loads=map(endpoint_load_to_wire, endpoints),
        incarnation=router.run_id,
        end_reason=router.end_reason,
        pid=router.pid,
    )
