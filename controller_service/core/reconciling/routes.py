"""The content of routing tables, built from the desired and the observed state.

Invariants: the same states give the same content, in one order, whatever was built before; a replica is listed from its
first READY until it is proven to have ended, silent or not, failed or not: routers judge their own links, and only the
replica itself can answer what ran there. All backends are listed, in use or not, so that links are there before traffic
comes and outlive it. Unchanged endpoints, backends and replicas are the same objects as in the routes before. Cost: a
look at each endpoint and backend, and at the replicas of backends of which something has changed.
Owner: the reconcile loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from controller_service.core.desired.state import Desired
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.partition_owners import Incarnation, PartitionOwnership
from controller_service.core.reconciling.endpoints import find_prospect
from controller_service.core.roster import IncarnationRoster, ListedIncarnation
from controller_service.core.routing import ListedBackend, ListedEndpoint, Routes
from slotmesh.spec.model import Backend, Endpoint, Prospect


class OwnershipPool:
    """One object for equal owners of partitions: endpoints in front of the same backends mostly have the same ones.

    A mesh of 10,000 endpoints has few different assignments of 4,096 partitions; each is kept, stored and sent once. An
    assignment that no other object refers to is not kept.
    """

    def __init__(self, known: Iterable[PartitionOwnership]) -> None:
        """`known` are those that there are already."""
        self._known: WeakValueDictionary[tuple[object, ...], PartitionOwnership] = WeakValueDictionary()
        """By their content: a key must not refer to the object."""
        for each in {id(it): it for it in known}.values():
            self.shared(each)

    def shared(self, ownership: PartitionOwnership) -> PartitionOwnership:
        """The object for owners that are equal to these."""
        content = (
            *(ownership.owners, ownership.partition_owners, ownership.epochs),
            *(ownership.leaving, ownership.inherited),
        )
        return self._known.setdefault(content, ownership)

    def all_shared(self, ownership: Mapping[str, PartitionOwnership]) -> dict[str, PartitionOwnership]:
        """The same of each endpoint."""
        objects = {id(it): it for it in ownership.values()}
        shared = {key: self.shared(it) for key, it in objects.items()}
        return {name: shared[id(it)] for name, it in ownership.items()}


class RosterListing:
    """The roster that follows from routes, found from what has changed in them.

    It is the same as `IncarnationRoster.listing` makes of all that the routes list. Cost: a look at each backend if the
    same incarnations are listed as before; else at each replica.
    """

    def __init__(self) -> None:
        self._backends: tuple[ListedBackend, ...] = ()
        self._roster: IncarnationRoster | None = None
        self._members: dict[str, tuple[ListedBackend, tuple[ListedIncarnation, ...]]] = {}

    def listing(
        self, roster: IncarnationRoster, routes: Routes, *, generation: str, revision: int, now: float
    ) -> IncarnationRoster:
        """`roster` with what the routes list from `revision` on; the very same value where that is the same."""
        is_known = self._roster is not None and self._roster.members is roster.members
        if is_known and _lists_the_same(self._backends, routes.backends):
            return roster
        self._members = {each.settings.name: self._members_of(each) for each in routes.backends}
        members = (member for _, each in self._members.values() for member in each)
        listed = roster.listing(members, generation=generation, revision=revision, now=now)
        self._backends, self._roster = routes.backends, listed
        return listed

    def _members_of(self, backend: ListedBackend) -> tuple[ListedBackend, tuple[ListedIncarnation, ...]]:
        known = self._members.get(backend.settings.name)
        return known if known is not None and known[0] is backend else (backend, tuple(_members_of(backend)))


def all_members(routes: Routes) -> list[ListedIncarnation]:
    """The incarnations that routes list, as the roster has them."""
    return [member for backend in routes.backends for member in _members_of(backend)]


def _members_of(backend: ListedBackend) -> Iterator[ListedIncarnation]:
    """Its replicas, as the roster has them."""
    return (replace(it, suspect=False, rank=None, zone="") for it in backend.replicas)


def _lists_the_same(before: tuple[ListedBackend, ...], after: tuple[ListedBackend, ...]) -> bool:
    """Whether two lists of backends have the same incarnations. False where that takes a closer look."""
    return len(before) == len(after) and all(
        one is other or [it.owner for it in one.replicas] == [it.owner for it in other.replicas]
        for one, other in zip(before, after, strict=True)
    )


NO_SOURCES: Final[tuple[Mapping[str, Endpoint], Mapping[str, PartitionOwnership]]] = ({}, {})
_LISTED: Final = frozenset({ReplicaState.READY, ReplicaState.DRAINING})


class _BuiltBackend(NamedTuple):
    """A backend, and what it was built from."""

    sources: tuple[object, ...]
    """The objects that it was built from: another object may have other content."""
    replicas: dict[Incarnation, tuple[ObservedReplica, ListedIncarnation]]
    listed: ListedBackend


class RouteBuilder:
    """Builds routes, and remembers the newest ones with what they were built from."""

    def __init__(self) -> None:
        self._backends: dict[str, _BuiltBackend] = {}
        self._endpoints: tuple[ListedEndpoint, ...] = ()
        self._endpoints_of: tuple[Mapping[str, Endpoint], Mapping[str, PartitionOwnership]] = NO_SOURCES
        """What they were built from."""
        self._router_addresses: tuple[str, ...] = ()
        self._router_token_addresses: tuple[str, ...] = ()

    def build(self, desired: Desired, observed: Observed, *, launches: bool) -> Routes:
        """The routes that follow from the states. `launches`: whether this controller starts replicas."""
        known = observed.by_backend.keys() | {record.backend for record in observed.unresolved.values()}
        deleted = [Backend(name=name) for name in known - desired.backends.keys()]
        backends: dict[str, _BuiltBackend] = {}
        for backend in sorted([*desired.backends.values(), *deleted], key=lambda it: it.name):
            built = self._backend(backend, desired, observed, launches=launches)
            # Of a deleted one something may still run there.
            if built.replicas or backend.name in desired.backends:
                backends[backend.name] = built
        addresses = tuple(sorted({router.address for router in observed.routers.values() if router.address}))
        if addresses != self._router_addresses:
            self._router_addresses = addresses
        by_token = tuple(sorted({each.token_address for each in observed.routers.values() if each.token_address}))
        if by_token != self._router_token_addresses:
            self._router_token_addresses = by_token
        self._backends = backends
        return Routes(
            endpoints=self._build_endpoints(desired),
            backends=tuple(built.listed for built in backends.values()),
            router_addresses=self._router_addresses,
            router_token_addresses=self._router_token_addresses,
        )

    def _build_endpoints(self, desired: Desired) -> tuple[ListedEndpoint, ...]:
        """In the order of names. There may be 10,000, of which mostly none has changed."""
        endpoints, ownership = self._endpoints_of
        if desired.endpoints is endpoints and desired.ownership is ownership:
            return self._endpoints
        before = {each.name: each for each in self._endpoints}
        self._endpoints = tuple(
            before[name]
            if desired.endpoints[name] is endpoints.get(name) and desired.ownership.get(name) is ownership.get(name)
            else _listed_endpoint(desired.endpoints[name], desired.ownership.get(name), before.get(name))
            for name in sorted(desired.endpoints)
        )
        self._endpoints_of = desired.endpoints, desired.ownership
        return self._endpoints

    def _backend(self, backend: Backend, desired: Desired, observed: Observed, *, launches: bool) -> _BuiltBackend:
        name = backend.name
        sources = (
            desired.backends.get(name),
            observed.by_backend.get(name),
            observed.unresolved,
            observed.restarts.get(name),
            observed.scales.get(name),
            launches,
        )
        before = self._backends.get(name)
        if before is not None and all(one is other for one, other in zip(sources, before.sources, strict=True)):
            return before
        there = [it for it in observed.incarnations(name) if _is_listed(it)]
        known = before.replicas if before is not None else {}
        replicas = {it.owner: _kept(it, known.get(it.owner), observed) for it in sorted(there, key=attrgetter("owner"))}
        takes_calls = any(replica.takes_calls for replica in there)
        listed = ListedBackend(
            settings=backend.routed(),
            replicas=tuple(each for _, each in replicas.values()),
            prospect=Prospect.UNKNOWN if takes_calls else find_prospect(name, desired, observed, launches=launches),
        )
        return _BuiltBackend(
            sources, replicas, before.listed if before is not None and before.listed == listed else listed
        )


def build_routes(desired: Desired, observed: Observed, *, launches: bool = False) -> Routes:
    """The same, once."""
    return RouteBuilder().build(desired, observed, launches=launches)


def _listed_endpoint(
    endpoint: Endpoint, ownership: PartitionOwnership | None, before: ListedEndpoint | None
) -> ListedEndpoint:
    """The endpoint as it is listed: the object of the table before, if it is equal."""
    listed = ListedEndpoint(
        name=endpoint.name,
        traffic=endpoint.traffic,
        ownership=ownership,
        grpc_services=endpoint.grpc_services,
        tenants=endpoint.tenants,
    )
    if before is None or before.ownership is not ownership:
        return listed
    return before if replace(before, ownership=None) == replace(listed, ownership=None) else listed


def _kept(
    replica: ObservedReplica, before: tuple[ObservedReplica, ListedIncarnation] | None, observed: Observed
) -> tuple[ObservedReplica, ListedIncarnation]:
    """The replica as it is listed: the object of the table before, if it is equal."""
    is_unresolved = bool(observed.unresolved) and replica.owner in observed.unresolved
    if before is not None and before[0] is replica and before[1].is_unresolved is is_unresolved:
        return before
    listed = ListedIncarnation(
        owner=replica.owner,
        backend=replica.backend,
        address=replica.address,
        max_ongoing=replica.max_ongoing,
        draining=not replica.takes_calls,
        process=replica.process,
        template=replica.template,
        fixed=replica.fixed,
        suspect=replica.suspect_since is not None and replica.has_attached,
        is_unresolved=is_unresolved,
        fenced_after_s=replica.fenced_after_s,
        pod_uid=replica.pod_uid,
        devices=replica.devices,
        rank=replica.rank,
        zone=replica.zone,
    )
    return replica, before[1] if before is not None and before[1] == listed else listed


def _is_listed(replica: ObservedReplica) -> bool:
    return bool(replica.address) and not replica.gone and (replica.state in _LISTED or replica.ready_at is not None)
