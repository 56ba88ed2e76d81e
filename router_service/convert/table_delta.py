"""What has changed of the controller's routing table, as the core's values.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence

from router_service.convert.table import (
    departures_from_wire,
    endpoint_from_wire,
    prospect_from_wire,
    replica_from_wire,
    settings_from_wire,
)
from router_service.core.routing.partition_owners import UNOWNED, OwnerAtEpoch, PartitionOwners
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.routing.table import RoutingTable
from router_service.core.routing.table_delta import (
    BackendDelta,
    DeltaMismatch,
    EndpointDelta,
    ServicesDelta,
    TableDelta,
    TrafficDelta,
)
from slotmesh.spec.wire import services_from_wire
from slotmesh.v1 import membership_service_pb2
from slotmesh.wire.partitions import PARTITIONS


def delta_of(
    wire: membership_service_pb2.RoutingTableDelta, endpoints: Sequence[EndpointDelta], backends: Sequence[BackendDelta]
) -> TableDelta:
    """The delta, or what its first part says of it, with what has changed of endpoints and backends."""
    return TableDelta(
        generation=wire.generation,
        base_revision=wire.base_revision,
        revision=wire.revision,
        endpoints=endpoints,
        removed_endpoints=wire.removed_endpoints,
        backends=backends,
        removed_backends=wire.removed_backends,
        router_addresses=tuple(wire.router_addresses.addresses) if wire.HasField("router_addresses") else None,
        router_token_addresses=tuple(wire.router_addresses.token_addresses),
        roster_revision=wire.roster_revision,
        departed_since=wire.departed_since,
        forgotten_departures=wire.forgotten_departures,
        departed=tuple(departures_from_wire(wire.departed)),
    )


def endpoint_delta_from_wire(
    wire: membership_service_pb2.EndpointRouteDelta,
    before: RoutingTable,
    new: dict[ReplicaKey, ReplicaKey],
    assignments: Sequence[PartitionOwners],
) -> EndpointDelta:
    """`new` has keys of replicas that the delta names; `assignments` as of `endpoint_from_wire`. Raises ValueError."""
    route = before.endpoints.get(wire.name)
    known = ChainMap({key: key for key in route.owners.keys} if route is not None else {}, new)
    policy = wire.traffic.traffic
    weights = dict(policy.weights) if wire.traffic.HasField("traffic") else None
    traffic = TrafficDelta(weights=weights, shadows=dict(policy.shadows))
    return EndpointDelta(
        name=wire.name,
        whole=endpoint_from_wire(wire.whole, known, assignments) if wire.HasField("whole") else None,
        traffic=traffic if wire.HasField("traffic") else None,
        services=_services(wire.grpc_services) if wire.HasField("grpc_services") else None,
        moved=_moved(wire.partitions, known) if wire.HasField("partitions") else None,
    )


def _services(wire: membership_service_pb2.GrpcServicesChange) -> ServicesDelta:
    return ServicesDelta(services=services_from_wire(wire.grpc_services) if wire.HasField("grpc_services") else None)


def _moved(
    wire: membership_service_pb2.PartitionChanges, known: Mapping[ReplicaKey, ReplicaKey]
) -> dict[int, OwnerAtEpoch]:
    numbers, indexes = list(wire.partitions), list(wire.partition_owners)
    if not len(numbers) == len(indexes) == len(wire.owner_epochs):
        raise DeltaMismatch(f"{len(indexes)} owners and {len(wire.owner_epochs)} epochs of {len(numbers)} partitions")
    keys = [known.get(key, key) for key in _keys(wire.owners)]
    if not all(0 <= number < PARTITIONS for number in numbers):
        raise DeltaMismatch(f"a partition is none of the {PARTITIONS}")
    if not all(UNOWNED <= index < len(keys) for index in indexes):
        raise DeltaMismatch(f"an owner is none of the {len(keys)} that are named")
    return {
        number: (None if index == UNOWNED else keys[index], wire.base_epoch + epoch)
        for number, index, epoch in zip(numbers, indexes, wire.owner_epochs, strict=True)
    }


def backend_delta_from_wire(wire: membership_service_pb2.BackendRouteDelta) -> BackendDelta:
    route = wire.route
    return BackendDelta(
        name=route.name,
        prospect=prospect_from_wire(route),
        settings=settings_from_wire(route) if route.HasField("backend") else None,
        replicas=[replica_from_wire(each) for each in route.replicas],
        removed=_keys(wire.removed),
    )


def _keys(owners: Iterable[membership_service_pb2.PartitionOwner]) -> list[ReplicaKey]:
    return [(owner.replica_id, owner.incarnation) for owner in owners]
