"""Routing tables, and the differences between two of them, as routers get them: in parts.

Invariants: owners of partitions that endpoints share are written once, before the endpoints; a part is made when it is
requested, so that no table blocks the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

from controller_service.core.partition_owners import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import DepartedIncarnation, ListedIncarnation
from controller_service.core.routing import (
    AnnouncedDelta,
    AnnouncedTable,
    BackendChange,
    EndpointChange,
    ListedBackend,
    ListedEndpoint,
)
from slotmesh.convert.same_names import message_of
from slotmesh.convert.specification import backend_to_wire, services_to_wire, tenants_to_wire, traffic_to_wire
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.spec.model import ROUTED, Backend
from slotmesh.v1 import mesh_pb2


def head_of_table(table: AnnouncedTable) -> pb.RoutingTable:
    """The table without its endpoints and backends."""
    roster = table.roster
    return message_of(
        pb.RoutingTable,
        table,
        router_addresses=table.routes.router_addresses,
        router_token_addresses=table.routes.router_token_addresses,
        roster_revision=roster.revision,
        departed=departures_to_wire(roster.departed),
        departed_since=roster.departed_since,
        covers=(message_of(pb.CoveredGeneration, it) for it in roster.covers),
    )


def endpoint_to_wire(endpoint: ListedEndpoint, assignment: int) -> pb.EndpointRoute:
    """`assignment`: the number of the owners of its partitions, which were written before; 0: there are none."""
    wire = pb.EndpointRoute(name=endpoint.name, assignment=assignment)
    if endpoint.traffic is not None:
        wire.traffic.CopyFrom(traffic_to_wire(endpoint.traffic))
    if endpoint.grpc_services is not None:
        wire.grpc_services.CopyFrom(services_to_wire(endpoint.grpc_services))
    if endpoint.tenants is not None:
        wire.tenants.CopyFrom(tenants_to_wire(endpoint.tenants))
    return wire


def backend_to_wire_route(
    backend: ListedBackend, replicas: Iterable[ListedIncarnation], *, has_settings: bool
) -> pb.BackendRoute:
    """The backend with these of its replicas, and with or without its settings."""
    wire = pb.BackendRoute(
        name=backend.settings.name,
        replicas=map(_replica_to_wire, replicas),
        prospect=mesh_pb2.Prospect.ValueType(backend.prospect.value),
    )
    if has_settings:
        wire.MergeFromString(_settings(backend.settings.name, _routed_of(backend.settings)))
    return wire


def owners_to_wire(owners: Iterable[Incarnation]) -> Iterator[pb.PartitionOwner]:
    for owner in owners:
        yield pb.PartitionOwner(replica_id=owner.replica_id, incarnation=owner.incarnation)


def departures_to_wire(departed: Iterable[DepartedIncarnation]) -> Iterator[pb.DepartedReplica]:
    for it in departed:
        owner = it.owner
        yield message_of(pb.DepartedReplica, it, replica_id=owner.replica_id, incarnation=owner.incarnation)


def assignment_to_wire(ownership: PartitionOwnership) -> pb.PartitionAssignment:
    """The owners and the epochs of all partitions."""
    base = min(ownership.epochs, default=0)
    return pb.PartitionAssignment(
        owners=owners_to_wire(ownership.owners),
        partition_owners=ownership.partition_owners,
        owner_epochs=[epoch - base for epoch in ownership.epochs],
        base_epoch=base,
    )


def _replica_to_wire(replica: ListedIncarnation) -> pb.ReplicaRoute:
    owner = replica.owner
    return message_of(pb.ReplicaRoute, replica, replica_id=owner.replica_id, incarnation=owner.incarnation)


_ROUTED: Final = tuple(each.attribute for each in ROUTED.values())
_routed_of: Final = attrgetter(*_ROUTED)


@lru_cache(maxsize=1024)
def _settings(name: str, routed: tuple[Any, ...]) -> bytes:
    """The settings of a BackendRoute, to be merged into it: mostly nothing of them has changed."""
    backend = Backend(name=name, **dict(zip(_ROUTED, routed, strict=True)))
    return pb.BackendRoute(backend=backend_to_wire(backend, ROUTED)).SerializeToString()


def head_of_delta(delta: AnnouncedDelta) -> pb.RoutingTableDelta:
    """The delta without what has changed of endpoints and backends."""
    table = delta.table
    wire = pb.RoutingTableDelta(
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


def backend_change_to_wire(change: BackendChange) -> pb.BackendRouteDelta:
    return pb.BackendRouteDelta(
        route=backend_to_wire_route(change.listed, change.replicas, has_settings=change.has_other_settings),
        removed=owners_to_wire(change.removed),
    )


def endpoint_change_to_wire(change: EndpointChange, assignment: int = 0) -> pb.EndpointRouteDelta:
    """`assignment`: as of `endpoint_to_wire`, where the endpoint is sent as a whole."""
    listed = change.listed
    wire = pb.EndpointRouteDelta(name=listed.name)
    if change.is_whole:
        wire.whole.CopyFrom(endpoint_to_wire(listed, assignment))
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


def _partitions(ownership: PartitionOwnership, moved: tuple[int, ...]) -> pb.PartitionChanges:
    indexes = [ownership.partition_owners[number] for number in moved]
    epochs = [ownership.epochs[number] for number in moved]
    base = min(epochs)
    named = sorted({index for index in indexes if index != NO_OWNER})
    place_of = {NO_OWNER: NO_OWNER, **{index: place for place, index in enumerate(named)}}
    return pb.PartitionChanges(
        owners=owners_to_wire(ownership.owners[index] for index in named),
        partitions=moved,
        partition_owners=[place_of[index] for index in indexes],
        owner_epochs=[epoch - base for epoch in epochs],
        base_epoch=base,
    )


Piece: TypeAlias = tuple[
    str,
    pb.EndpointRoute | pb.BackendRoute | pb.EndpointRouteDelta | pb.BackendRouteDelta | pb.PartitionAssignment,
]
"""The field of a table, or of a delta, to which something is appended, and that."""
_ENDPOINTS: Final = "endpoints"
_BACKENDS: Final = "backends"
_ASSIGNMENTS: Final = "assignments"


def table_parts(table: AnnouncedTable, part_bytes: int) -> Iterator[pb.AttachRouterResponse]:
    """The whole table, in parts of about this size. Backends are in front: endpoints name their replicas."""
    backends = ((_BACKENDS, backend_to_wire_route(it, it.replicas, has_settings=True)) for it in table.routes.backends)
    return _cut(
        pb.TablePart(table=head_of_table(table)), chain(backends, _endpoints(table.routes.endpoints)), part_bytes
    )


def delta_parts(delta: AnnouncedDelta, part_bytes: int) -> Iterator[pb.AttachRouterResponse]:
    """What has changed, likewise."""
    backends = ((_BACKENDS, backend_change_to_wire(it)) for it in delta.backends)
    return _cut(pb.TablePart(delta=head_of_delta(delta)), chain(backends, _changes(delta.endpoints)), part_bytes)


def _endpoints(endpoints: Iterable[ListedEndpoint]) -> Iterator[Piece]:
    """Endpoints, each behind its owners, where these are new."""
    numbers: dict[int, int] = {}
    for endpoint in endpoints:
        yield from _new_owners(endpoint.ownership, numbers)
        yield _ENDPOINTS, endpoint_to_wire(endpoint, numbers.get(id(endpoint.ownership), 0))


def _changes(changes: Sequence[EndpointChange]) -> Iterator[Piece]:
    """Endpoints that have changed; as a whole, where others have the same new owners: these are written once then."""
    numbers: dict[int, int] = {}
    sharing = Counter(id(change.listed.ownership) for change in changes if change.moved)
    for change in changes:
        ownership = change.listed.ownership
        if change.is_whole or (change.moved and sharing[id(ownership)] > 1):
            yield from _new_owners(ownership, numbers)
            number = numbers.get(id(ownership), 0)
            yield _ENDPOINTS, endpoint_change_to_wire(replace(change, is_whole=True), number)
        else:
            yield _ENDPOINTS, endpoint_change_to_wire(change)


def _new_owners(ownership: PartitionOwnership | None, numbers: dict[int, int]) -> Iterator[Piece]:
    """`numbers` are those of the owners that were written, by object; they are alive as long as the table is."""
    if ownership is not None and id(ownership) not in numbers:
        numbers[id(ownership)] = len(numbers) + 1
        yield _ASSIGNMENTS, assignment_to_wire(ownership)


def _cut(part: pb.TablePart, pieces: Iterator[Piece], part_bytes: int) -> Iterator[pb.AttachRouterResponse]:
    """Parts of about the same size; `part` is the first one, which is filled further."""
    part.is_first = True
    is_delta, size = part.HasField("delta"), part.ByteSize()
    for field, piece in pieces:
        if size >= part_bytes:
            yield pb.AttachRouterResponse(table_part=part)
            part, size = pb.TablePart(), 0
            (part.delta if is_delta else part.table).SetInParent()
        getattr(part.delta if is_delta else part.table, field).append(piece)
        size += piece.ByteSize()
    part.is_last = True
    yield pb.AttachRouterResponse(table_part=part)
