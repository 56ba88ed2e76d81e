"""The observed state: replicas and routers, as far as the controller knows. Immutable; `transitions` changes it.

Invariants: a replica id has one record, that of its newest incarnation, and one more for each older one that is not
proven to have ended (`unresolved`); `gone` never turns back; an incarnation that was replaced never comes back either.
Owner: `shell.mesh_state`, the single writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from controller_service.core.loads import BackendLoad
from controller_service.core.observed.replicas import (
    NO_REPLICAS,
    BackendIndex,
    ObservedReplica,
    ReplicaGroup,
    ReplicaState,
    UnreplacedExits,
)
from controller_service.core.partition_owners import Handovers, Incarnation
from controller_service.core.roster import EarlierTable
from slotmesh.autoscaling import ScaleFigures
from slotmesh.spec.model import Backend


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDecision:
    """The number of replicas that one look at the load has chosen for a backend, and why.

    It is within the bounds of the backend's `autoscale` as of that look. It is in no store: a controller that starts
    again begins with the number that runs. `core.reconciling.autoscaling` makes decisions.
    """

    at: float
    """Seconds (monotonic)."""
    before: int
    """Replicas that should have run."""
    number: int
    """Replicas that should run from then on."""
    why: str
    """For a person, with the figures that decided."""
    figures: ScaleFigures


@dataclass(frozen=True, slots=True)
class LoadStreak:
    """Looks in a row that asked for more replicas."""

    since: float
    """When the first of them was, seconds (monotonic)."""
    number: int
    """The smallest number that was asked for."""


@dataclass(frozen=True, slots=True)
class NeedWindow:
    """What was needed in the newest time, as far as it decides which number was the largest."""

    since: float
    """From when on all is known, seconds (monotonic)."""
    peaks: tuple[tuple[float, int], ...] = ()
    """(when, number), oldest first: each larger than all that came after it."""

    def with_need(self, now: float, number: int, delay_s: float) -> NeedWindow:
        """With one more look; those that are older than the delay are forgotten."""
        kept = [peak for peak in self.peaks if peak[1] > number and peak[0] > now - delay_s]
        return NeedWindow(self.since, (*kept, (now, number)))

    @property
    def largest(self) -> int:
        """The largest number that was needed."""
        return self.peaks[0][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendScale:
    """How many replicas of a backend should run, and what speaks for another number."""

    number: int
    latest: ScaleDecision
    """Of the newest look."""
    changed: ScaleDecision | None = None
    """The newest one that changed the number; None: none has since the controller's start."""
    more: LoadStreak | None = None
    """The load asks for more, as far as it does."""
    needed: NeedWindow | None = None
    """What the load needed lately; None: that is not known."""
    idle_since: float | None = None
    """Since when no call has waited or run, as far as all routers have reported it."""
    grown_at: float = float("-inf")
    """When the number last became larger."""


__all__ = ["BackendLoad", "Observed", "ObservedReplica", "ObservedRouter", "ReplicaState", "Restarts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRouter:
    """A router that is attached, or was a moment ago."""

    router_id: str
    address: str
    started_at: float
    """When it attached first, seconds (monotonic)."""
    token_address: str = ""
    """For clients that have a bearer token and no certificate; empty: none."""
    metrics_address: str = ""
    generation: str = ""
    revision: int = 0
    """The table in force there."""
    linked: frozenset[Incarnation] = frozenset()
    """The incarnations to which it has reported a working link."""
    links_subset: bool = False
    """It links to a part of the replicas. Of those in neither `linked` nor `unlinked`, it does not know anything."""
    unlinked: frozenset[Incarnation] = frozenset()
    """With `links_subset`: those to which it should have a link, and has none that works."""
    unknown_balancers: tuple[str, ...] = ()
    loads: tuple[BackendLoad, ...] = ()
    reported_at: float | None = None
    """When it reported last, seconds (monotonic); None: not since it attached."""
    version: str = ""
    """Of slotmesh."""
    run_id: str = ""
    """Drawn anew at each start of the router: what it counts begins with it."""
    end_reason: str = ""
    """Why it ends, as it has reported; empty while it does not."""
    pid: int = 0
    process_began_s: float | None = None
    """When its process started, by the clock of its machine, seconds since 1970; for display, None if not reported."""

    @property
    def linked_replica_ids(self) -> list[str]:
        """Sorted."""
        return sorted(it.replica_id for it in self.linked)

    @property
    def unlinked_replica_ids(self) -> list[str]:
        """Sorted."""
        return sorted(it.replica_id for it in self.unlinked)

    def lacks(self, owner: Incarnation) -> bool:
        """Whether it should have a link to the incarnation, and has none."""
        return owner in self.unlinked if self.links_subset else owner not in self.linked

    def may_reach(self, owner: Incarnation) -> bool:
        """Whether it has a link to the incarnation, or has not tried."""
        return owner in self.linked or (self.links_subset and owner not in self.unlinked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """How eagerly replicas of one template are started: growing intervals after quick deaths."""

    streak: int = 0
    """Quick deaths in a row; those of one wave count once."""
    counted_at: float = float("-inf")
    not_before: float = float("-inf")
    """No start before this, seconds (monotonic)."""


TEMPLATES_KEPT: Final = 8
"""Templates of a backend whose restarts are remembered."""
NO_RESTARTS: Final[Mapping[str, Restarts]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything observed, at one moment."""

    by_backend: Mapping[str, ReplicaGroup] = field(default_factory=lambda: MappingProxyType({}))
    """Replicas by backend, then by id."""
    backend_of: BackendIndex = field(default_factory=BackendIndex)
    """Backend of each replica."""
    routers: Mapping[str, ObservedRouter] = field(default_factory=lambda: MappingProxyType({}))
    restarts: Mapping[str, Mapping[str, Restarts]] = field(default_factory=lambda: MappingProxyType({}))
    """By backend, then by template, the one whose replica died last at the end. Bounded; none after a long life."""
    scales: Mapping[str, BackendScale] = field(default_factory=lambda: MappingProxyType({}))
    """By backend whose number of replicas is chosen by its load."""
    handovers: Mapping[str, Handovers] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint."""
    unresolved: Mapping[Incarnation, ObservedReplica] = field(default_factory=lambda: MappingProxyType({}))
    """Incarnations in routers' tables whose ids other incarnations have now, and which are not proven to have ended."""
    earlier_tables: Mapping[str, EarlierTable] = field(default_factory=lambda: MappingProxyType({}))
    """Tables of other generations that were not read yet, by router."""
    older_routers: frozenset[str] = frozenset()
    """Where the routers served that such tables have named."""
    unreplaced: UnreplacedExits = ()

    def replica(self, replica_id: str) -> ObservedReplica | None:
        backend = self.backend_of.get(replica_id)
        return None if backend is None else self.by_backend[backend][replica_id]

    def ending(self) -> frozenset[str]:
        """Ids of replicas that will end or have, and whose processes may be there."""
        return frozenset(it.replica_id for it in self.replicas() if it.is_ending)

    def replicas(self, backend: str | None = None) -> Iterator[ObservedReplica]:
        """All replicas, or one backend's."""
        if backend is not None:
            yield from self.by_backend.get(backend, NO_REPLICAS).replicas()
            return
        for group in self.by_backend.values():
            yield from group.replicas()

    def incarnations(self, backend: str | None = None) -> Iterator[ObservedReplica]:
        """All replicas, or one backend's, with those that may be alive under the id of another one."""
        yield from self.replicas(backend)
        for record in self.unresolved.values():
            if backend is None or record.backend == backend:
                yield record

    def incarnation(self, owner: Incarnation) -> ObservedReplica | None:
        """The record of one incarnation, unless it has been replaced."""
        replica = self.replica(owner.replica_id)
        if replica is not None and replica.incarnation == owner.incarnation:
            return replica
        return self.unresolved.get(owner)

    def is_dead(self, owner: Incarnation) -> bool:
        """Whether an incarnation is known to have ended. An unknown one is not."""
        if (known := self.incarnation(owner)) is not None:
            return known.gone
        replica = self.replica(owner.replica_id)
        return replica is not None and bool(replica.incarnation)

    def is_linked(self, replica_id: str) -> bool:
        """Whether a router has reported a working link to a replica of this id."""
        return any(it.replica_id == replica_id for router in self.routers.values() for it in router.linked)

    def fenced_through(self, owner: Incarnation) -> int:
        """Up to which epoch an incarnation starts nothing any more; 0 where that is not known."""
        known = self.incarnation(owner)
        return known.fenced_through if known is not None and known.is_fenced else 0

    def is_draining(self, owner: Incarnation) -> bool:
        """Whether an incarnation is about to end, and not dead yet."""
        replica = self.replica(owner.replica_id)
        if replica is None or replica.gone or replica.incarnation != owner.incarnation:
            return False
        return replica.is_drain_requested or replica.state is ReplicaState.DRAINING

    def awaits_fence(self) -> bool:
        """Whether a replica that reports may still start calls of partitions that an earlier generation gave it."""
        return any(group.facts.awaits_fence for group in self.by_backend.values())

    def has_unfenced(self) -> bool:
        """Whether any replica is not fenced, whatever else is known of it; without `unresolved`."""
        return any(group.facts.has_unfenced for group in self.by_backend.values())

    def must_fence_through(self) -> int:
        """The newest epoch of which nothing may start before it is given anew, at any incarnation that may live."""
        groups = (group.facts.must_fence_through for group in self.by_backend.values())
        unresolved = (record.must_fence_through for record in self.unresolved.values() if not record.gone)
        return max(max(groups, default=0), max(unresolved, default=0))

    def awaits_fence_of(self, owner: Incarnation) -> bool:
        """Whether an incarnation is not fenced yet: it keeps what it has until then, and is given nothing."""
        known = self.incarnation(owner)
        return known is None or not known.is_fenced

    def busy_endpoints(self) -> frozenset[str]:
        """The endpoints for which `busy_partitions` is not empty."""
        return frozenset(name for group in self.by_backend.values() for name in group.facts.busy)

    def busy_partitions(self, endpoint: str) -> frozenset[tuple[Incarnation, int]]:
        """The partitions of which something still ran at replicas when they were fenced."""
        return frozenset(each for group in self.by_backend.values() for each in group.facts.busy.get(endpoint, ()))

    def with_replica(self, replica: ObservedReplica) -> Observed:
        """With the replica's record added or replaced."""
        return self.with_replicas((replica,))

    def with_replicas(self, replicas: Iterable[ObservedReplica]) -> Observed:
        """With records added or replaced; of several with one id the last counts. Itself, where there are none."""
        moved: dict[str, str | None] = {}
        groups: dict[str, dict[str, ObservedReplica]] = {}

        def group_of(name: str) -> dict[str, ObservedReplica]:
            if (group := groups.get(name)) is None:
                group = groups[name] = self.by_backend.get(name, NO_REPLICAS).copy()
            return group

        for replica in replicas:
            replica_id, backend = replica.replica_id, replica.backend
            before = moved.get(replica_id) or self.backend_of.get(replica_id)
            if before != backend:
                moved[replica_id] = backend
                if before is not None:
                    del group_of(before)[replica_id]
            group_of(backend)[replica_id] = replica
        return self._with_groups(groups, moved) if groups else self

    def without_replica(self, replica_id: str) -> Observed:
        backend = self.backend_of.get(replica_id)
        if backend is None:
            return self
        group = self.by_backend[backend].copy()
        del group[replica_id]
        return self._with_groups({backend: group}, {replica_id: None})

    def _with_groups(
        self, groups: Mapping[str, dict[str, ObservedReplica]], moved: Mapping[str, str | None]
    ) -> Observed:
        """With these groups in place of theirs. A backend without replicas has no group and no restarts."""
        by_backend = {**self.by_backend, **{name: ReplicaGroup(group) for name, group in groups.items()}}
        restarts = self.restarts
        for name in [name for name, group in groups.items() if not group]:
            del by_backend[name]
            restarts = MappingProxyType({key: it for key, it in restarts.items() if key != name})
        return replace(
            self,
            by_backend=MappingProxyType(by_backend),
            backend_of=self.backend_of.with_changes(moved),
            restarts=restarts,
        )

    def with_router(self, router: ObservedRouter) -> Observed:
        return self._with("routers", {router.router_id: router})

    def without_router(self, router_id: str) -> Observed:
        return self._without("routers", [router_id])

    def with_unresolved(self, unresolved: Collection[ObservedReplica]) -> Observed:
        return self._with("unresolved", {record.owner: record for record in unresolved})

    def without_unresolved(self, owners: Collection[Incarnation]) -> Observed:
        return self._without("unresolved", owners)

    def with_earlier_table(self, router_id: str, table: EarlierTable) -> Observed:
        observed = self._with("earlier_tables", {router_id: table})
        return replace(observed, older_routers=self.older_routers | table.router_addresses)

    def without_earlier_tables(self, router_ids: Collection[str]) -> Observed:
        return self._without("earlier_tables", router_ids)

    def with_handovers(self, handovers: Mapping[str, Handovers]) -> Observed:
        """With those of these endpoints added or replaced."""
        return self._with("handovers", handovers)

    def without_handovers(self, endpoints: Collection[str]) -> Observed:
        return self._without("handovers", endpoints)

    def with_scales(self, scales: Mapping[str, BackendScale]) -> Observed:
        return replace(self, scales=MappingProxyType({**scales}))

    def _with(self, name: str, put: Mapping[Any, Any]) -> Observed:
        """With these items of a mapping added or replaced; itself if there are none."""
        known: Mapping[Any, Any] = getattr(self, name)
        return self._changed(name, {**known, **put}) if put else self

    def _without(self, name: str, keys: Collection[Any]) -> Observed:
        """Without these items of a mapping; itself if there are none."""
        known: Mapping[Any, Any] = getattr(self, name)
        left = {key: it for key, it in known.items() if key not in keys}
        return self if len(left) == len(known) else self._changed(name, left)

    def _changed(self, name: str, items: dict[Any, Any]) -> Observed:
        changes: dict[str, Any] = {name: MappingProxyType(items)}
        return replace(self, **changes)

    def restarts_of(self, backend: str, template: str) -> Restarts:
        return self.restarts.get(backend, NO_RESTARTS).get(template, Restarts())

    def with_restarts(self, backend: str, template: str, restarts: Restarts) -> Observed:
        """With those of a template; those of the templates whose replicas died long ago are dropped."""
        if restarts == self.restarts_of(backend, template):
            return self
        others = {key: it for key, it in self.restarts.get(backend, NO_RESTARTS).items() if key != template}
        for key in [*others][: max(0, len(others) + 1 - TEMPLATES_KEPT)]:
            del others[key]
        if restarts != Restarts():
            others[template] = restarts
        left = {name: it for name, it in self.restarts.items() if name != backend}
        if others:
            left[backend] = MappingProxyType(others)
        return replace(self, restarts=MappingProxyType(left))


def wanted_replicas(backend: Backend, observed: Observed) -> int:
    """How many replicas should run where the controller launches them: from its settings, or as chosen for its load.

    Before the first look at the load, those that run stay.
    """
    if backend.autoscale is not None:
        scale = observed.scales.get(backend.name)
        return max(backend.least_replicas, running_replicas(backend.name, observed)) if scale is None else scale.number
    return backend.least_replicas


def running_replicas(backend: str, observed: Observed) -> int:
    """How many run or start, as far as is known, and were not asked to end."""
    return sum(
        replica.state in {ReplicaState.STARTING, ReplicaState.READY}
        and not (replica.gone or replica.is_drain_requested or replica.is_given_up)
        for replica in observed.replicas(backend)
    )
