"""Messages of routers, and the load that they report, from and to the controller's values.

Invariants: whatever a router sends becomes a value or a `BadRequest` that names the field; nothing here decides. A
figure that a router counts in another way than this version is unknown, which is not the same as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from controller_service.convert.checks import (
    ID,
    MAX_EPOCH,
    MAX_PROCESS_CHARS,
    MAX_TERM_ID_CHARS,
    MAX_VERSION_CHARS,
    rank_from_wire,
    refuse,
    refuse_frame,
    require,
    require_address,
    require_generation,
    seconds_of,
    timestamp,
    zone_from_wire,
)
from controller_service.core.loads import NO_ENDS, BackendLoad, CallEnds, EndpointLoad, RouterLoad
from controller_service.core.observed.adoption import MembersMesh
from controller_service.core.observed.routers import ReportedLinks
from controller_service.core.observed.state import ObservedRouter
from controller_service.core.partition_owners import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import (
    CoveredTables,
    DepartedIncarnation,
    EarlierTable,
    HeldTable,
    IncarnationRoster,
    ListedIncarnation,
)
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.convert.same_names import message_of, same_fields
from slotmesh.convert.specification import backend_from_wire, duration_to_wire, endpoint_from_wire, seconds
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.spec.model import Backend, Endpoint
from slotmesh.spec.rules import show
from slotmesh.v1 import mesh_pb2

MAX_TENANTS: Final = 10
"""Of an endpoint at a router that are kept."""


def load_from_wire(report: membership_service_pb2.RouterReport, run_id: str) -> RouterLoad:
    """The load in a report of that start of a router."""
    return RouterLoad(
        run_id=run_id,
        backends=tuple(map(_backend_from_wire, report.loads)),
        endpoints=tuple(map(_endpoint_from_wire, report.endpoint_loads)),
    )


_COUNTED: Final = ("backend", "queued", "ongoing", "slot_calls", "sent", "shadow_copies", "shadow_drops")


def _backend_from_wire(wire: mesh_pb2.BackendLoad) -> BackendLoad:
    return BackendLoad(
        **same_fields(wire, _COUNTED),
        queue_time_s=max(0.0, seconds(wire.queue_time)),
        sampled_at=seconds_of(wire.sample_time),
        ended=_ends_from_wire(wire.ended) if wire.HasField("ended") else None,
        shadow_ended=_ends_from_wire(wire.shadow_ended) if wire.HasField("shadow_ended") else None,
    )


def _endpoint_from_wire(wire: mesh_pb2.EndpointLoad) -> EndpointLoad:
    ends = ((it.backend, _ends_from_wire(it.ended)) for it in wire.ends)
    return EndpointLoad(
        endpoint=wire.endpoint,
        accepted=max(0, wire.accepted),
        failed=max(0, wire.failed),
        waiting=max(0, wire.waiting),
        ends=tuple((backend, ended) for backend, ended in ends if ended is not None),
        sampled_at=seconds_of(wire.sample_time),
        tenants=tuple(
            (it.tenant, it.calls_per_s, it.refused_per_s, it.unanswered) for it in wire.tenants[:MAX_TENANTS]
        ),
    )


def _ends_from_wire(wire: mesh_pb2.CallEnds) -> CallEnds | None:
    """None if the router counts in another way: then nothing is known, which is not that nothing went wrong."""
    times, rest = tuple(wire.times), wire.total - wire.failed - wire.unanswered
    if len(times) != len(NO_ENDS.times) or min(*times, wire.failed, wire.unanswered) < 0 or rest < sum(times):
        return None
    return CallEnds(wire.total, wire.failed, wire.unanswered, times)


def backend_load_to_wire(load: BackendLoad) -> mesh_pb2.BackendLoad:
    return message_of(
        mesh_pb2.BackendLoad,
        load,
        queue_time=duration_to_wire(load.queue_time_s) if load.queue_time_s else None,
        sample_time=None if load.sampled_at is None else timestamp(load.sampled_at),
    )


def endpoint_load_to_wire(load: EndpointLoad) -> mesh_pb2.EndpointLoad:
    return message_of(
        mesh_pb2.EndpointLoad,
        load,
        ends=[
            mesh_pb2.EndpointEnds(backend=backend, ended=message_of(mesh_pb2.CallEnds, ended))
            for backend, ended in load.ends
        ],
        sample_time=None if load.sampled_at is None else timestamp(load.sampled_at),
        tenants=[
            mesh_pb2.TenantLoad(tenant=name, calls_per_s=calls, refused_per_s=refused, unanswered=unanswered)
            for name, calls, refused, unanswered in load.tenants
        ],
    )


MAX_RUN_ID_CHARS: Final = 64
MAX_UNKNOWN_BALANCERS: Final = 100


def router_from_wire(frame: membership_service_pb2.AttachRouterRequest, *, started_at: float) -> ObservedRouter:
    """The first frame of a router."""
    if frame.WhichOneof("frame") != "hello":
        refuse("hello", "must be the first frame")
    hello = frame.hello
    require(ID, "hello.router_id", hello.router_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
    require_address("hello.address", hello.address)
    for optional in ("metrics_address", "token_address"):
        if address := getattr(hello, optional):
            require_address(f"hello.{optional}", address)
    return ObservedRouter(
        **same_fields(hello, ("router_id", "address", "token_address", "metrics_address")),
        version=hello.version[:MAX_VERSION_CHARS],
        started_at=started_at,
        run_id=hello.incarnation[:MAX_RUN_ID_CHARS],
        pid=max(0, hello.pid),
        process_began_s=seconds_of(hello.start_time),
    )


def links_from_wire(report: membership_service_pb2.RouterReport) -> ReportedLinks:
    """The links that the router has, and those that it lacks; and balancers that it lacks."""
    return ReportedLinks(
        linked=frozenset(Incarnation(it.replica_id, it.incarnation) for it in report.linked),
        links_subset=report.links_subset,
        unlinked=frozenset(Incarnation(it.replica_id, it.incarnation) for it in report.unlinked),
        unknown_balancers=tuple(show(each) for each in report.unknown_balancers[:MAX_UNKNOWN_BALANCERS]),
    )


def router_report_from_wire(frame: membership_service_pb2.AttachRouterRequest) -> membership_service_pb2.RouterReport:
    """Any later frame of a router."""
    kind = frame.WhichOneof("frame")
    if kind != "report":
        refuse_frame(kind, known={"hello": "must be the first frame, and no other"})
    return frame.report


def router_to_wire(
    router: ObservedRouter, wall_s: Callable[[float], float], endpoints: Iterable[EndpointLoad] = ()
) -> mesh_pb2.Router:
    """`wall_s` turns monotonic seconds into seconds since 1970. `endpoints`: their newest load there."""
    return message_of(
        mesh_pb2.Router,
        router,
        table_revision=router.revision,
        start_time=timestamp(router.process_began_s or wall_s(router.started_at)),
        loads=map(backend_load_to_wire, router.loads),
        endpoint_loads=map(endpoint_load_to_wire, endpoints),
        incarnation=router.run_id,
    )


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
        """`generation`: the controller's own. Of a table that `is_newer` only the configuration is read.

        Of another table of this generation nothing is read.

        `now`: seconds since 1970.
        """
        self._is_newer = is_newer
        self._mesh: MeshAssembly | None = None
        self._own_generation = generation
        self._now = now
        self.held = HeldTable(generation="", revision=0)
        """The version of the table; that of none before its first part."""
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
        if not self.held.generation:
            revision, term_id = max(0, part.revision), part.term_id[:MAX_TERM_ID_CHARS]
            self.held = HeldTable(
                generation=part.generation,
                revision=revision,
                term_id=term_id,
                is_of_later_generation=any(it.generation == self._own_generation for it in part.covers),
            )
            self.router_addresses = frozenset(part.router_addresses)
            if self._is_newer(self.held):
                self._mesh = MeshAssembly(revision)
        if self.held.generation == self._own_generation or self._mesh is not None:
            if self._mesh is not None:
                yield from self._mesh.add(part)
            return
        if self._roster is None:
            yield from self._take_head(part)
        for backend in part.backends:
            path = f"table_part.table.backends[{self._backends}]"
            self._backends += 1
            for member in _members(path, backend):
                self._members.append(member)
                yield
        for assignment in part.assignments:
            self._shared.append(_ownership(f"table_part.table.assignments[{len(self._shared)}]", assignment))
            yield
        for endpoint in part.endpoints:
            self._take_endpoint(endpoint)
            yield

    def finish(self) -> EarlierTable | None:
        """The table, when its last part was added; None if it is newer, or of the controller's own generation."""
        if self._roster is None:
            return None
        return EarlierTable(
            generation=self.held.generation,
            roster=replace(self._roster, members=tuple(self._members)),
            router_addresses=self.router_addresses,
            ownership=self._ownership,
        )

    def mesh(self) -> MembersMesh | None:
        """The configuration in a newer table."""
        return None if self._mesh is None else self._mesh.finish()

    def _take_head(self, head: membership_service_pb2.RoutingTable) -> Iterator[None]:
        require_generation("table_part.table.generation", head.generation)
        covers, departed = list[CoveredTables](), list[DepartedIncarnation]()
        for at, it in enumerate(head.covers):
            require_generation(f"table_part.table.covers[{at}].generation", it.generation)
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
        path = f"table_part.table.endpoints[{self._endpoints}]"
        self._endpoints += 1
        if not 0 <= endpoint.assignment <= len(self._shared):
            refuse(f"{path}.assignment", f"is none of the {len(self._shared)} assignments, is {endpoint.assignment}")
        if endpoint.assignment:  # endpoints that refer to the same owners share one object
            self._ownership[endpoint.name] = self._shared[endpoint.assignment - 1]


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
            rank=rank_from_wire(f"{where}.rank", replica),
            zone=zone_from_wire(replica.zone),
        )


def _ownership(path: str, wire: membership_service_pb2.PartitionAssignment) -> PartitionOwnership:
    owner_of, epochs = tuple(wire.partition_owners), tuple(wire.base_epoch + epoch for epoch in wire.owner_epochs)
    if len(owner_of) != PARTITIONS:
        refuse(f"{path}.partition_owners", f"must be {PARTITIONS}, are {len(owner_of)}")
    if len(epochs) != len(owner_of):
        refuse(f"{path}.owner_epochs", f"{len(epochs)} epochs of {len(owner_of)} partitions")
    if not all(NO_OWNER <= index < len(wire.owners) for index in owner_of):
        refuse(f"{path}.partition_owners", f"must be {NO_OWNER} … {len(wire.owners) - 1}, indexes into `owners`")
    if not all(0 <= epoch < MAX_EPOCH for epoch in epochs):
        refuse(f"{path}.owner_epochs", "must be epochs: 0 or larger, and far from the end of 64 bits")
    return PartitionOwnership(
        owners=tuple(Incarnation(it.replica_id, it.incarnation) for it in wire.owners),
        partition_owners=owner_of,
        epochs=epochs,
    )
