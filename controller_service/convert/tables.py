"""Routing tables, as routers get them.

Endpoints and backends are written one by one, as bytes that can be kept: mostly nothing of them has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from controller_service.core.partitions import Incarnation, PartitionOwnership
from controller_service.core.roster import DepartedIncarnation
from controller_service.core.routing import AnnouncedTable, ListedBackend, ListedEndpoint, ListedReplica
from slotmesh.spec.model import ROUTED, Backend
from slotmesh.spec.wire import (
    backend_to_wire,
    repeat_for_older_peers,
    services_to_wire,
    tenants_to_wire,
    traffic_to_wire,
)
from slotmesh.v1 import membership_service_pb2


def table_to_wire(table: AnnouncedTable, parts: Iterable[bytes]) -> membership_service_pb2.RoutingTable:
    """`parts` are its endpoints and backends, by `endpoint_to_bytes` and `backend_to_bytes`."""
    wire = head_of_table(table)
    wire.MergeFromString(b"".join(parts))
    return wire


def head_of_table(table: AnnouncedTable) -> membership_service_pb2.RoutingTable:
    """The table without its endpoints and backends."""
    roster = table.roster
    return membership_service_pb2.RoutingTable(
        generation=table.generation,
        revision=table.revision,
        term_id=table.term_id,
        router_addresses=table.routes.router_addresses,
        router_token_addresses=table.routes.router_token_addresses,
        roster_revision=roster.revision,
        departed=departures_to_wire(roster.departed),
        departed_since=roster.departed_since,
        covers=(
            membership_service_pb2.CoveredGeneration(
                generation=it.generation, revision=it.revision, departed_since=it.departed_since
            )
            for it in roster.covers
        ),
    )


def endpoint_to_bytes(endpoint: ListedEndpoint) -> bytes:
    """A table with this endpoint alone, to be merged into one."""
    return membership_service_pb2.RoutingTable(endpoints=[endpoint_to_wire(endpoint)]).SerializeToString()


def backend_to_bytes(backend: ListedBackend) -> bytes:
    """A table with this backend alone, to be merged into one."""
    wire = backend_to_wire_route(backend, backend.replicas, has_settings=True)
    return membership_service_pb2.RoutingTable(backends=[wire]).SerializeToString()


def endpoint_to_wire(endpoint: ListedEndpoint, *, assignment: int = 0) -> membership_service_pb2.EndpointRoute:
    """`assignment`: the number under which the owners of its partitions were written before; 0: they are part of it."""
    wire = membership_service_pb2.EndpointRoute(name=endpoint.name)
    if endpoint.traffic is not None:
        wire.traffic.CopyFrom(traffic_to_wire(endpoint.traffic))
    if endpoint.grpc_services is not None:
        wire.grpc_services.CopyFrom(services_to_wire(endpoint.grpc_services))
    if endpoint.tenants is not None:
        wire.tenants.CopyFrom(tenants_to_wire(endpoint.tenants))
    if assignment:
        wire.assignment = assignment
    elif endpoint.ownership is not None:
        write_owners(endpoint.ownership, wire)
    return wire


def backend_to_wire_route(
    backend: ListedBackend, replicas: Iterable[ListedReplica], *, has_settings: bool
) -> membership_service_pb2.BackendRoute:
    """The backend with these of its replicas, and with or without its settings."""
    wire = membership_service_pb2.BackendRoute(
        name=backend.settings.name,
        replicas=map(_replica_to_wire, replicas),
        prospect=membership_service_pb2.Prospect.ValueType(backend.prospect.value),
    )
    if has_settings:
        wire.MergeFromString(_settings(backend.settings.name, _routed_of(backend.settings)))
    return wire


def owners_to_wire(owners: Iterable[Incarnation]) -> Iterator[membership_service_pb2.PartitionOwner]:
    for owner in owners:
        yield membership_service_pb2.PartitionOwner(replica_id=owner.replica_id, incarnation=owner.incarnation)


def departures_to_wire(
    departed: Iterable[DepartedIncarnation],
) -> Iterator[membership_service_pb2.DepartedReplica]:
    for it in departed:
        yield membership_service_pb2.DepartedReplica(
            replica_id=it.owner.replica_id,
            incarnation=it.owner.incarnation,
            generation=it.generation,
            revision=it.revision,
        )


def write_owners(
    ownership: PartitionOwnership,
    wire: membership_service_pb2.EndpointRoute | membership_service_pb2.PartitionAssignment,
) -> None:
    """The owners and the epochs of all partitions."""
    base = min(ownership.epochs, default=0)
    wire.owners.extend(owners_to_wire(ownership.owners))
    wire.partition_owners.extend(ownership.partition_owners)
    wire.owner_epochs.extend([epoch - base for epoch in ownership.epochs])
    wire.base_epoch = base


def _replica_to_wire(replica: ListedReplica) -> membership_service_pb2.ReplicaRoute:
    return membership_service_pb2.ReplicaRoute(
        replica_id=replica.replica_id,
        incarnation=replica.incarnation,
        address=replica.address,
        max_ongoing=replica.max_ongoing,
        draining=replica.draining,
        process=replica.process,
        suspect=replica.suspect,
    )


_ROUTED: Final = tuple(each.attribute for each in ROUTED.values())
_routed_of: Final = attrgetter(*_ROUTED)


@lru_cache(maxsize=1024)
def _settings(name: str, routed: tuple[Any, ...]) -> bytes:
    """What a BackendRoute says of settings, to be merged into it: mostly nothing of them has changed."""
    backend = Backend(name=name, **dict(zip(_ROUTED, routed, strict=True)))
    wire = membership_service_pb2.BackendRoute(backend=backend_to_wire(backend, ROUTED))
    repeat_for_older_peers(wire)
    return wire.SerializeToString()
