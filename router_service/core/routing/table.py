"""The routing table as the router sees it: a value, replaced as a whole.

Purpose: endpoints, backends, replicas and partition owners in domain terms.
Invariants: immutable; `supersedes` keeps configuration from ever going back, and routers from forgetting replicas.
Owner: made at the edge from each table frame, read by the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from router_service.core.routing.rosters import NO_ROSTER, ReplicaKey, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """One replica of a backend."""

    key: ReplicaKey
    address: str
    max_ongoing: int
    draining: bool = False


class BalancerName(Enum):
    """How a replica is picked for unkeyed calls. The values are those of `slotmesh.v1.Balancer`."""

    LEAST_LOADED = 1
    POWER_OF_TWO = 2
    ROUND_ROBIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRoute:
    """One backend: its replicas, the bounds of its queue, and how calls travel to it."""

    name: str
    replicas: Sequence[ReplicaRoute] = ()
    max_queued_calls: int = 20_000
    max_queued_bytes: int = 256 * 1024 * 1024
    max_queue_time_s: float = 30.0
    balancer: BalancerName = BalancerName.LEAST_LOADED
    unknown_balancer: int | None = None
    """The number of a balancer that this version does not know; `balancer` stands in for it. None where it knows it."""
    max_batch_size: int = 1024
    """Calls that travel to a replica as one batch, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRoute:
    """One endpoint: how its calls are divided and who owns its partitions."""

    name: str
    weights: Mapping[str, float] | None = None
    """Share of each backend; None without a policy: calls wait."""
    shadows: Mapping[str, float] = field(default_factory=dict)
    """Backends that get a sampled copy: probability of each."""
    owners: Sequence[tuple[ReplicaKey | None, int]] = ()
    """Owner and epoch of each partition; empty means none for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """All that a router must know."""

    generation: str = ""
    revision: int = 0
    endpoints: Mapping[str, EndpointRoute] = field(default_factory=dict)
    backends: Mapping[str, BackendRoute] = field(default_factory=dict)
    router_addresses: Sequence[str] = ()
    roster: Roster = NO_ROSTER

    def supersedes(self, other: RoutingTable) -> bool:
        """Whether this table may replace the other.

        The first one does, and a newer one of the same generation. One of another generation does if it covers the
        other: if its controller knows all replicas that the other names.
        """
        if self.generation == other.generation:
            return self.revision > other.revision
        return not other.revision or self.roster.covers_all([other.roster.version])
