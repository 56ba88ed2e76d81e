"""The observed state: replicas and routers, as far as the controller knows. Immutable; `transitions` changes it.

Invariants: a replica id has one record, that of its newest incarnation, and one more for each older one that is not
proven to have ended (`elders`); `gone` never turns back; an incarnation that was replaced never comes back either.
Owner: `shell.mesh_state`, the single writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from controller_service.core.brought_table import BroughtTable
from controller_service.core.partitions import Incarnation
from controller_service.core.replacements import UnreplacedExits

RETIRED_KEPT: Final = 16
"""Replaced incarnations remembered for each replica id."""


class ReplicaState(Enum):
    """Where a replica is in its life. The values are those of `slotmesh.v1.ReplicaState`."""

    STARTING = 1
    READY = 2
    DRAINING = 3
    STOPPED = 4
    FAILED = 5
    SUSPECT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReplica:
    """One process that runs a backend's handler."""

    replica_id: str
    backend: str
    state: ReplicaState
    """The state of its last report, or that follows from its end. Never SUSPECT: `suspect_since` has that."""
    started_at: float
    """When it was launched or attached first, seconds (monotonic)."""
    incarnation: str = ""
    """Empty until it attached."""
    address: str = ""
    pid: int = 0
    max_ongoing: int = 0
    error: str = ""
    """What is wrong with it."""
    warning: str = ""
    """What operators should know although it goes on."""
    metrics_address: str = ""
    launched: bool = False
    """This controller started the process and will learn of its end."""
    template: str = ""
    """What the process was started with: one that differs from its backend's is outdated."""
    fixed: str = ""
    """The part of the template that it cannot take on without a restart."""
    reconfigures: bool = False
    """It takes a new `user_config` without a restart: only the fixed part makes it outdated."""
    is_unhealthy: bool = False
    """It has reported that its health checks fail. It takes calls for as long as no other replica does."""
    ready_at: float | None = None
    """When it was ready first."""
    ended_at: float | None = None
    """When it reported that it stopped or failed."""
    suspect_since: float | None = None
    """When its silence outlasted its lease; None while it reports. It may well be alive, and serve."""
    is_told_to_drain: bool = False
    gone: bool = False
    """It is proven that it starts nothing any more: docs/guarantees.md lists the proofs."""
    reaped: bool = False
    """Its process has ended. Known of launched ones only."""
    retired: tuple[str, ...] = ()
    """Incarnations that it replaced; bounded."""
    process: str = ""
    """Which process it is; empty where its machine does not say."""
    served_under: str = ""
    """The generation, an earlier one, that it served under before it attached here."""
    brought_by: tuple[str, int] | None = None
    """The generation and the roster's revision of the table that named it, for as long as it has not attached here."""
    must_fence_through: int = 0
    """Nothing up to this epoch may start there before it is given anything; what others gave it is not newer."""
    fenced_through: int = 0
    """It has reported that it starts nothing that was sent at this epoch or an older one."""
    busy: Mapping[str, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    """Partitions, by endpoint, of which something still ran there when it was fenced."""
    version: str = ""
    """Of slotmesh; empty until it attached."""
    restarts: int = 0
    """How often one was started in place of another, up to this one."""
    last_exit: str = ""
    """How its process has ended, or that of the one before it; empty where that is not known."""

    @property
    def owner(self) -> Incarnation:
        """The incarnation."""
        return Incarnation(self.replica_id, self.incarnation)

    @property
    def is_fenced(self) -> bool:
        """Nothing starts there that an earlier generation gave it."""
        return self.fenced_through >= self.must_fence_through

    @property
    def shown_state(self) -> ReplicaState:
        """The state as operators see it."""
        return ReplicaState.SUSPECT if self.suspect_since is not None and not self.gone else self.state

    @property
    def is_over(self) -> bool:
        """There is nothing left to wait for."""
        return self.gone and (self.reaped or not self.launched)

    @property
    def takes_calls(self) -> bool:
        """It can own partitions and be picked."""
        return self.state is ReplicaState.READY and not self.gone and not self.is_told_to_drain

    def having_replaced(self, *incarnations: str) -> ObservedReplica:
        """With older incarnations that have ended."""
        return replace(self, retired=(*self.retired, *filter(None, incarnations))[-RETIRED_KEPT:])


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLoad:
    """Calls of one backend at one router."""

    backend: str
    queued: int
    ongoing: int
    slot_calls: int = 0
    sampled_at: float | None = None
    """By the router's clock, seconds since 1970; None: it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRouter:
    """A router that is attached, or was a moment ago."""

    router_id: str
    address: str
    started_at: float
    """When it attached first, seconds (monotonic)."""
    metrics_address: str = ""
    generation: str = ""
    revision: int = 0
    """The table in force there."""
    linked_replica_ids: tuple[str, ...] = ()
    linked: frozenset[Incarnation] | None = frozenset()
    """The incarnations of these; None: it does not say."""
    loads: tuple[BackendLoad, ...] = ()
    version: str = ""
    """Of slotmesh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How eagerly a backend's replicas are started: growing intervals after quick deaths."""

    streak: int = 0
    """Quick deaths in a row; those of one wave count once."""
    counted_at: float = float("-inf")
    not_before: float = float("-inf")
    """No start before this, seconds (monotonic)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handovers:
    """What is known of an endpoint's partitions on the move."""

    emptied: frozenset[tuple[Incarnation, int, int]] = frozenset()
    """(owner, partition, epoch): nothing of the partition is left at that owner, and nothing of the epoch starts."""
    balanced_at: float = float("-inf")
    """When partitions were last told to leave for better shares, seconds (monotonic)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything observed, at one moment."""

    by_backend: Mapping[str, Mapping[str, ObservedReplica]] = field(default_factory=lambda: MappingProxyType({}))
    """Replicas by backend, then by id."""
    backend_of: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Backend of each replica."""
    routers: Mapping[str, ObservedRouter] = field(default_factory=lambda: MappingProxyType({}))
    restarts: Mapping[str, Restarts] = field(default_factory=lambda: MappingProxyType({}))
    """By backend."""

    handovers: Mapping[str, Handovers] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint."""
    elders: Mapping[Incarnation, ObservedReplica] = field(default_factory=lambda: MappingProxyType({}))
    """Incarnations in tables that routers brought, under ids that others have now, not proven to have ended."""
    brought: Mapping[str, BroughtTable] = field(default_factory=lambda: MappingProxyType({}))
    """Tables of other generations that were not looked at yet, by router."""
    older_routers: frozenset[str] = frozenset()
    """Where the routers served that such tables have named."""
    unreplaced: UnreplacedExits = ()

    def replica(self, replica_id: str) -> ObservedReplica | None:
        backend = self.backend_of.get(replica_id)
        return None if backend is None else self.by_backend[backend][replica_id]

    def replicas(self, backend: str | None = None) -> Iterator[ObservedReplica]:
        """All replicas, or one backend's."""
        if backend is not None:
            yield from self.by_backend.get(backend, {}).values()
            return
        for group in self.by_backend.values():
            yield from group.values()

    def incarnations(self, backend: str | None = None) -> Iterator[ObservedReplica]:
        """All replicas, or one backend's, with those that may be alive under the id of another one."""
        yield from self.replicas(backend)
        for elder in self.elders.values():
            if backend is None or elder.backend == backend:
                yield elder

    def incarnation(self, owner: Incarnation) -> ObservedReplica | None:
        """The record of one incarnation, unless it has been replaced."""
        replica = self.replica(owner.replica_id)
        if replica is not None and replica.incarnation == owner.incarnation:
            return replica
        return self.elders.get(owner)

    def is_dead(self, owner: Incarnation) -> bool:
        """Whether an incarnation is known to have ended. An unknown one is not."""
        if (known := self.incarnation(owner)) is not None:
            return known.gone
        replica = self.replica(owner.replica_id)
        return replica is not None and bool(replica.incarnation)

    def is_linked(self, replica_id: str) -> bool:
        """Whether a router has reported a working link to a replica of this id."""
        return any(replica_id in router.linked_replica_ids for router in self.routers.values())

    def fenced_through(self, owner: Incarnation) -> int:
        """Up to which epoch an incarnation starts nothing any more; 0 where that is not known."""
        known = self.incarnation(owner)
        return known.fenced_through if known is not None and known.is_fenced else 0

    def is_draining(self, owner: Incarnation) -> bool:
        """Whether an incarnation is about to end, and not dead yet."""
        replica = self.replica(owner.replica_id)
        if replica is None or replica.gone or replica.incarnation != owner.incarnation:
            return False
        return replica.is_told_to_drain or replica.state is ReplicaState.DRAINING

    def awaits_fence(self) -> bool:
        """Whether a replica that reports may still start calls of partitions that an earlier generation gave it."""
        return any(not it.is_fenced and not it.gone and it.suspect_since is None for it in self.replicas())

    def awaits_fence_of(self, owner: Incarnation) -> bool:
        """Whether an incarnation is not fenced yet: it keeps what it has until then, and is given nothing."""
        known = self.incarnation(owner)
        return known is None or not known.is_fenced

    def busy_partitions(self, endpoint: str) -> frozenset[tuple[Incarnation, int]]:
        """The partitions of which something still ran at replicas when they were fenced."""
        return frozenset(
            (replica.owner, number)
            for replica in self.replicas()
            if not replica.gone
            for number in replica.busy.get(endpoint, ())
        )

    def with_replica(self, replica: ObservedReplica) -> Observed:
        """With the replica's record added or replaced."""
        before = self.backend_of.get(replica.replica_id)
        base = self if before in {None, replica.backend} else self.without_replica(replica.replica_id)
        group = {**base.by_backend.get(replica.backend, {}), replica.replica_id: replica}
        backend_of = base.backend_of
        if replica.replica_id not in backend_of:
            backend_of = MappingProxyType({**backend_of, replica.replica_id: replica.backend})
        by_backend = MappingProxyType({**base.by_backend, replica.backend: MappingProxyType(group)})
        return replace(base, by_backend=by_backend, backend_of=backend_of)

    def without_replica(self, replica_id: str) -> Observed:
        backend = self.backend_of.get(replica_id)
        if backend is None:
            return self
        group = {key: value for key, value in self.by_backend[backend].items() if key != replica_id}
        by_backend = {**self.by_backend, backend: MappingProxyType(group)}
        restarts = {**self.restarts}
        if not group:
            del by_backend[backend]
            restarts.pop(backend, None)
        backend_of = {key: value for key, value in self.backend_of.items() if key != replica_id}
        return replace(
            self,
            by_backend=MappingProxyType(by_backend),
            backend_of=MappingProxyType(backend_of),
            restarts=MappingProxyType(restarts),
        )

    def with_router(self, router: ObservedRouter) -> Observed:
        return replace(self, routers=MappingProxyType({**self.routers, router.router_id: router}))

    def without_router(self, router_id: str) -> Observed:
        return replace(
            self, routers=MappingProxyType({key: it for key, it in self.routers.items() if key != router_id})
        )

    def with_elder(self, elder: ObservedReplica) -> Observed:
        return replace(self, elders=MappingProxyType({**self.elders, elder.owner: elder}))

    def without_elders(self, owners: Collection[Incarnation]) -> Observed:
        if not any(owner in self.elders for owner in owners):
            return self
        left = {owner: elder for owner, elder in self.elders.items() if owner not in owners}
        return replace(self, elders=MappingProxyType(left))

    def with_brought(self, router_id: str, table: BroughtTable) -> Observed:
        return replace(
            self,
            brought=MappingProxyType({**self.brought, router_id: table}),
            older_routers=self.older_routers | table.router_addresses,
        )

    def without_brought(self, router_ids: Collection[str]) -> Observed:
        left = {router_id: table for router_id, table in self.brought.items() if router_id not in router_ids}
        return self if len(left) == len(self.brought) else replace(self, brought=MappingProxyType(left))

    def with_handovers(self, endpoint: str, handovers: Handovers) -> Observed:
        return replace(self, handovers=MappingProxyType({**self.handovers, endpoint: handovers}))

    def without_handovers(self, endpoint: str) -> Observed:
        if endpoint not in self.handovers:
            return self
        return replace(
            self, handovers=MappingProxyType({key: it for key, it in self.handovers.items() if key != endpoint})
        )

    def with_restarts(self, backend: str, restarts: Restarts) -> Observed:
        return replace(self, restarts=MappingProxyType({**self.restarts, backend: restarts}))
