"""What has changed of a routing table, and the table that follows.

Invariants: a delta applies as a whole or not at all; the table that follows equals the one that the controller would
have announced as a whole; what a delta does not name stays the same object.
Owner: pure; made at the edge from each delta, applied by the table watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeVar

from router_service.core.routing.partition_owners import OwnerAtEpoch
from router_service.core.routing.rosters import KnownDeparture, ReplicaKey, RosterVersion, TableRoster
from router_service.core.routing.table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from slotmesh.spec.model import Backend, GrpcServices
from slotmesh.spec.prospect import Prospect

RouteT = TypeVar("RouteT")


class DeltaMismatch(ValueError):
    """The delta is not one of this table; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficDelta:
    """Another policy."""

    weights: Mapping[str, float] | None
    """None: none any more."""
    shadows: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesDelta:
    """Other services of the user's own protos."""

    services: GrpcServices | None
    """None: none any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDelta:
    """An endpoint that is new or has changed."""

    name: str
    whole: EndpointRoute | None = None
    """It as a whole; None: as it was, but for the next three."""
    traffic: TrafficDelta | None = None
    services: ServicesDelta | None = None
    moved: Mapping[int, OwnerAtEpoch] | None = None
    """Partitions with another owner or epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDelta:
    """A backend that is new or has changed."""

    name: str
    prospect: Prospect
    settings: tuple[Backend, int | None] | None
    """Its settings and the number of an unknown balancer; None: as they were."""
    replicas: Sequence[ReplicaRoute]
    """Those that are new or have changed."""
    removed: Sequence[ReplicaKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelta:
    """What differs between two tables of one generation."""

    generation: str
    base_revision: int
    revision: int
    endpoints: Sequence[EndpointDelta]
    removed_endpoints: Sequence[str]
    backends: Sequence[BackendDelta]
    removed_backends: Sequence[str]
    router_addresses: tuple[str, ...] | None
    """None: as they were, and so are the next."""
    router_token_addresses: tuple[str, ...]
    roster_revision: int
    departed_since: int
    forgotten_departures: int
    """So many of the oldest ones are listed no more."""
    departed: tuple[KnownDeparture, ...]
    """Listed behind the others."""


def follow_delta(table: RoutingTable, delta: TableDelta) -> RoutingTable:
    """The table that the delta leads to. Raises DeltaMismatch."""
    if (delta.generation, delta.base_revision) != (table.generation, table.revision):
        raise DeltaMismatch(f"it is based on revision {delta.base_revision} of generation {delta.generation}")
    if delta.revision <= table.revision:
        raise DeltaMismatch(f"it leads back to revision {delta.revision}")
    endpoints = _without(table.endpoints, delta.removed_endpoints, "endpoint")
    for endpoint in delta.endpoints:
        endpoints[endpoint.name] = _kept(table.endpoints.get(endpoint.name), _endpoint(endpoints, endpoint))
    backends = _without(table.backends, delta.removed_backends, "backend")
    for backend in delta.backends:
        backends[backend.name] = _kept(table.backends.get(backend.name), _backend(backends, backend))
    return RoutingTable(
        generation=table.generation,
        revision=delta.revision,
        endpoints=endpoints,
        backends=backends,
        router_addresses=table.router_addresses if delta.router_addresses is None else delta.router_addresses,
        router_token_addresses=(
            table.router_token_addresses if delta.router_addresses is None else delta.router_token_addresses
        ),
        roster=_roster(table.roster, delta),
        term_id=table.term_id,
    )


def _without(routes: Mapping[str, RouteT], removed: Iterable[str], kind: str) -> dict[str, RouteT]:
    left = {**routes}
    for name in removed:
        if left.pop(name, None) is None:
            raise DeltaMismatch(f"there is no {kind} {name} to remove")
    return left


def _kept(before: RouteT | None, after: RouteT) -> RouteT:
    """The one from before, where the other is equal to it."""
    return before if before is not None and before == after else after


def _endpoint(endpoints: Mapping[str, EndpointRoute], delta: EndpointDelta) -> EndpointRoute:
    before = endpoints.get(delta.name)
    if delta.whole is not None:
        return delta.whole
    if before is None:
        raise DeltaMismatch(f"there is no endpoint {delta.name} to change")
    after = before
    if delta.traffic is not None:
        after = replace(after, weights=delta.traffic.weights, shadows=delta.traffic.shadows)
    if delta.services is not None:
        after = replace(after, grpc_services=delta.services.services)
    if delta.moved:
        if not before.owners:
            raise DeltaMismatch(f"the partitions of endpoint {delta.name} have no owners to change")
        after = replace(after, owners=before.owners.moved(delta.moved))
    return after


def _backend(backends: Mapping[str, BackendRoute], delta: BackendDelta) -> BackendRoute:
    before = backends.get(delta.name)
    if delta.settings is not None:
        settings, unknown_balancer = delta.settings
    elif before is not None:
        settings, unknown_balancer = before.settings, before.unknown_balancer
    else:
        raise DeltaMismatch(f"there is no backend {delta.name} to change")
    replicas = before.replicas if before is not None else ()
    if delta.replicas or delta.removed:
        by_key = {each.key: each for each in replicas}
        for key in delta.removed:
            if by_key.pop(key, None) is None:
                raise DeltaMismatch(f"backend {delta.name} has no replica {key[0]}, incarnation {key[1]}, to remove")
        by_key.update((each.key, each) for each in delta.replicas)
        replicas = tuple(sorted(by_key.values(), key=attrgetter("key")))
    return BackendRoute(
        settings=settings, replicas=replicas, prospect=delta.prospect, unknown_balancer=unknown_balancer
    )


def _roster(before: TableRoster, delta: TableDelta) -> TableRoster:
    if not 0 <= delta.forgotten_departures <= len(before.departed):
        raise DeltaMismatch(f"{delta.forgotten_departures} of {len(before.departed)} departures cannot be forgotten")
    version = RosterVersion(delta.generation, delta.roster_revision)
    is_same = version == before.version and delta.departed_since == before.departed_since
    if is_same and not delta.forgotten_departures and not delta.departed:
        return before
    departed = (*before.departed[delta.forgotten_departures :], *delta.departed)
    return TableRoster(version, departed, delta.departed_since, before.covers)
