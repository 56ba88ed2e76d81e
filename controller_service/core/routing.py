"""The content of routing tables: a pure function of the desired and the observed state.

Invariants: the same states give the same content, in one order; a table's revision is the store's and strictly
increases with the content; a replica is listed from its first READY until it is proven to have ended, silent or not,
failed or not: routers judge their own links, and only the replica itself can answer what ran there. All backends are
listed, in use or not, so that links are there before traffic comes and outlive it. Cost: linear in replicas plus 4,096
references per endpoint that changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controller_service.core.desired import Desired
from controller_service.core.observed import Observed, ObservedReplica, ReplicaState
from controller_service.core.partitions import Incarnation, PartitionOwnership
from controller_service.core.roster import NO_ROSTER, IncarnationRoster, ListedIncarnation
from slotmesh.spec.model import Backend, TrafficPolicy

_LISTED: Final = frozenset({ReplicaState.READY, ReplicaState.DRAINING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedReplica:
    """A replica that takes calls, or drains."""

    replica_id: str
    incarnation: str
    address: str
    max_ongoing: int
    draining: bool
    process: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBackend:
    """A backend and its replicas, by id."""

    settings: Backend
    """As far as routers read it."""
    replicas: tuple[ListedReplica, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEndpoint:
    """An endpoint, its policy and the owners of its partitions."""

    name: str
    traffic: TrafficPolicy | None
    ownership: PartitionOwnership | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The content of a routing table, in the order of names."""

    endpoints: tuple[ListedEndpoint, ...] = ()
    backends: tuple[ListedBackend, ...] = ()
    router_addresses: tuple[str, ...] = ()

    def members(self) -> list[ListedIncarnation]:
        """The incarnations that are listed."""
        return [
            ListedIncarnation(
                owner=Incarnation(replica.replica_id, replica.incarnation),
                backend=backend.settings.name,
                address=replica.address,
                max_ongoing=replica.max_ongoing,
                draining=replica.draining,
                process=replica.process,
            )
            for backend in self.backends
            for replica in backend.replicas
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedTable:
    """Routes, and the version under which they are announced."""

    generation: str
    revision: int
    routes: Routes
    roster: IncarnationRoster = NO_ROSTER


def build_routes(desired: Desired, observed: Observed) -> Routes:
    """The routes that follow from the states."""
    known = observed.by_backend.keys() | {elder.backend for elder in observed.elders.values()}
    draining_only = known - desired.backends.keys()
    backends = [
        *desired.backends.values(),
        # Deleted, but something may still run there.
        *(Backend(name=name) for name in draining_only if any(map(_is_listed, observed.incarnations(name)))),
    ]
    return Routes(
        endpoints=tuple(
            ListedEndpoint(name=name, traffic=endpoint.traffic, ownership=desired.ownership.get(name))
            for name, endpoint in sorted(desired.endpoints.items())
        ),
        backends=tuple(_backend_route(it, observed) for it in sorted(backends, key=lambda backend: backend.name)),
        router_addresses=tuple(sorted({router.address for router in observed.routers.values() if router.address})),
    )


def _backend_route(backend: Backend, observed: Observed) -> ListedBackend:
    listed = sorted(filter(_is_listed, observed.incarnations(backend.name)), key=lambda it: it.owner)
    return ListedBackend(
        settings=backend.routed(),
        replicas=tuple(
            ListedReplica(
                replica_id=replica.replica_id,
                incarnation=replica.incarnation,
                address=replica.address,
                max_ongoing=replica.max_ongoing,
                draining=not replica.takes_calls,
                process=replica.process,
            )
            for replica in listed
        ),
    )


def _is_listed(replica: ObservedReplica) -> bool:
    return bool(replica.address) and not replica.gone and (replica.state in _LISTED or replica.ready_at is not None)
