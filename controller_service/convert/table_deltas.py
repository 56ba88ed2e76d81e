"""What differs between two routing tables, as routers get it."""

from __future__ import annotations

from controller_service.convert.tables import (
    backend_to_wire_route,
    departures_to_wire,
    endpoint_to_wire,
    owners_to_wire,
)
from controller_service.core.partitions import NO_OWNER, PartitionOwnership
from controller_service.core.table_deltas import AnnouncedDelta, BackendChange, EndpointChange
from slotmesh.spec.wire import services_to_wire, traffic_to_wire
from slotmesh.v1 import membership_service_pb2


def delta_to_wire(delta: AnnouncedDelta) -> membership_service_pb2.RoutingTableDelta:
    """In one message."""
    wire = head_of_delta(delta)
    wire.endpoints.extend(map(endpoint_change_to_wire, delta.endpoints))
    wire.backends.extend(map(backend_change_to_wire, delta.backends))
    return wire


def head_of_delta(delta: AnnouncedDelta) -> membership_service_pb2.RoutingTableDelta:
    """The delta without what has changed of endpoints and backends."""
    table = delta.table
    wire = membership_service_pb2.RoutingTableDelta(
        generation=table.generation,
        base_revision=delta.base_revision,
        revision=table.revision,
        removed_endpoints=delta.removed_endpoints,
        removed_backends=delta.removed_backends,
        roster_revision=table.roster.revision,
        departed_since=table.roster.departed_since,
        forgotten_departures=delta.forgotten_departures,
        departed=departures_to_wire(delta.departed),
    )
    if delta.has_other_routers:
        wire.router_addresses.addresses.extend(table.routes.router_addresses)
        wire.router_addresses.token_addresses.extend(table.routes.router_token_addresses)
        wire.router_addresses.SetInParent()
    return wire


def backend_change_to_wire(change: BackendChange) -> membership_service_pb2.BackendRouteDelta:
    return membership_service_pb2.BackendRouteDelta(
        route=backend_to_wire_route(change.listed, change.replicas, has_settings=change.has_other_settings),
        removed=owners_to_wire(change.removed),
    )


def endpoint_change_to_wire(
    change: EndpointChange, *, assignment: int = 0
) -> membership_service_pb2.EndpointRouteDelta:
    """`assignment`: as of `endpoint_to_wire`, where the endpoint is sent as a whole."""
    listed = change.listed
    wire = membership_service_pb2.EndpointRouteDelta(name=listed.name)
    if change.is_whole:
        wire.whole.CopyFrom(endpoint_to_wire(listed, assignment=assignment))
        return wire
    if change.has_other_traffic:
        wire.traffic.SetInParent()
        if listed.traffic is not None:
            wire.traffic.traffic.CopyFrom(traffic_to_wire(listed.traffic))
    if change.has_other_services:
        wire.grpc_services.SetInParent()
        if listed.grpc_services is not None:
            wire.grpc_services.grpc_services.CopyFrom(services_to_wire(listed.grpc_services))
    if change.moved and listed.ownership is not None:
        wire.partitions.CopyFrom(_partitions(listed.ownership, change.moved))
    return wire


def _partitions(ownership: PartitionOwnership, moved: tuple[int, ...]) -> membership_service_pb2.PartitionChanges:
    indexes = [ownership.partition_owners[number] for number in moved]
    epochs = [ownership.epochs[number] for number in moved]
    base = min(epochs)
    named = sorted({index for index in indexes if index != NO_OWNER})
    place_of = {NO_OWNER: NO_OWNER, **{index: place for place, index in enumerate(named)}}
    return membership_service_pb2.PartitionChanges(
        owners=owners_to_wire(ownership.owners[index] for index in named),
        partitions=moved,
        partition_owners=[place_of[index] for index in indexes],
        owner_epochs=[epoch - base for epoch in epochs],
        base_epoch=base,
    )
