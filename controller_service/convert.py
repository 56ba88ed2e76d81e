"""Membership and operators' messages from and to the controller's values.

Invariants: whatever a peer sends becomes a value or a `BadRequest` that names the field; nothing here decides.
Resources (backends, endpoints, policies) are converted by `slotmesh.spec.wire`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NoReturn

from google.protobuf import timestamp_pb2

from controller_service.core.brought import BroughtTable
from controller_service.core.observed import BackendLoad, Replica, ReplicaState, Router
from controller_service.core.partitions import NO_OWNER, Owner, Ownership
from controller_service.core.roster import Covered, Departure, Member, Roster
from controller_service.core.routing import BackendRoute, RoutingTable
from controller_service.core.transitions import Hello, Notice, Report
from slotmesh.errors import Failure, Reason
from slotmesh.partitions import PARTITIONS
from slotmesh.spec.model import Backend
from slotmesh.spec.rules import is_name, show
from slotmesh.spec.wire import duration_to_wire, struct_to_wire, traffic_to_wire
from slotmesh.status import to_exception
from slotmesh.units import parse_host_port
from slotmesh.v1 import controller_service_pb2, membership_service_pb2, mesh_pb2
from slotmesh.version import VERSION

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_MAX_ERROR_CHARS: Final = 16_384
"""Of a traceback, the end is kept: it says what went wrong."""
_MAX_PROCESS_CHARS: Final = 256
_MAX_GENERATION_CHARS: Final = 64
_MAX_EPOCH: Final = 2**62
_REPORTABLE: Final = {state.value: state for state in ReplicaState if state is not ReplicaState.SUSPECT}

# -- replicas ----------------------------------------------------------------------------------------------------


def hello_from_wire(frame: membership_service_pb2.AttachReplicaRequest, *, generation: str) -> Hello:
    """The first frame of a replica, as a controller of this generation takes it."""
    if frame.WhichOneof("frame") != "hello":
        _refuse("hello", "must be the first frame")
    hello = frame.hello
    _require(_ID, "hello.replica_id", hello.replica_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
    _require(_INCARNATION, "hello.incarnation", hello.incarnation, "32 hexadecimal digits, in lower case")
    if not is_name(hello.backend):
        _refuse("hello.backend", f"must be a backend's name, is {show(hello.backend)!r}")
    if not 0 <= hello.newest_epoch < _MAX_EPOCH:
        _refuse("hello.newest_epoch", "must be an epoch: 0 or larger, and far from the end of 64 bits")
    return Hello(
        replica_id=hello.replica_id,
        incarnation=hello.incarnation,
        backend=hello.backend,
        pid=max(0, hello.pid),
        has_served=hello.has_served and hello.generation != generation,
        generation=hello.generation,
        newest_epoch=hello.newest_epoch,
        process=hello.process[:_MAX_PROCESS_CHARS],
    )


def report_from_wire(frame: membership_service_pb2.AttachReplicaRequest) -> Report:
    """A report: any later frame of a replica, but for `emptied`."""
    kind = frame.WhichOneof("frame")
    if kind != "report":
        _refuse_frame(kind, known={"hello": "must be the first frame, and no other"})
    report = frame.report
    state = _REPORTABLE.get(report.state)
    if state is None:
        _refuse("report.state", f"{report.state} is no state that a replica can report")
    if report.address or state is ReplicaState.READY:
        _require_address("report.address", report.address)
    if report.metrics_address:
        _require_address("report.metrics_address", report.metrics_address)
    return Report(
        state=state,
        address=report.address,
        max_ongoing=max(0, report.max_ongoing),
        error=report.error[-_MAX_ERROR_CHARS:],
        metrics_address=report.metrics_address,
        unhealthy=report.unhealthy,
        reconfigures=report.reconfigures,
        warning=report.warning[-_MAX_ERROR_CHARS:],
    )


def configuration_to_wire(
    backend: Backend, *, lease_s: float, generation: str
) -> membership_service_pb2.AttachReplicaResponse:
    configuration = membership_service_pb2.ReplicaConfiguration(
        lease=duration_to_wire(lease_s),
        max_ongoing=backend.max_ongoing,
        prefetch=backend.prefetch,
        user_config=struct_to_wire(backend.user_config),
        graceful_timeout=duration_to_wire(backend.graceful_timeout_s),
        own_loop=backend.own_loop,
        generation=generation,
    )
    if backend.health_check_period_s is not None:
        configuration.health_check_period.CopyFrom(duration_to_wire(backend.health_check_period_s))
    if backend.health_check_timeout_s is not None:
        configuration.health_check_timeout.CopyFrom(duration_to_wire(backend.health_check_timeout_s))
    return membership_service_pb2.AttachReplicaResponse(configuration=configuration)


def drain_to_wire(message: str) -> membership_service_pb2.AttachReplicaResponse:
    return membership_service_pb2.AttachReplicaResponse(drain=membership_service_pb2.DrainOrder(message=message))


def revoke_to_wire(endpoint: str, epochs: Mapping[int, int]) -> membership_service_pb2.AttachReplicaResponse:
    """`epochs`: partition -> the epoch that ends."""
    partitions = membership_service_pb2.EndpointPartitions(
        endpoint=endpoint, partitions=epochs.keys(), owner_epochs=epochs.values()
    )
    return membership_service_pb2.AttachReplicaResponse(
        revoke=membership_service_pb2.RevokePartitions(endpoints=[partitions])
    )


def fence_to_wire(through_epoch: int) -> membership_service_pb2.AttachReplicaResponse:
    """All partitions, at this epoch or older ones."""
    return membership_service_pb2.AttachReplicaResponse(
        revoke=membership_service_pb2.RevokePartitions(through_epoch=through_epoch)
    )


def emptied_from_wire(wire: membership_service_pb2.PartitionsEmptied) -> dict[str, dict[int, int]]:
    """Endpoint -> partition -> epoch."""
    return _partitions("emptied.endpoints", wire.endpoints)


def busy_from_wire(wire: membership_service_pb2.PartitionsEmptied) -> dict[str, frozenset[int]]:
    """Endpoint -> partitions that are not empty yet, in an answer to `fence_to_wire`."""
    return {name: frozenset(epochs) for name, epochs in _partitions("emptied.busy", wire.busy).items()}


def _partitions(path: str, endpoints: Iterable[membership_service_pb2.EndpointPartitions]) -> dict[str, dict[int, int]]:
    for at, each in enumerate(endpoints):
        if len(each.partitions) > PARTITIONS:
            _refuse(f"{path}[{at}].partitions", f"at most {PARTITIONS}, got {len(each.partitions)}")
        if len(each.partitions) != len(each.owner_epochs):
            text = f"{len(each.owner_epochs)} epochs of {len(each.partitions)} partitions"
            _refuse(f"{path}[{at}].owner_epochs", text)
        if any(not 0 <= number < PARTITIONS for number in each.partitions):
            _refuse(f"{path}[{at}].partitions", f"must be 0 … {PARTITIONS - 1}")
    return {each.endpoint: dict(zip(each.partitions, each.owner_epochs, strict=True)) for each in endpoints}


def replica_to_wire(replica: Replica, wall_s: Callable[[float], float]) -> mesh_pb2.Replica:
    """`wall_s` turns monotonic seconds into seconds since 1970."""
    return mesh_pb2.Replica(
        replica_id=replica.replica_id,
        incarnation=replica.incarnation,
        backend=replica.backend,
        address=replica.address,
        state=mesh_pb2.ReplicaState.ValueType(replica.shown_state.value),
        pid=replica.pid,
        max_ongoing=replica.max_ongoing,
        error=replica.error,
        start_time=timestamp(wall_s(replica.started_at)),
        metrics_address=replica.metrics_address,
        warning=replica.warning,
    )


# -- routers -----------------------------------------------------------------------------------------------------


def router_from_wire(frame: membership_service_pb2.AttachRouterRequest, *, started_at: float) -> Router:
    """The first frame of a router."""
    if frame.WhichOneof("frame") != "hello":
        _refuse("hello", "must be the first frame")
    hello = frame.hello
    _require(_ID, "hello.router_id", hello.router_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
    _require_address("hello.address", hello.address)
    if hello.metrics_address:
        _require_address("hello.metrics_address", hello.metrics_address)
    return Router(
        router_id=hello.router_id,
        address=hello.address,
        metrics_address=hello.metrics_address,
        started_at=started_at,
    )


def brought_from_wire(hello: membership_service_pb2.RouterHello, *, generation: str, now: float) -> BroughtTable | None:
    """The table that a router brings, where it is of another generation than this one. `now`: seconds since 1970."""
    wire = hello.table
    if not hello.HasField("table") or wire.generation == generation:
        return None
    _require_generation("hello.table.generation", wire.generation)
    for at, each in enumerate(wire.covers):
        _require_generation(f"hello.table.covers[{at}].generation", each.generation)
    return BroughtTable(
        generation=wire.generation,
        roster=Roster(
            revision=wire.roster_revision,
            members=tuple(_members(wire)),
            departed=tuple(
                Departure(
                    owner=Owner(it.replica_id, it.incarnation),
                    generation=it.generation,
                    revision=it.revision,
                    left_at=now,
                )
                for it in wire.departed
            ),
            departed_since=wire.departed_since,
            covers=tuple(
                Covered(generation=it.generation, revision=it.revision, departed_since=it.departed_since)
                for it in wire.covers
            ),
        ),
        router_addresses=frozenset(wire.router_addresses),
        ownership={it.name: _ownership(f"hello.table.endpoints[{at}]", it) for at, it in enumerate(wire.endpoints)},
    )


def _members(table: membership_service_pb2.RoutingTable) -> Iterator[Member]:
    for at, backend in enumerate(table.backends):
        for number, replica in enumerate(backend.replicas):
            path = f"hello.table.backends[{at}].replicas[{number}]"
            _require(_ID, f"{path}.replica_id", replica.replica_id, "1 to 128 of `a-z A-Z 0-9 _ . -`")
            _require_address(f"{path}.address", replica.address)
            yield Member(
                owner=Owner(replica.replica_id, replica.incarnation),
                backend=backend.name,
                address=replica.address,
                max_ongoing=max(0, replica.max_ongoing),
                draining=replica.draining,
                process=replica.process[:_MAX_PROCESS_CHARS],
            )


def _ownership(path: str, route: membership_service_pb2.EndpointRoute) -> Ownership:
    owner_of, epochs = tuple(route.partition_owners), tuple(route.base_epoch + epoch for epoch in route.owner_epochs)
    if len(owner_of) not in {0, PARTITIONS}:
        _refuse(f"{path}.partition_owners", f"must be none or {PARTITIONS}, are {len(owner_of)}")
    if len(epochs) != len(owner_of):
        _refuse(f"{path}.owner_epochs", f"{len(epochs)} epochs of {len(owner_of)} partitions")
    if not all(NO_OWNER <= index < len(route.owners) for index in owner_of):
        _refuse(f"{path}.partition_owners", f"must be {NO_OWNER} … {len(route.owners) - 1}, indexes into `owners`")
    if not all(0 <= epoch < _MAX_EPOCH for epoch in epochs):
        _refuse(f"{path}.owner_epochs", "must be epochs: 0 or larger, and far from the end of 64 bits")
    return Ownership(
        endpoint=route.name,
        owners=tuple(Owner(it.replica_id, it.incarnation) for it in route.owners),
        partition_owners=owner_of or (NO_OWNER,) * PARTITIONS,
        epochs=epochs or (0,) * PARTITIONS,
    )


def loads_from_wire(report: membership_service_pb2.RouterReport) -> tuple[BackendLoad, ...]:
    return tuple(BackendLoad(backend=it.backend, queued=it.queued, ongoing=it.ongoing) for it in report.loads)


def router_report_from_wire(
    frame: membership_service_pb2.AttachRouterRequest,
) -> membership_service_pb2.RouterReport:
    """Any later frame of a router."""
    kind = frame.WhichOneof("frame")
    if kind != "report":
        _refuse_frame(kind, known={"hello": "must be the first frame, and no other"})
    return frame.report


def router_to_wire(router: Router, wall_s: Callable[[float], float]) -> mesh_pb2.Router:
    """`wall_s` turns monotonic seconds into seconds since 1970."""
    return mesh_pb2.Router(
        router_id=router.router_id,
        address=router.address,
        generation=router.generation,
        revision=router.revision,
        linked_replica_ids=router.linked_replica_ids,
        start_time=timestamp(wall_s(router.started_at)),
        metrics_address=router.metrics_address,
        loads=(
            mesh_pb2.BackendLoad(backend=load.backend, queued=load.queued, ongoing=load.ongoing)
            for load in router.loads
        ),
    )


def table_to_wire(
    table: RoutingTable, ownership_bytes: Callable[[Ownership], bytes]
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


def ownership_to_bytes(ownership: Ownership) -> bytes:
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


def _backend_route(route: BackendRoute) -> membership_service_pb2.BackendRoute:
    return membership_service_pb2.BackendRoute(
        name=route.name,
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
        max_queued_calls=route.max_queued_calls,
        max_queued_bytes=route.max_queued_bytes,
        max_queue_time=duration_to_wire(route.max_queue_time_s),
        balancer=mesh_pb2.Balancer.ValueType(route.balancer.value),
        max_batch_size=route.max_batch_size,
    )


# -- events ------------------------------------------------------------------------------------------------------


def event_to_wire(time_s: float, notice: Notice, *, missed: int) -> controller_service_pb2.WatchEventsResponse:
    return controller_service_pb2.WatchEventsResponse(
        time=timestamp(time_s), kind=notice.kind, subject=notice.subject, message=notice.message, missed=missed
    )


def timestamp(wall_s: float) -> timestamp_pb2.Timestamp:
    wire = timestamp_pb2.Timestamp()
    wire.FromMicroseconds(round(wall_s * 1e6))
    return wire


# -- refusals ----------------------------------------------------------------------------------------------------


def _require(pattern: re.Pattern[str], field: str, value: str, expected: str) -> None:
    if not pattern.fullmatch(value):
        _refuse(field, f"must be {expected}, is {show(value)!r}")


def _require_generation(field: str, value: str) -> None:
    if not 0 < len(value) <= _MAX_GENERATION_CHARS:
        _refuse(field, f"must be 1 to {_MAX_GENERATION_CHARS} characters, is {show(value)!r}")


def _require_address(field: str, value: str) -> None:
    try:
        parse_host_port(value)
    except ValueError as error:
        _refuse(field, str(error))


def _refuse_frame(kind: str | None, *, known: dict[str, str]) -> NoReturn:
    if kind is not None and kind in known:
        _refuse(kind, known[kind])
    text = f"frame {kind or 'without a known kind'} is not implemented by slotmesh {VERSION}"
    raise to_exception(Failure(reason=Reason.NOT_IMPLEMENTED, message=text, metadata={"field": kind or "frame"}))


def _refuse(field: str, message: str) -> NoReturn:
    raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=f"{field}: {message}", metadata={"field": field}))
