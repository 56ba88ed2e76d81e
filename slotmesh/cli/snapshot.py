"""The state of the mesh, as a controller reports it: values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy

READY = "READY"
FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A replica, as the controller sees it."""

    replica_id: str
    backend: str
    state: str
    """Name of a `ReplicaState` without its prefix, as `READY`."""
    address: str = ""
    pid: int = 0
    """0 where it is not known."""
    max_ongoing: int = 0
    error: str = ""
    """Why it failed, traceback included."""
    start_time: datetime | None = None
    metrics_address: str = ""
    warning: str = ""
    """What operators should know although the replica goes on."""
    restart_count: int = 0
    """How often one was started in place of another, up to this one."""
    last_exit: str = ""
    """How its process has ended, or that of the one before it; empty where that is not known."""
    version: str = ""
    """Of slotmesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """A router, as the controller sees it."""

    router_id: str
    address: str
    generation: str
    revision: int
    """Of the routing table in force there."""
    linked_replica_ids: frozenset[str]
    start_time: datetime | None = None
    metrics_address: str = ""
    version: str = ""
    """Of slotmesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members, and the version of the newest routing table."""

    replicas: tuple[ReplicaStatus, ...]
    routers: tuple[RouterStatus, ...]
    generation: str
    revision: int

    def ready(self, backend: str | None = None) -> frozenset[str]:
        """Ids of the replicas that take calls: of one backend, or all."""
        return frozenset(
            replica.replica_id
            for replica in self.replicas
            if replica.state == READY and backend in {None, replica.backend}
        )

    def is_current(self, router: RouterStatus) -> bool:
        """Whether the newest routing table is in force at a router."""
        return (router.generation, router.revision) == (self.generation, self.revision)

    def behind(self, revision: int) -> tuple[RouterStatus, ...]:
        """The routers where no table of this revision, or a newer one, is in force yet."""
        return tuple(
            router for router in self.routers if router.generation != self.generation or router.revision < revision
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The mesh: its configuration, and its members."""

    backends: tuple[Backend, ...]
    endpoints: tuple[Endpoint, ...]
    members: Members

    def traffic_of(self, endpoint: str) -> TrafficPolicy | None:
        """The policy of an endpoint, if both are there."""
        return next((each.traffic for each in self.endpoints if each.name == endpoint), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What applying a mesh came to: names as `backend/NAME` or `endpoint/NAME`."""

    revision: int
    created: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: tuple[str, ...]
    deleted: tuple[str, ...]
