"""Routing tables and deltas assembled from the parts in which they arrive, and tables cut into parts.

Purpose: each part is converted when it arrives, so that no table blocks the event loop; the last one yields the table.
Invariants: a table is available as a whole or not at all; owners of partitions that endpoints share are one object,
also with those of the previous table.
Owner: the table watch, one assembly for each sequence of parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from router_service.convert.table import (
    backend_delta_from_wire,
    backend_from_wire_route,
    delta_of,
    endpoint_delta_from_wire,
    endpoint_from_wire,
    endpoint_to_wire,
    head_to_wire,
    owners_from_wire,
    roster_from_wire,
)
from router_service.convert.table import backend_to_wire_route as backend_to_wire
from router_service.core.rosters import ReplicaKey
from router_service.core.routing_table import (
    BackendDelta,
    BackendRoute,
    DeltaMismatch,
    EndpointDelta,
    EndpointRoute,
    PartitionOwners,
    RoutingTable,
    TableDelta,
)
from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.streams.limits import TABLE_PART_BYTES


class TableAssembly:
    """One table, of which some parts have arrived."""

    def __init__(self, head: pb.RoutingTable, before: RoutingTable) -> None:
        """`head` is its first part, of which only the non-repeated fields are read. `before` is the current table."""
        self._head = head
        self._before = before
        self._backends: dict[str, BackendRoute] = {}
        self._endpoints: dict[str, EndpointRoute] = {}
        self._keys: dict[ReplicaKey, ReplicaKey] = {}
        self._assignments: list[PartitionOwners] = []
        self._owners = {id(it.owners): it.owners for it in before.endpoints.values()}
        self._known = {it: it for it in self._owners.values()}

    def add(self, part: pb.RoutingTable) -> None:
        """Adds the next part, including the first. Raises ValueError if owners of partitions are invalid."""
        for backend in map(backend_from_wire_route, part.backends):
            known = self._before.backends.get(backend.name)
            self._backends[backend.name] = known if known is not None and known == backend else backend
            self._keys.update((each.key, each.key) for each in backend.replicas)
        for assignment in part.assignments:
            owners = owners_from_wire(assignment, self._keys)
            self._assignments.append(self._known.setdefault(owners, owners))
        for each in part.endpoints:
            route = endpoint_from_wire(each, self._assignments)
            self._endpoints[route.name] = route.sharing(self._before.endpoints.get(route.name))

    def finish(self) -> RoutingTable:
        """The table, when the last part was added."""
        head = self._head
        return RoutingTable(
            generation=head.generation,
            revision=head.revision,
            endpoints=self._endpoints,
            backends=self._backends,
            router_addresses=tuple(head.router_addresses),
            router_token_addresses=tuple(head.router_token_addresses),
            roster=roster_from_wire(head),
            term_id=head.term_id,
        )


class DeltaAssembly:
    """One delta, of which some parts have arrived."""

    def __init__(self, head: pb.RoutingTableDelta, before: RoutingTable) -> None:
        """As in `TableAssembly`."""
        self._head = head
        self._before = before
        self._backends: list[BackendDelta] = []
        self._endpoints: list[EndpointDelta] = []
        self._keys: dict[ReplicaKey, ReplicaKey] = {}
        self._assignments: list[PartitionOwners] = []

    def add(self, part: pb.RoutingTableDelta) -> None:
        """Adds the next part, including the first. Raises DeltaMismatch."""
        for backend in map(backend_delta_from_wire, part.backends):
            self._backends.append(backend)
            self._keys.update((each.key, each.key) for each in backend.replicas)
        try:
            self._assignments += (owners_from_wire(each, self._keys) for each in part.assignments)
            self._endpoints += (
                endpoint_delta_from_wire(each, self._before, self._keys, self._assignments) for each in part.endpoints
            )
        except ValueError as error:
            raise DeltaMismatch(str(error)) from error

    def finish(self) -> TableDelta:
        """The delta, when the last part was added."""
        return delta_of(self._head, self._endpoints, self._backends)


def table_to_parts(table: RoutingTable) -> Iterator[pb.TablePart]:
    """The table that a router reports to its controller."""
    part = pb.TablePart(table=head_to_wire(table), is_first=True)
    size, numbers = 0, dict[int, int]()
    for backend in table.backends.values():
        part.table.backends.append(route := backend_to_wire(backend))
        size += route.ByteSize()
        if size >= TABLE_PART_BYTES:
            yield part
            part, size = pb.TablePart(table=pb.RoutingTable()), 0
    for endpoint in table.endpoints.values():
        if endpoint.owners and id(endpoint.owners) not in numbers:
            numbers[id(endpoint.owners)] = len(numbers) + 1
            part.table.assignments.append(assignment := assignment_to_wire(endpoint.owners))
            size += assignment.ByteSize()
        part.table.endpoints.append(each := endpoint_to_wire(endpoint, numbers.get(id(endpoint.owners), 0)))
        size += each.ByteSize()
        if size >= TABLE_PART_BYTES:
            yield part
            part, size = pb.TablePart(table=pb.RoutingTable()), 0
    part.is_last = True
    yield part


def assignment_to_wire(owners: PartitionOwners) -> pb.PartitionAssignment:
    """The owners of partitions by themselves."""
    base = min(owners.epochs(), default=0)
    return pb.PartitionAssignment(
        owners=(pb.PartitionOwner(replica_id=key[0], incarnation=key[1]) for key in owners.keys),
        partition_owners=owners.indexes(),
        owner_epochs=[epoch - base for epoch in owners.epochs()],
        base_epoch=base,
    )
