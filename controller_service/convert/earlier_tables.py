"""The routing table that a router had in force when it attached, read from one frame or from the parts of it.

Invariants: what makes no sense is refused with the name of the field, whatever the part is; elements are converted one
by one, so that the reader can let the event loop do other work between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from controller_service.convert.checks import (
    ID,
    MAX_EPOCH,
    MAX_PROCESS_CHARS,
    MAX_TERM_ID_CHARS,
    refuse,
    require,
    require_address,
    require_generation,
)
from controller_service.core.lineage import EarlierTable, HeldTable
from controller_service.core.observed.adoption import MembersMesh
from controller_service.core.partitions import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import CoveredTables, DepartedIncarnation, IncarnationRoster, ListedIncarnation
from slotmesh.calls.partitions import PARTITIONS
from slotmesh.convert.specification import backend_from_wire, endpoint_from_wire
from slotmesh.spec.model import Backend, Endpoint
from slotmesh.v1 import membership_service_pb2, mesh_pb2

# The configuration in a routing table that a router holds, read part by part.


class MeshAssembly:
    """Backends and endpoints, as far as parts of the table have arrived."""

    def __init__(self, revision: int) -> None:
        self._revision = revision
        self._backends: dict[str, Backend] = {}
        self._endpoints: dict[str, Endpoint] = {}

    def add(self, part: membership_service_pb2.RoutingTable) -> Iterator[None]:
        """Converts the next part, one element a step."""
        for backend in part.backends:
            if backend.HasField("backend"):  # controllers of older versions do not say
                self._backends[backend.name], _ = backend_from_wire(backend.backend)
            yield
        for route in part.endpoints:
            endpoint = mesh_pb2.Endpoint(name=route.name)
            for field in ("traffic", "grpc_services", "tenants"):
                if route.HasField(field):
                    getattr(endpoint, field).CopyFrom(getattr(route, field))
            self._endpoints[route.name] = endpoint_from_wire(endpoint)
            yield

    def finish(self) -> MembersMesh:
        """What the table has, when its last part was added."""
        return MembersMesh(revision=self._revision, backends=self._backends, endpoints=self._endpoints)


class EarlierTableAssembly:
    """One table, of which some parts have arrived. The first part has all but backends, assignments and endpoints."""

    def __init__(self, generation: str, now: float, is_newer: Callable[[HeldTable], bool] = lambda _: False) -> None:
        """Of a table of this `generation`, the controller's own, the configuration is read if `is_newer`, else nothing.

        `now`: seconds since 1970.
        """
        self._is_newer = is_newer
        self._mesh: MeshAssembly | None = None
        self._own_generation = generation
        self._now = now
        self.generation, self.revision, self.term_id = "", 0, ""
        """Of the table; empty and 0 before its first part."""
        self._roster: IncarnationRoster | None = None
        self.router_addresses: frozenset[str] = frozenset()
        """Where the routers serve that the table names."""
        self._members: list[ListedIncarnation] = []
        self._backends = self._endpoints = 0
        """How many have arrived: errors name elements by their place in the whole table."""
        self._shared: list[PartitionOwnership] = []
        self._ownership: dict[str, PartitionOwnership] = {}

    def add(self, part: membership_service_pb2.RoutingTable) -> Iterator[None]:
        """Converts the next part, one element a step."""
        if not self.generation:
            self.generation, self.revision = part.generation, max(0, part.revision)
            self.term_id = part.term_id[:MAX_TERM_ID_CHARS]
            self.router_addresses = frozenset(part.router_addresses)
            held = HeldTable(generation=self.generation, revision=self.revision, term_id=self.term_id)
            if self.generation == self._own_generation and self._is_newer(held):
                self._mesh = MeshAssembly(self.revision)
        if self.generation == self._own_generation:
            if self._mesh is not None:
                yield from self._mesh.add(part)
            return
        if self._roster is None:
            yield from self._take_head(part)
        for backend in part.backends:
            path = f"hello.table.backends[{self._backends}]"
            self._backends += 1
            for member in _members(path, backend):
                self._members.append(member)
                yield
        for assignment in part.assignments:
            self._shared.append(_ownership(f"hello.table.assignments[{len(self._shared)}]", assignment))
            yield
        for endpoint in part.endpoints:
            self._take_endpoint(endpoint)
            yield

    def finish(self) -> EarlierTable | None:
        """The table, when its last part was added; None if it is of the controller's own generation."""
        if self._roster is None:
            return None
        return EarlierTable(
            generation=self.generation,
            roster=replace(self._roster, members=tuple(self._members)),
            router_addresses=self.router_addresses,
            ownership=self._ownership,
        )

    def mesh(self) -> MembersMesh | None:
        """The configuration in a newer table of the controller's own generation."""
        return None if self._mesh is None else self._mesh.finish()

    def _take_head(self, head: membership_service_pb2.RoutingTable) -> Iterator[None]:
        require_generation("hello.table.generation", head.generation)
        covers, departed = list[CoveredTables](), list[DepartedIncarnation]()
        for at, it in enumerate(head.covers):
            require_generation(f"hello.table.covers[{at}].generation", it.generation)
            covers.append(
                CoveredTables(generation=it.generation, revision=it.revision, departed_since=it.departed_since)
            )
            yield
        for gone in head.departed:
            owner = Incarnation(gone.replica_id, gone.incarnation)
            departed.append(
                DepartedIncarnation(owner=owner, generation=gone.generation, revision=gone.revision, left_at=self._now)
            )
            yield
        self._roster = IncarnationRoster(
            revision=head.roster_revision,
            members=(),
            departed=tuple(departed),
            departed_since=head.departed_since,
            covers=tuple(covers),
        )

    def _take_endpoint(self, endpoint: membership_service_pb2.EndpointRoute) -> None:
        path = f"hello.table.endpoints[{self._endpoints}]"
        self._endpoints += 1
        if not 0 <= endpoint.assignment <= len(self._shared):
            refuse(f"{path}.assignment", f"is none of the {len(self._shared)} assignments, is {endpoint.assignment}")
        # Endpoints that refer to the same owners share one object.
        self._ownership[endpoint.name] = (
            self._shared[endpoint.assignment - 1] if endpoint.assignment else _ownership(path, endpoint)
        )


def earlier_table_from_wire(
    table: membership_service_pb2.RoutingTable, *, generation: str, now: float
) -> EarlierTable | None:
    """A table in one frame; None if it is of this generation. `now`: seconds since 1970."""
    assembly = EarlierTableAssembly(generation, now)
    for _ in assembly.add(table):
        pass
    return assembly.finish()


def _members(path: str, backend: membership_service_pb2.BackendRoute) -> Iterator[ListedIncarnation]:
    for number, replica in enumerate(backend.replicas):
        where = f"{path}.replicas[{number}]"
        require(ID, f"{where}.replica_id", replica.replica_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
        require_address(f"{where}.address", replica.address)
        yield ListedIncarnation(
            owner=Incarnation(replica.replica_id, replica.incarnation),
            backend=backend.name,
            address=replica.address,
            max_ongoing=max(0, replica.max_ongoing),
            draining=replica.draining,
            process=replica.process[:MAX_PROCESS_CHARS],
        )


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
