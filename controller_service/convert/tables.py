"""Routing tables, as routers get them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from controller_service.core.partitions import PartitionOwnership
from controller_service.core.routing import AnnouncedTable, ListedBackend
from slotmesh.spec.model import ROUTED, Backend
from slotmesh.spec.wire import backend_to_wire, repeat_for_older_peers, traffic_to_wire
from slotmesh.v1 import membership_service_pb2


def table_to_wire(
    table: AnnouncedTable, ownership_bytes: Callable[[PartitionOwnership], bytes]
) -> membership_service_pb2.RoutingTable:
    """`ownership_bytes` is `ownership_to_bytes`, or what remembers its answers: they are most of the work."""
    wire = membership_service_pb2.RoutingTable(
        generation=table.generation,
        revision=table.revision,
        backends=map(_backend_route, table.routes.backends),
        router_addresses=table.routes.router_addresses,
        roster_revision=table.roster.revision,
        departed=(
            membership_service_pb2.DepartedReplica(
                replica_id=it.owner.replica_id,
                incarnation=it.owner.incarnation,
                generation=it.generation,
                revision=it.revision,
            )
            for it in table.roster.departed
        ),
        departed_since=table.roster.departed_since,
        covers=(
            membership_service_pb2.CoveredGeneration(
                generation=it.generation, revision=it.revision, departed_since=it.departed_since
            )
            for it in table.roster.covers
        ),
    )
    for route in table.routes.endpoints:
        endpoint = wire.endpoints.add(name=route.name)
        if route.traffic is not None:
            endpoint.traffic.CopyFrom(traffic_to_wire(route.traffic))
        if route.ownership is not None:
            endpoint.MergeFromString(ownership_bytes(route.ownership))
    return wire


def ownership_to_bytes(ownership: PartitionOwnership) -> bytes:
    """What an EndpointRoute says of owners, to be merged into it."""
    base = min(ownership.epochs, default=0)
    wire = membership_service_pb2.EndpointRoute(
        owners=(
            membership_service_pb2.PartitionOwner(replica_id=owner.replica_id, incarnation=owner.incarnation)
            for owner in ownership.owners
        ),
        partition_owners=ownership.partition_owners,
        owner_epochs=[epoch - base for epoch in ownership.epochs],
        base_epoch=base,
    )
    return wire.SerializeToString()


def _backend_route(route: ListedBackend) -> membership_service_pb2.BackendRoute:
    wire = membership_service_pb2.BackendRoute(
        name=route.settings.name,
        replicas=(
            membership_service_pb2.ReplicaRoute(
                replica_id=replica.replica_id,
                incarnation=replica.incarnation,
                address=replica.address,
                max_ongoing=replica.max_ongoing,
                draining=replica.draining,
                process=replica.process,
            )
            for replica in route.replicas
        ),
    )
    wire.MergeFromString(_settings(route.settings.name, _routed_of(route.settings)))
    return wire


_ROUTED: Final = tuple(each.attribute for each in ROUTED.values())
_routed_of: Final = attrgetter(*_ROUTED)


@lru_cache(maxsize=1024)
def _settings(name: str, routed: tuple[Any, ...]) -> bytes:
    """What a BackendRoute says of settings, to be merged into it: mostly nothing of them has changed."""
    backend = Backend(name=name, **dict(zip(_ROUTED, routed, strict=True)))
    wire = membership_service_pb2.BackendRoute(backend=backend_to_wire(backend, ROUTED))
    repeat_for_older_peers(wire)
    return wire.SerializeToString()
