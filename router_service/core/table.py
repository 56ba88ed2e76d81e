"""The routing table as the router sees it: a value, replaced as a whole.

Purpose: endpoints, backends, replicas and partition owners in domain terms.
Invariants: immutable; `supersedes` keeps configuration from ever going back.
Owner: made at the edge from each table frame, read by the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ReplicaKey = tuple[str, str]
"""(replica_id, incarnation): one life of one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRoute:
    """One replica of a backend."""

    key: ReplicaKey
    address: str
    max_ongoing: int
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRoute:
    """One backend: its replicas and the bounds of its queue."""

    name: str
    replicas: Sequence[ReplicaRoute] = ()
    max_queued_calls: int = 20_000
    max_queued_bytes: int = 256 * 1024 * 1024
    max_queue_time_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRoute:
    """One endpoint: how its calls are divided and who owns its partitions."""

    name: str
    weights: Mapping[str, float] | None = None
    """Share of each backend; None without a policy: calls wait."""
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

    def supersedes(self, other: RoutingTable) -> bool:
        """Whether this table may replace the other: another generation, or a higher revision of the same."""
        return self.generation != other.generation or self.revision > other.revision
