"""The content of routing tables, and the version under which it is announced.

Invariants: immutable, in one order; a table's revision is the store's and strictly increases with the content. What is
as in the table before is the same object (`route_builder`), so that what differs is found without a look at the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller_service.core.partitions import Incarnation, PartitionOwnership
from controller_service.core.roster import NO_ROSTER, IncarnationRoster
from slotmesh.spec.model import Backend, GrpcServices, TrafficPolicy
from slotmesh.spec.prospect import Prospect
from slotmesh.spec.tenants import TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedReplica:
    """A replica that takes calls, or drains."""

    replica_id: str
    incarnation: str
    address: str
    max_ongoing: int
    draining: bool
    process: str = ""
    template: str = ""
    """Not announced, nor are the next three: they are in the roster for the next start of the controller."""
    fixed: str = ""
    elder: bool = False
    fenced_after_s: float = 0.0
    suspect: bool = False
    """It is silent: unkeyed calls go to others, as long as there are any."""

    @property
    def owner(self) -> Incarnation:
        """The incarnation."""
        return Incarnation(self.replica_id, self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBackend:
    """A backend and its replicas, by id."""

    settings: Backend
    """As far as routers read it."""
    replicas: tuple[ListedReplica, ...]
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
