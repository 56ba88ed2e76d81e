"""The routing table as the router sees it: a value, replaced as a whole; and the changes from one table to the next.

Purpose: endpoints, backends, replicas and partition owners in domain terms.
Invariants: immutable; `supersedes` prevents configuration from being replaced by an older one, and replicas from being
forgotten. Endpoints and backends that are as in the previous table are the same objects, by which the scheduler
recognizes them. A delta applies as a whole or not at all; the resulting table equals the one that the controller would
have announced as a whole.
Owner: made at the edge from each frame of the controller; the table watch applies deltas, the scheduler reads the
table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Final, TypeVar

from router_service.core.rosters import NO_ROSTER, KnownDeparture, ReplicaKey, RosterVersion, TableRoster
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.model import Backend, GrpcServices, Prospect
from slotmesh.spec.tenants import TenantLimits

UNOWNED: Final = -1
"""Index of a partition without an owner."""

OwnerAtEpoch = tuple[ReplicaKey | None, int]
"""The owner of a partition, if it has one, and the epoch."""


class PartitionOwners:
    """Owner and epoch of each partition of an endpoint; empty if none has an owner.

    Stored compactly: an endpoint has 4,096 partitions, and a mesh may have many endpoints.
    Invariants: immutable; `keys` has each replica that owns a partition once, in order; two with the same owners and
    epochs are equal, however they were made.
    """

    __slots__ = ("_epochs", "_indexes", "keys")

    def __init__(self, keys: Sequence[ReplicaKey], indexes: Iterable[int], epochs: Iterable[int]) -> None:
        """`indexes` into `keys`, or UNOWNED. Raises ValueError where these do not fit together."""
        try:
            places, self._epochs = array("h", indexes), array("q", epochs)
        except OverflowError as error:
            raise ValueError(f"no index of an owner, or no epoch: {error}") from None
        if len(places) not in {0, PARTITIONS} or len(self._epochs) != len(places):
            raise ValueError(f"{len(places)} owners and {len(self._epochs)} epochs: must be {PARTITIONS}, or none")
        if places and not UNOWNED <= min(places) <= max(places) < len(keys):
            raise ValueError(f"an owner is none of the {len(keys)} that are named")
        used = sorted({keys[place] for place in {*places} if place != UNOWNED})
        self.keys: Final = tuple(used)
        if self.keys != tuple(keys):
            place_of = {key: place for place, key in enumerate(used)}
            moved = [*(place_of.get(key, UNOWNED) for key in keys), UNOWNED]  # the last one is that of UNOWNED
            places = array("h", map(moved.__getitem__, places))
        self._indexes: Final = places

    @classmethod
    def of(cls, owners: Sequence[OwnerAtEpoch]) -> PartitionOwners:
        """Those of all partitions, or of none."""
        keys = sorted({key for key, _ in owners if key is not None})
        place_of = {key: place for place, key in enumerate(keys)}
        indexes = (UNOWNED if key is None else place_of[key] for key, _ in owners)
        return cls(keys, indexes, (epoch for _, epoch in owners))

    def moved(self, changes: Mapping[int, OwnerAtEpoch]) -> PartitionOwners:
        """With other owners of these partitions, of which there are some."""
        indexes, epochs = array("h", self._indexes), array("q", self._epochs)
        keys = [*self.keys]
        place_of = {key: place for place, key in enumerate(keys)}
        for number, (key, epoch) in changes.items():
            if key is not None and key not in place_of:
                place_of[key] = len(keys)
                keys.append(key)
            indexes[number] = UNOWNED if key is None else place_of[key]
            epochs[number] = epoch
        return PartitionOwners(keys, indexes, epochs)

    def indexes(self) -> Sequence[int]:
        """Of each partition: an index into `keys`, or UNOWNED."""
        return self._indexes

    def epochs(self) -> Sequence[int]:
        """Of each partition."""
        return self._epochs

    def __getitem__(self, number: int) -> OwnerAtEpoch:
        index = self._indexes[number]
        return (self.keys[index] if index != UNOWNED else None), self._epochs[number]

    def __iter__(self) -> Iterator[OwnerAtEpoch]:
        return map(self.__getitem__, range(len(self._indexes)))

    def __len__(self) -> int:
        return len(self._indexes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionOwners):
            return NotImplemented
        return self is other or (
            self.keys == other.keys and self._indexes == other._indexes and self._epochs == other._epochs
        )

    def __hash__(self) -> int:
        return hash((self.keys, self._indexes.tobytes(), self._epochs.tobytes()))


NO_OWNERS: Final = PartitionOwners((), (), ())
"""Of an endpoint whose partitions were never given away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """One replica of a backend."""

    key: ReplicaKey
    address: str
    max_ongoing: int
    draining: bool = False
    process: str = ""
    """Identifies its process, as the replica reported it: for a controller without stored state."""
    is_suspect: bool = False
    """It has lost contact with the controller: unkeyed calls go to others, as long as there are any."""
    devices: tuple[str, ...] = ()
    """What it holds: `cuda=0`, or `cuda=0@0.5` for a share of a device."""
    rank: int | None = None
    """Among the live replicas of the backend, from 0; None: the table has none."""
    zone: str = ""
    """Where it runs; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRoute:
    """One backend and its replicas."""

    settings: Backend
    """What should run, as far as routers read it."""
    replicas: Sequence[ReplicaRoute] = ()
    prospect: Prospect = Prospect.UNKNOWN
    """What becomes of it, while none of its replicas is ready."""

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.settings.name


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRoute:
    """One endpoint: how its calls are divided and who owns its partitions."""

    name: str
    weights: Mapping[str, float] | None = None
    """Share of each backend; None without a policy: calls wait."""
    shadows: Mapping[str, float] = field(default_factory=dict)
    """Backends that get a sampled copy: probability of each."""
    owners: PartitionOwners = NO_OWNERS
    grpc_services: GrpcServices | None = None
    """Services of the user's own protos; None: none."""
    tenants: TenantLimits | None = None
    """What each tenant may have at this router; None: no limits."""

    def sharing(self, before: EndpointRoute | None) -> EndpointRoute:
        """The same, with the objects of the route before it wherever these say the same."""
        if before is None or (before.owners is not self.owners and before.owners != self.owners):
            return self
        return before if before == self else replace(self, owners=before.owners)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """What the controller announces to routers."""

    generation: str = ""
    revision: int = 0
    endpoints: Mapping[str, EndpointRoute] = field(default_factory=dict)
    backends: Mapping[str, BackendRoute] = field(default_factory=dict)
    router_addresses: Sequence[str] = ()
    router_token_addresses: Sequence[str] = ()
    """For clients that have a bearer token and no certificate."""
    roster: TableRoster = NO_ROSTER
    term_id: str = ""
    """Id of the term in which it was announced: returned to controllers, and read by them only."""

    def supersedes(self, other: RoutingTable) -> bool:
        """Whether this table may replace the other.

        The first one does, and a newer one of the same generation. One of another generation does if it covers the
        other: if its controller knows all replicas that the other names.
        """
        if self.generation == other.generation:
            return self.revision > other.revision
        return not other.revision or self.roster.covers_all([other.roster.version])


RouteT = TypeVar("RouteT")


class DeltaMismatch(ValueError):
    """The delta does not apply to this table; the message names the place."""


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
    settings: Backend | None
    """None: as they were."""
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
    """Number of the oldest departures that are no longer listed."""
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
        settings = delta.settings
    elif before is not None:
        settings = before.settings
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
    return BackendRoute(settings=settings, replicas=replicas, prospect=delta.prospect)


def _roster(before: TableRoster, delta: TableDelta) -> TableRoster:
    if not 0 <= delta.forgotten_departures <= len(before.departed):
        raise DeltaMismatch(f"{delta.forgotten_departures} of {len(before.departed)} departures cannot be forgotten")
    version = RosterVersion(delta.generation, delta.roster_revision, before.version.term_id)
    is_same = version == before.version and delta.departed_since == before.departed_since
    if is_same and not delta.forgotten_departures and not delta.departed:
        return before
    departed = (*before.departed[delta.forgotten_departures :], *delta.departed)
    return TableRoster(version, departed, delta.departed_since, before.covers, before.terms)
