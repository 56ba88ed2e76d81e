"""The content of routing tables, the version under which it is announced, and the difference between two tables.

Invariants: immutable, in one order; a table's revision is the store's and strictly increases with the content. What is
unchanged since the table before is the same object (`reconciling.routes`), so that a difference costs a look at each
endpoint and backend, and at the replicas or partitions of those that changed only. A delta, applied to the first table,
is the second one (`tests/properties/test_table_deltas.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller_service.core.partition_owners import NO_OWNER, Incarnation, PartitionOwnership
from controller_service.core.roster import (
    NO_ROSTER,
    DepartedIncarnation,
    IncarnationRoster,
    LeaderTerm,
    ListedIncarnation,
)
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.spec.model import Backend, GrpcServices, Prospect, TrafficPolicy
from slotmesh.spec.tenants import TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBackend:
    """A backend and its replicas, by id."""

    settings: Backend
    """As far as routers read it."""
    replicas: tuple[ListedIncarnation, ...]
    prospect: Prospect = Prospect.UNKNOWN
    """What becomes of it, while none of them takes calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEndpoint:
    """An endpoint, its policy, the owners of its partitions, its own services, and its limits by tenant."""

    name: str
    traffic: TrafficPolicy | None
    ownership: PartitionOwnership | None
    grpc_services: GrpcServices | None = None
    tenants: TenantLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The content of a routing table, in the order of names."""

    endpoints: tuple[ListedEndpoint, ...] = ()
    backends: tuple[ListedBackend, ...] = ()
    router_addresses: tuple[str, ...] = ()
    router_token_addresses: tuple[str, ...] = ()
    """For clients that have a bearer token and no certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedTable:
    """Routes, and the version under which they are announced."""

    generation: str
    revision: int
    routes: Routes
    roster: IncarnationRoster = NO_ROSTER
    term_id: str = ""
    """Of the term in which it is announced."""
    terms: tuple[LeaderTerm, ...] = ()
    """Those from which it follows, this one last."""


MOST_MOVED: Final = PARTITIONS // 4
"""If more partitions have moved, the endpoint is sent as a whole: each takes three numbers then, not two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChange:
    """An endpoint that is new or has changed."""

    listed: ListedEndpoint
    is_whole: bool = False
    """All of it is new; the next three fields do not count."""
    has_other_traffic: bool = False
    has_other_services: bool = False
    moved: tuple[int, ...] = ()
    """Partitions with another owner or another epoch, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendChange:
    """A backend that is new or has changed."""

    listed: ListedBackend
    has_other_settings: bool
    """So has one that is new."""
    replicas: tuple[ListedIncarnation, ...]
    """Those that are new or have changed."""
    removed: tuple[Incarnation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedDelta:
    """What makes `table` of the table with `base_revision`."""

    base_revision: int
    table: AnnouncedTable
    endpoints: tuple[EndpointChange, ...]
    removed_endpoints: tuple[str, ...]
    backends: tuple[BackendChange, ...]
    removed_backends: tuple[str, ...]
    has_other_routers: bool
    forgotten_departures: int
    """The number of the oldest ones that are not listed any more."""
    departed: tuple[DepartedIncarnation, ...]
    """Listed behind the others."""


def find_delta(before: AnnouncedTable, after: AnnouncedTable) -> AnnouncedDelta | None:
    """What differs; None if a delta cannot express it, and the whole table has to be sent."""
    old, new = before.routes, after.routes
    if before.generation != after.generation or before.roster.covers != after.roster.covers:
        return None
    old_endpoints = {} if old.endpoints is new.endpoints else {each.name: each for each in old.endpoints}
    new_endpoints = () if old.endpoints is new.endpoints else new.endpoints
    old_backends = {each.settings.name: each for each in old.backends}
    moves = _Moves()
    endpoints = (_endpoint_change(old_endpoints.get(each.name), each, moves) for each in new_endpoints)
    backends = (_backend_change(old_backends.get(each.settings.name), each) for each in new.backends)
    forgotten = _forgotten(before.roster.departed, after.roster.departed)
    return AnnouncedDelta(
        base_revision=before.revision,
        table=after,
        endpoints=tuple(each for each in endpoints if each is not None),
        removed_endpoints=_missing(old_endpoints, [each.name for each in new_endpoints]),
        backends=tuple(each for each in backends if each is not None),
        removed_backends=_missing(old_backends, [each.settings.name for each in new.backends]),
        has_other_routers=(old.router_addresses, old.router_token_addresses)
        != (new.router_addresses, new.router_token_addresses),
        forgotten_departures=forgotten,
        departed=after.roster.departed[len(before.roster.departed) - forgotten :],
    )


class _Moves:
    """The partitions that differ, found once for all endpoints that share their owners."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def between(self, before: PartitionOwnership, after: PartitionOwnership) -> tuple[int, ...]:
        """Those whose owner or epoch differs, ascending. Both are alive as long as this."""
        key = id(before), id(after)
        if (moved := self._known.get(key)) is None:
            moved = self._known[key] = tuple(_moved(before, after))
        return moved


def _endpoint_change(before: ListedEndpoint | None, after: ListedEndpoint, moves: _Moves) -> EndpointChange | None:
    if before is after:
        return None
    if before is None:
        return EndpointChange(listed=after, is_whole=True)
    if before.tenants != after.tenants:
        return EndpointChange(listed=after, is_whole=True)
    moved: tuple[int, ...] = ()
    if before.ownership is not after.ownership:
        if before.ownership is None or after.ownership is None:
            return EndpointChange(listed=after, is_whole=True)
        moved = moves.between(before.ownership, after.ownership)
        if len(moved) > MOST_MOVED:
            return EndpointChange(listed=after, is_whole=True)
    has_other_traffic = before.traffic != after.traffic
    has_other_services = before.grpc_services != after.grpc_services
    if not moved and not has_other_traffic and not has_other_services:
        return None
    return EndpointChange(
        listed=after, has_other_traffic=has_other_traffic, has_other_services=has_other_services, moved=moved
    )


def _moved(before: PartitionOwnership, after: PartitionOwnership) -> list[int]:
    """Partitions whose owner or epoch differs."""
    place_of = {owner: index for index, owner in enumerate(after.owners)}
    place_of_old = [place_of.get(owner, len(after.owners)) for owner in before.owners]
    place_of_old.append(NO_OWNER)  # of the index NO_OWNER
    old = zip(map(place_of_old.__getitem__, before.partition_owners), before.epochs, strict=True)
    new = zip(after.partition_owners, after.epochs, strict=True)
    return [number for number, (was, now) in enumerate(zip(old, new, strict=True)) if was != now]


def _backend_change(before: ListedBackend | None, after: ListedBackend) -> BackendChange | None:
    if before == after:
        return None  # it may have changed, and be again as it was
    if before is None:
        return BackendChange(listed=after, has_other_settings=True, replicas=after.replicas, removed=())
    old, new = _without_same(before.replicas, after.replicas)
    there = {each.owner: each for each in old}
    left = there.keys() - {each.owner for each in new}
    return BackendChange(
        listed=after,
        has_other_settings=before.settings != after.settings,
        replicas=tuple(each for each in new if there.get(each.owner) != each),
        removed=tuple(sorted(left)),
    )


def _without_same(
    before: Sequence[ListedIncarnation], after: Sequence[ListedIncarnation]
) -> tuple[Sequence[ListedIncarnation], Sequence[ListedIncarnation]]:
    """Both without what they begin with, and end with, alike: of thousands few differ, mostly beside each other."""
    most = min(len(before), len(after))
    first = 0
    while first < most and before[first] is after[first]:
        first += 1
    last = 0
    while last < most - first and before[-1 - last] is after[-1 - last]:
        last += 1
    return before[first : len(before) - last], after[first : len(after) - last]


def _forgotten(before: Sequence[DepartedIncarnation], after: Sequence[DepartedIncarnation]) -> int:
    """How many of the oldest departures are listed no more; all of them where those left stand otherwise."""
    forgotten = before.index(after[0]) if after and after[0] in before else len(before)
    return forgotten if before[forgotten:] == after[: len(before) - forgotten] else len(before)


def _missing(before: Iterable[str], after: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(before).difference(after)))
