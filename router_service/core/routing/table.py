"""The routing table as the router sees it: a value, replaced as a whole.

Purpose: endpoints, backends, replicas and partition owners in domain terms.
Invariants: immutable; `supersedes` keeps configuration from ever going back, and routers from forgetting replicas.
Endpoints and backends that are as in the table before are the same objects, by which the scheduler knows that.
Owner: made at the edge from each table frame, read by the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from router_service.core.routing.partition_owners import NO_OWNERS, PartitionOwners
from router_service.core.routing.rosters import NO_ROSTER, ReplicaKey, TableRoster
from slotmesh.spec.model import Backend, GrpcServices
from slotmesh.spec.prospect import Prospect
from slotmesh.spec.tenants import TenantLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """One replica of a backend."""

    key: ReplicaKey
    address: str
    max_ongoing: int
    draining: bool = False
    process: str = ""
    """Which process it is, as it has said: for a controller that does not remember."""
    is_suspect: bool = False
    """The controller does not hear of it: unkeyed calls go to others, as long as there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRoute:
    """One backend and its replicas."""

    settings: Backend
    """What should run, as far as routers read it."""
    replicas: Sequence[ReplicaRoute] = ()
    prospect: Prospect = Prospect.UNKNOWN
    """What becomes of it, while none of its replicas is ready."""
    unknown_balancer: int | None = None
    """The number of a balancer that this version does not know: `settings.balancer` is used. None: it is known."""

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
    """Of the term in which it was announced: brought to controllers, and read by them alone."""

    def supersedes(self, other: RoutingTable) -> bool:
        """Whether this table may replace the other.

        The first one does, and a newer one of the same generation. One of another generation does if it covers the
        other: if its controller knows all replicas that the other names.
        """
        if self.generation == other.generation:
            return self.revision > other.revision
        return not other.revision or self.roster.covers_all([other.roster.version])
