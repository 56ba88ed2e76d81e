"""The controller's routing table and its deltas as values of the core, and back for a controller without stored state.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from router_service.core.rosters import (
    KnownDeparture,
    KnownGeneration,
    KnownTerm,
    ReplicaKey,
    RosterVersion,
    TableRoster,
)
from router_service.core.routing_table import (
    NO_OWNERS,
    UNOWNED,
    BackendDelta,
    BackendRoute,
    DeltaMismatch,
    EndpointDelta,
    EndpointRoute,
    OwnerAtEpoch,
    PartitionOwners,
    ReplicaRoute,
    RoutingTable,
    ServicesDelta,
    TableDelta,
    TrafficDelta,
)
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.convert.specification import (
    backend_from_wire,
    backend_to_wire,
    services_from_wire,
    services_to_wire,
    tenants_from_wire,
    tenants_to_wire,
)
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.spec.model import ROUTED, Backend, Prospect
from slotmesh.v1 import mesh_pb2, router_service_pb2

NO_OUTLINES: Final[Mapping[str, Sequence[MethodOutline]]] = MappingProxyType({})


def described(
    endpoints: Iterable[tuple[str, Sequence[str]]], outlines: Mapping[str, Sequence[MethodOutline]] = NO_OUTLINES
) -> router_service_pb2.DescribeEndpointsResponse:
    """Endpoints and their methods, with arguments and results."""
    response = router_service_pb2.DescribeEndpointsResponse()
    for name, methods in endpoints:
        endpoint = response.endpoints.add(name=name, methods=methods)
        for it in outlines.get(name, ()):
            endpoint.described.add(name=it.method, yields=it.yields, schema=it.schema)
    return response


def roster_from_wire(wire: membership_service_pb2.RoutingTable) -> TableRoster:
    """The roster of a table, or of its first part."""
    return TableRoster(
        RosterVersion(wire.generation, wire.roster_revision, wire.term_id),
        tuple(departures_from_wire(wire.departed)),
        wire.departed_since,
        tuple(KnownGeneration(each.generation, each.revision, each.departed_since) for each in wire.covers),
        tuple(KnownTerm(each.term_id, each.first_revision) for each in wire.terms),
    )


def head_to_wire(table: RoutingTable) -> membership_service_pb2.RoutingTable:
    """The table without its endpoints and backends."""
    roster = table.roster
    return membership_service_pb2.RoutingTable(
        generation=table.generation,
        revision=table.revision,
        term_id=table.term_id,
        router_addresses=table.router_addresses,
        router_token_addresses=table.router_token_addresses,
        roster_revision=roster.version.revision,
        departed=(
            membership_service_pb2.DepartedReplica(
                replica_id=key[0], incarnation=key[1], generation=version.generation, revision=version.revision
            )
            for key, version in roster.departed
        ),
        departed_since=roster.departed_since,
        covers=(
            membership_service_pb2.CoveredGeneration(
                generation=each.generation, revision=each.revision, departed_since=each.departed_since
            )
            for each in roster.covers
        ),
    )


def departures_from_wire(wire: Iterable[membership_service_pb2.DepartedReplica]) -> Iterator[KnownDeparture]:
    for each in wire:
        yield KnownDeparture((each.replica_id, each.incarnation), RosterVersion(each.generation, each.revision))


def owners_from_wire(
    wire: membership_service_pb2.PartitionAssignment, known: Mapping[ReplicaKey, ReplicaKey]
) -> PartitionOwners:
    """`known` has keys of replicas: equal ones are shared. Raises ValueError."""
    keys = [known.get(key, key) for key in ((owner.replica_id, owner.incarnation) for owner in wire.owners)]
    base = wire.base_epoch
    return PartitionOwners(keys, wire.partition_owners, [base + epoch for epoch in wire.owner_epochs])


def endpoint_from_wire(
    wire: membership_service_pb2.EndpointRoute, assignments: Sequence[PartitionOwners]
) -> EndpointRoute:
    """`assignments` are the owners to which the endpoint may refer. Raises ValueError."""
    if not 0 <= wire.assignment <= len(assignments):
        raise ValueError(f"assignment {wire.assignment} of endpoint {wire.name} is none of the {len(assignments)}")
    return EndpointRoute(
        name=wire.name,
        weights=dict(wire.traffic.weights) if wire.HasField("traffic") else None,
        shadows=dict(wire.traffic.shadows),
        owners=assignments[wire.assignment - 1] if wire.assignment else NO_OWNERS,
        grpc_services=services_from_wire(wire.grpc_services) if wire.HasField("grpc_services") else None,
        tenants=tenants_from_wire(wire.tenants) if wire.HasField("tenants") else None,
    )


def replica_from_wire(wire: membership_service_pb2.ReplicaRoute) -> ReplicaRoute:
    return ReplicaRoute(
        key=(wire.replica_id, wire.incarnation),
        address=wire.address,
        max_ongoing=max(1, wire.max_ongoing),
        draining=wire.draining,
        process=wire.process,
        is_suspect=wire.suspect,
        devices=tuple(wire.devices),
        rank=wire.rank if wire.HasField("rank") else None,
        zone=wire.zone,
    )


def prospect_from_wire(wire: membership_service_pb2.BackendRoute) -> Prospect:
    return _PROSPECTS.get(wire.prospect, Prospect.UNKNOWN)


def settings_from_wire(wire: membership_service_pb2.BackendRoute) -> Backend:
    return _settings(wire.name, wire.backend.SerializeToString())


def backend_from_wire_route(wire: membership_service_pb2.BackendRoute) -> BackendRoute:
    return BackendRoute(
        settings=settings_from_wire(wire),
        replicas=tuple(map(replica_from_wire, wire.replicas)),
        prospect=prospect_from_wire(wire),
    )


def endpoint_to_wire(route: EndpointRoute, assignment: int) -> membership_service_pb2.EndpointRoute:
    """`assignment`: the number under which its owners were already written; 0: there are none."""
    wire = membership_service_pb2.EndpointRoute(name=route.name, assignment=assignment)
    if route.grpc_services is not None:
        wire.grpc_services.CopyFrom(services_to_wire(route.grpc_services))
    if route.tenants is not None:
        wire.tenants.CopyFrom(tenants_to_wire(route.tenants))
    if route.weights is not None:
        wire.traffic.CopyFrom(mesh_pb2.TrafficPolicy(weights=route.weights, shadows=route.shadows))
    return wire


def backend_to_wire_route(route: BackendRoute) -> membership_service_pb2.BackendRoute:
    return membership_service_pb2.BackendRoute(
        name=route.name,
        replicas=(
            membership_service_pb2.ReplicaRoute(
                replica_id=each.key[0],
                incarnation=each.key[1],
                address=each.address,
                max_ongoing=each.max_ongoing,
                draining=each.draining,
                process=each.process,
                suspect=each.is_suspect,
                devices=each.devices,
                rank=each.rank,
                zone=each.zone,
            )
            for each in route.replicas
        ),
        backend=backend_to_wire(route.settings, ROUTED),
        prospect=mesh_pb2.Prospect.ValueType(route.prospect.value),
    )


_PROSPECTS: Final = {each.value: each for each in Prospect}


@lru_cache(maxsize=1024)
def _settings(name: str, raw: bytes) -> Backend:
    settings, _ = backend_from_wire(mesh_pb2.Backend.FromString(raw))
    return replace(settings, name=name)


def delta_of(
    wire: membership_service_pb2.RoutingTableDelta, endpoints: Sequence[EndpointDelta], backends: Sequence[BackendDelta]
) -> TableDelta:
    """The delta of this frame, or of its first part, with the changed endpoints and backends."""
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
        whole=endpoint_from_wire(wire.whole, assignments) if wire.HasField("whole") else None,
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
