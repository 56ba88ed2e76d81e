"""The actual state of the mesh as messages: backends and their status, and snapshots of everything.

Invariants: a response fits a message, however many replicas there are: those that do not fit are counted. Numbers of
replicas are of all of them.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from controller_service.convert.checks import timestamp
from controller_service.convert.operators import decision_to_wire, rollout_to_wire
from controller_service.convert.replicas import TIME_BOUNDS, replica_load_to_wire, replica_to_wire, without_long_texts
from controller_service.convert.routers import backend_load_to_wire, endpoint_load_to_wire, router_to_wire
from controller_service.core.desired.revisions import etag_of
from controller_service.core.desired.state import Desired
from controller_service.core.devices import DeviceLedger
from controller_service.core.loads import RecentReports, RouterLoad, SampledLoad
from controller_service.core.observed.replica_groups import differing_settings, outdated_among
from controller_service.core.observed.state import (
    Observed,
    ObservedReplica,
    ObservedRouter,
    ReplicaState,
    wanted_replicas,
)
from controller_service.core.reconciling.endpoints import find_prospect
from controller_service.core.reconciling.rollouts import EndedCalls, show_progress
from slotmesh.convert.specification import backend_to_wire
from slotmesh.spec.devices import WHOLE
from slotmesh.spec.model import Backend, Prospect
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

MAX_REPLICA_BYTES: Final = 2 << 20
"""Of all replicas in a response."""
_ENDED: Final = (ReplicaState.STOPPED, ReplicaState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLoads:
    """Where the loads are that members have reported."""

    of_replica: Callable[[str], RecentReports[SampledLoad]]
    of_routers: Mapping[str, RecentReports[RouterLoad]]
    """By router."""
    ended_calls: Mapping[str, EndedCalls]
    """By replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMesh:
    """What a controller knows at one moment."""

    desired: Desired
    observed: Observed
    loads: KnownLoads
    now: float
    """Seconds, monotonic."""
    time_of_day_s: float
    """Seconds since 1970, at the same moment."""
    launches: bool
    """Whether this controller starts the replicas."""
    deferred_starts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Why missing replicas cannot be started now, by backend."""
    ledger: DeviceLedger | None = None
    """The devices of this machine; None: this controller hands out none."""

    def wall_s(self, monotonic_s: float) -> float:
        """Seconds since 1970."""
        return self.time_of_day_s - (self.now - monotonic_s)


def backend_with_status(backend: Backend, known: KnownMesh) -> mesh_pb2.Backend:
    """The backend as it is configured, with its actual state."""
    wire = backend_to_wire(backend)
    wire.etag = etag_of(backend)
    wire.status.CopyFrom(status_of(backend, known))
    if known.ledger is not None:
        wire.status.device_pools.extend(_pool(known.ledger, pool) for pool in sorted(backend.devices))
    return wire


def _pool(ledger: DeviceLedger, pool: str) -> mesh_pb2.DevicePool:
    return mesh_pb2.DevicePool(
        name=pool,
        devices=(
            mesh_pb2.PooledDevice(name=name, free_share=free / WHOLE, replica_ids=holders)
            for name, free, holders in ledger.devices(pool)
        ),
    )


def status_of(backend: Backend, known: KnownMesh) -> mesh_pb2.BackendStatus:
    """The actual state of a backend."""
    desired, observed, launches = known.desired, known.observed, known.launches
    replicas = [*observed.replicas(backend.name)]
    ready = _count(it.shown_state is ReplicaState.READY and not it.gone for it in replicas)
    prospect = Prospect.UNKNOWN if ready else find_prospect(backend.name, desired, observed, launches=launches)
    scale, wanted = observed.scales.get(backend.name), wanted_replicas(backend, observed)
    has_number = launches or scale is not None or backend.num_replicas is not None
    status = mesh_pb2.BackendStatus(
        wanted_replicas=wanted if has_number else None,
        ready_replicas=ready,
        live_replicas=_count(it.state not in _ENDED and not it.gone for it in replicas),
        failed_replicas=_count(it.state is ReplicaState.FAILED for it in replicas),
        restart_count=sum(it.restarts for it in replicas),
        prospect=mesh_pb2.Prospect.ValueType(prospect.value),
        latest_decision=None if scale is None else decision_to_wire(scale.latest, known.wall_s),
        latest_change=None if scale is None else decision_to_wire(scale.changed, known.wall_s),
        deferred_start=known.deferred_starts.get(backend.name, ""),
    )
    if launches:
        progress = show_progress(
            *(desired.rollouts.get(backend.name), backend, wanted, replicas, known.now),
            time_of_day_s=known.time_of_day_s,
            ended_calls=known.loads.ended_calls,
        )
        status.rollout.CopyFrom(rollout_to_wire(backend, progress))
    return status


def _count(flags: Iterable[bool]) -> int:
    return sum(flags)


def snapshot_to_wire(known: KnownMesh, endpoints: Iterable[mesh_pb2.Endpoint]) -> pb.GetSnapshotResponse:
    """Without the newest table's version."""
    desired, observed, loads = known.desired, known.observed, known.loads
    response = pb.GetSnapshotResponse(
        time=timestamp(known.time_of_day_s),
        time_bounds=TIME_BOUNDS,
        endpoints=endpoints,
        backends=[
            pb.BackendSummary(name=name, status=status_of(desired.backends[name], known))
            for name in sorted(desired.backends)
        ],
        routers=[
            _router(observed.routers[name], loads.of_routers.get(name), known.wall_s)
            for name in sorted(observed.routers)
        ],
    )
    is_outdated = outdated_among(desired.backends)
    differences = differing_settings(desired.backends)
    size = 0
    replicas = sorted(observed.replicas(), key=lambda it: (it.backend, it.replica_id))
    for at, replica in enumerate(replicas):
        wire = _replica(replica, loads, known.wall_s, outdated=is_outdated(replica), warning=differences(replica))
        size += wire.ByteSize()
        if size > MAX_REPLICA_BYTES:
            response.unlisted_replicas = len(replicas) - at
            break
        response.replicas.append(wire)
    return response


def _replica(
    replica: ObservedReplica, loads: KnownLoads, wall_s: Callable[[float], float], *, outdated: bool, warning: str
) -> pb.SampledReplica:
    reports = loads.of_replica(replica.replica_id)
    earlier = reports.earlier
    wire = replica_to_wire(replica, wall_s, reports.newest, outdated=outdated, warning=warning)
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
