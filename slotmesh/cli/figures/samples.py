"""The controller's view at one moment, and its view a few seconds earlier. Pure values.

Invariants: a value that a member does not report is None, not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slotmesh.cli.snapshot import ReplicaStatus, RouterStatus


@dataclass(frozen=True, slots=True)
class EndedTotals:
    """How calls have ended since the start of a router."""

    total: int
    failed: int
    unanswered: int
    times: tuple[int, ...]
    """Those that ended well, by `slotmesh.histogram.CALL_TIMES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSample:
    """One tenant of an endpoint at a router."""

    name: str
    """Empty: all beyond the number of which the router keeps account."""
    calls_per_s: float
    refused_per_s: float
    unanswered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSample:
    """One backend at one router."""

    queued: int
    ongoing: int
    queue_time_s: float
    sent: int
    ended: EndedTotals | None
    """None from routers of older versions."""
    shadow_ended: EndedTotals | None = None
    """Of copies that it got as a shadow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSample:
    """One endpoint at one router."""

    accepted: int
    failed: int
    waiting: int
    ends: Mapping[str, EndedTotals]
    """By backend."""
    tenants: tuple[TenantSample, ...] = ()
    """The busiest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReport:
    """The values of one report of a router."""

    at_s: float
    """By the router's clock, seconds since 1970."""
    backends: Mapping[str, BackendSample]
    endpoints: Mapping[str, EndpointSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRouter:
    """A router, its newest report, and an earlier one of the same start."""

    status: RouterStatus
    age_s: float | None
    """Of the newest report; None: there is none."""
    newest: RouterReport | None
    earlier: RouterReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """One report of a replica. Totals are None where it is of an older version."""

    at_s: float
    """By the replica's clock, seconds since 1970."""
    ongoing: int
    slots: int
    waiting: int
    calls: int | None = None
    failed: int | None = None
    batches: int | None = None
    batched_calls: int | None = None
    times: tuple[int, ...] | None = None
    """Calls that have ended, by the time that they ran there; by `slotmesh.histogram.CALL_TIMES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledReplica:
    """A replica, its newest report, and an earlier one of the same incarnation."""

    status: ReplicaStatus
    newest: ReplicaSample | None
    earlier: ReplicaSample | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendNumbers:
    """How many replicas of a backend are where in their life."""

    name: str
    wanted: int | None
    """None: any number."""
    ready: int
    live: int
    failed: int
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSample:
    """All of one moment."""

    at_s: float
    """By the controller's clock, seconds since 1970."""
    generation: str
    revision: int
    weights: Mapping[str, Mapping[str, float]]
    """Of each endpoint, by backend; none of one without a policy."""
    backends: tuple[BackendNumbers, ...]
    replicas: tuple[SampledReplica, ...]
    unlisted_replicas: int
    routers: tuple[SampledRouter, ...]
