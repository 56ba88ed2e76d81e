"""The state of the mesh, as a controller reports it: its messages, and what commands derive from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from slotmesh.v1 import mesh_pb2, rollout_pb2
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from slotmesh.v1.info_service_pb2 import ControllerStanding

STARTING_STATE: Final = mesh_pb2.REPLICA_STATE_STARTING
READY_STATE: Final = mesh_pb2.REPLICA_STATE_READY
FAILED_STATE: Final = mesh_pb2.REPLICA_STATE_FAILED
SUSPECT_STATE: Final = mesh_pb2.REPLICA_STATE_SUSPECT
ENDED: Final = frozenset({mesh_pb2.REPLICA_STATE_STOPPED, FAILED_STATE})


@dataclass(frozen=True, slots=True)
class ShadowCount:
    """What became of copies of calls for a shadow, since the start of the routers that count them."""

    copies: int = 0
    """Copies that have ended in any way, including dropped ones."""
    dropped: int = 0
    """Copies that found no free slot."""
    failed: int = 0
    """Copies that failed because of the backend, or were not answered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members, and the version of the newest routing table."""

    replicas: tuple[mesh_pb2.Replica, ...]
    routers: tuple[mesh_pb2.Router, ...]
    generation: str
    table_revision: int

    def ready(self, backend: str | None = None) -> frozenset[str]:
        """Ids of the replicas that take calls: of one backend, or all."""
        ready = (it for it in self.replicas if it.state == READY_STATE)
        return frozenset(it.replica_id for it in ready if backend in {None, it.backend})

    def attached(self, backend: str) -> frozenset[str]:
        """Ids of the replicas of a backend that have not ended, ready or not."""
        return frozenset(it.replica_id for it in self.replicas if it.backend == backend and it.state not in ENDED)

    def is_current(self, router: mesh_pb2.Router) -> bool:
        """Whether the newest routing table is in force at a router."""
        return (router.generation, router.table_revision) == (self.generation, self.table_revision)

    @staticmethod
    def unlinked(router: mesh_pb2.Router, replicas: frozenset[str]) -> frozenset[str]:
        """The replicas to which the router should have a link, and has none."""
        if router.links_subset:
            return replicas.intersection(router.unlinked_replica_ids)
        return replicas.difference(router.linked_replica_ids)

    def shadow(self, backend: str) -> ShadowCount:
        """The copies of calls for a backend as a shadow, at all routers that are attached."""
        loads = [it for router in self.routers for it in router.loads if it.backend == backend and it.shadow_copies]
        return ShadowCount(
            copies=sum(it.shadow_copies for it in loads),
            dropped=sum(it.shadow_drops for it in loads),
            failed=sum(it.shadow_ended.failed + it.shadow_ended.unanswered for it in loads),
        )

    def behind(self, revision: int) -> tuple[mesh_pb2.Router, ...]:
        """The routers where no table with this revision of the configuration is in force yet."""
        return tuple(it for it in self.routers if it.generation != self.generation or it.table_revision < revision)


def is_under_way(shift: shift_pb.TrafficShift) -> bool:
    """Whether a shift has not ended."""
    return shift.phase == shift_pb.SHIFT_PHASE_SHIFTING


def is_waiting(shift: shift_pb.TrafficShift) -> bool:
    """Whether a shift waits for rollouts, and no weight has changed yet."""
    return is_under_way(shift) and bool(shift.awaited_backends)


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """A controller that was asked for its role."""

    address: str
    role: ControllerStanding
    generation: str = ""
    """The generation of its store; empty if not reported. With the term it identifies the start of a leader."""
    version: str = ""
    """Of slotmesh; empty if not reported."""
    advertised: str = ""
    """Where others reach it, as it reports itself; empty if not reported."""

    @property
    def is_on_hold(self) -> bool:
        """Whether it reconciles nothing."""
        return bool(self.role.newer_members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The mesh: its configuration, and its members."""

    backends: tuple[Backend, ...]
    endpoints: tuple[Endpoint, ...]
    members: Members
    wanted_replicas: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By backend: how many replicas should run, if any number is wanted."""
    deferred_starts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By backend: why missing replicas cannot be started now."""
    device_pools: tuple[mesh_pb2.DevicePool, ...] = ()
    """Those that backends name, by name."""
    rollouts: tuple[rollout_pb2.Rollout, ...] = ()
    """The newest of each backend; empty if the controller does not launch replicas."""
    shifts: tuple[shift_pb.TrafficShift, ...] = ()
    """The newest of each endpoint that was ever shifted, by endpoint."""
    revision: int = 0
    """The revision of the configuration, including the changes of completed shifts."""
    controller: ControllerStatus | None = None
    """The controller that responded."""

    @property
    def is_on_hold(self) -> bool:
        """Whether the controller reconciles nothing, since members hold a newer state than its store."""
        return self.controller is not None and self.controller.is_on_hold

    def wanted(self, backend: Backend) -> int | None:
        """How many replicas should run; None: any number."""
        return self.wanted_replicas.get(backend.name, backend.num_replicas)

    def traffic_of(self, endpoint: str) -> TrafficPolicy | None:
        """The policy of an endpoint, if both exist."""
        return next((each.traffic for each in self.endpoints if each.name == endpoint), None)
