"""Messages of routers, from and to the controller's values.

Invariants: whatever a router sends becomes a value or a `BadRequest` that names the field; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from controller_service.convert.checks import (
    ID,
    MAX_EPOCH,
    MAX_PROCESS_CHARS,
    MAX_VERSION_CHARS,
    refuse,
    refuse_frame,
    require,
    require_address,
    require_generation,
)
from controller_service.convert.router_loads import backend_load_to_wire, endpoint_load_to_wire
from controller_service.convert.times import timestamp
from controller_service.core.backend_load import EndpointLoad
from controller_service.core.brought_table import BroughtTable
from controller_service.core.observed import ObservedRouter
from controller_service.core.partitions import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import CoveredTables, DepartedIncarnation, IncarnationRoster, ListedIncarnation
from slotmesh.v1 import membership_service_pb2, mesh_pb2
from slotmesh.wire.partitions import PARTITIONS

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


def brought_from_wire(hello: membership_service_pb2.RouterHello, *, generation: str, now: float) -> BroughtTable | None:
    """The table that a router brings, where it is of another generation than this one. `now`: seconds since 1970."""
    wire = hello.table
    if not hello.HasField("table") or wire.generation == generation:
        return None
    require_generation("hello.table.generation", wire.generation)
    for at, each in enumerate(wire.covers):
        require_generation(f"hello.table.covers[{at}].generation", each.generation)
    return BroughtTable(
        generation=wire.generation,
        roster=IncarnationRoster(
            revision=wire.roster_revision,
            members=tuple(_members(wire)),
            departed=tuple(
                DepartedIncarnation(
                    owner=Incarnation(it.replica_id, it.incarnation),
                    generation=it.generation,
                    revision=it.revision,
                    left_at=now,
                )
                for it in wire.departed
            ),
            departed_since=wire.departed_since,
            covers=tuple(
                CoveredTables(generation=it.generation, revision=it.revision, departed_since=it.departed_since)
                for it in wire.covers
            ),
        ),
        router_addresses=frozenset(wire.router_addresses),
        ownership=_ownership_of(wire),
    )


def _members(table: membership_service_pb2.RoutingTable) -> Iterator[ListedIncarnation]:
    for at, backend in enumerate(table.backends):
        for number, replica in enumerate(backend.replicas):
            path = f"hello.table.backends[{at}].replicas[{number}]"
            require(ID, f"{path}.replica_id", replica.replica_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
            require_address(f"{path}.address", replica.address)
            yield ListedIncarnation(
                owner=Incarnation(replica.replica_id, replica.incarnation),
                backend=backend.name,
                address=replica.address,
                max_ongoing=max(0, replica.max_ongoing),
                draining=replica.draining,
                process=replica.process[:MAX_PROCESS_CHARS],
            )


def _ownership_of(table: membership_service_pb2.RoutingTable) -> dict[str, PartitionOwnership]:
    """By endpoint: those that refer to the same owners share one object."""
    shared = [_ownership(f"hello.table.assignments[{at}]", it) for at, it in enumerate(table.assignments)]
    ownership: dict[str, PartitionOwnership] = {}
    for at, each in enumerate(table.endpoints):
        path = f"hello.table.endpoints[{at}]"
        if not 0 <= each.assignment <= len(shared):
            refuse(f"{path}.assignment", f"is none of the {len(shared)} assignments, is {each.assignment}")
        ownership[each.name] = shared[each.assignment - 1] if each.assignment else _ownership(path, each)
    return ownership


def _ownership(
    path: str, route: membership_service_pb2.EndpointRoute | membership_service_pb2.PartitionAssignment
) -> PartitionOwnership:
    owner_of, epochs = tuple(route.partition_owners), tuple(route.base_epoch + epoch for epoch in route.owner_epochs)
    if len(owner_of) not in {0, PARTITIONS}:
        refuse(f"{path}.partition_owners", f"must be none or {PARTITIONS}, are {len(owner_of)}")
    if len(epochs) != len(owner_of):
        refuse(f"{path}.owner_epochs", f"{len(epochs)} epochs of {len(owner_of)} partitions")
    if not all(NO_OWNER <= index < len(route.owners) for index in owner_of):
        refuse(f"{path}.partition_owners", f"must be {NO_OWNER} … {len(route.owners) - 1}, indexes into `owners`")
    if not all(0 <= epoch < MAX_EPOCH for epoch in epochs):
        refuse(f"{path}.owner_epochs", "must be epochs: 0 or larger, and far from the end of 64 bits")
    return PartitionOwnership(
        owners=tuple(Incarnation(it.replica_id, it.incarnation) for it in route.owners),
        partition_owners=owner_of or (NO_OWNER,) * PARTITIONS,
        epochs=epochs or (0,) * PARTITIONS,
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
    )
