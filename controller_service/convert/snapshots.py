"""All that the controller knows at one moment, as one response.

Invariants: a response fits a message, however many replicas there are: those that do not fit are counted. Numbers of
replicas are of all of them.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller_service.convert.replica_pages import without_long_texts
from controller_service.convert.replicas import replica_load_to_wire, replica_to_wire
from controller_service.convert.router_loads import backend_load_to_wire, endpoint_load_to_wire
from controller_service.convert.routers import router_to_wire
from controller_service.convert.times import timestamp
from controller_service.core.backend_load import RouterLoad
from controller_service.core.desired import Desired
from controller_service.core.observed import Observed, ObservedReplica, ObservedRouter, ReplicaState
from controller_service.core.outdated import outdated_among
from controller_service.core.recent import RecentReports
from controller_service.core.replica_load import SampledLoad
from controller_service.core.replica_numbers import wanted_replicas
from slotmesh.spec.model import Backend
from slotmesh.spec.wire import endpoint_to_wire
from slotmesh.v1 import controller_service_pb2 as pb

MAX_REPLICA_BYTES: Final = 2 << 20
"""Of all replicas in a response."""
_ENDED: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLoads:
    """Where the loads are that members have reported."""

    newest_of: Callable[[str], SampledLoad | None]
    """By replica."""
    earlier_of: Callable[[str], SampledLoad | None]
    """By replica: one some seconds before."""
    of_routers: Mapping[str, RecentReports[RouterLoad]]
    """By router."""


def snapshot_to_wire(
    desired: Desired,
    observed: Observed,
    loads: KnownLoads,
    wall_s: Callable[[float], float],
    *,
    now: float,
    launches: bool,
) -> pb.GetSnapshotResponse:
    """Without the newest table's version. `wall_s` makes seconds since 1970 of monotonic ones, as `now` is."""
    response = pb.GetSnapshotResponse(
        time=timestamp(wall_s(now)),
        endpoints=[endpoint_to_wire(desired.endpoints[name]) for name in sorted(desired.endpoints)],
        backends=[_summary(desired.backends[name], observed, launches=launches) for name in sorted(desired.backends)],
        routers=[
            _router(observed.routers[name], loads.of_routers.get(name), wall_s) for name in sorted(observed.routers)
        ],
    )
    is_outdated = outdated_among(desired.backends)
    size = 0
    replicas = sorted(observed.replicas(), key=lambda it: (it.backend, it.replica_id))
    for at, replica in enumerate(replicas):
        wire = _replica(replica, loads, wall_s, outdated=is_outdated(replica))
        size += wire.ByteSize()
        if size > MAX_REPLICA_BYTES:
            response.unlisted_replicas = len(replicas) - at
            break
        response.replicas.append(wire)
    return response


def _summary(backend: Backend, observed: Observed, *, launches: bool) -> pb.BackendSummary:
    replicas = [*observed.replicas(backend.name)]
    is_said = launches or backend.name in observed.scales or backend.num_replicas is not None
    return pb.BackendSummary(
        name=backend.name,
        wanted_replicas=wanted_replicas(backend, observed) if is_said else None,
        ready_replicas=_count(it.shown_state is ReplicaState.READY and not it.gone for it in replicas),
        live_replicas=_count(it.state not in _ENDED and not it.gone for it in replicas),
        failed_replicas=_count(it.state is ReplicaState.FAILED for it in replicas),
        restart_count=sum(it.restarts for it in replicas),
    )


def _count(flags: Iterable[bool]) -> int:
    return sum(flags)


def _replica(
    replica: ObservedReplica, loads: KnownLoads, wall_s: Callable[[float], float], *, outdated: bool
) -> pb.SampledReplica:
    earlier = loads.earlier_of(replica.replica_id)
    wire = replica_to_wire(replica, wall_s, loads.newest_of(replica.replica_id), outdated=outdated)
    return pb.SampledReplica(
        replica=without_long_texts(wire), earlier_load=None if earlier is None else replica_load_to_wire(earlier)
    )


def _router(
    router: ObservedRouter, recent: RecentReports[RouterLoad] | None, wall_s: Callable[[float], float]
) -> pb.SampledRouter:
    newest = recent.newest if recent is not None else None
    earlier = recent.earlier if recent is not None else None
    at = recent.newest_at if recent is not None else None
    return pb.SampledRouter(
        router=router_to_wire(router, wall_s, newest.endpoints if newest is not None else ()),
        report_time=None if at is None else timestamp(wall_s(at)),
        earlier_loads=map(backend_load_to_wire, earlier.backends if earlier is not None else ()),
        earlier_endpoint_loads=map(endpoint_load_to_wire, earlier.endpoints if earlier is not None else ()),
    )
