"""Messages of routers, from and to the controller's values.

Invariants: whatever a router sends becomes a value or a `BadRequest` that names the field; nothing here decides.
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
)
from controller_service.convert.router_loads import backend_load_to_wire, endpoint_load_to_wire
from controller_service.convert.times import timestamp
from controller_service.core.backend_load import EndpointLoad
from controller_service.core.observed import ObservedRouter
from controller_service.core.partitions import Incarnation
from slotmesh.v1 import membership_service_pb2, mesh_pb2

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
    )


def linked_from_wire(report: membership_service_pb2.RouterReport) -> frozenset[Incarnation] | None:
    """The incarnations that the router has a link to; None where it names ids only."""
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
        start_time=timestamp(wall_s(router.started_at)),
        metrics_address=router.metrics_address,
        loads=map(backend_load_to_wire, router.loads),
        version=router.version,
        endpoint_loads=map(endpoint_load_to_wire, endpoints),
        incarnation=router.run_id,
        end_reason=router.end_reason,
    )
