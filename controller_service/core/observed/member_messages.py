"""What replicas report to the controller: who they are, and how they are.

Owner: made at the edge, read by `core.observed.transitions`.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller_service.core.observed.replicas import ReplicaState
from slotmesh.spec.environment import ProcessFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The identity that a replica reports when it attaches."""

    replica_id: str
    incarnation: str
    backend: str
    pid: int = 0
    has_served: bool = False
    """It may own partitions that an earlier generation gave it."""
    generation: str = ""
    """The generation that it served under, where that is an earlier one."""
    newest_epoch: int = 0
    """The newest owner epoch that it has seen."""
    process: str = ""
    version: str = ""
    """Of slotmesh."""
    fenced_after_s: float = 0.0
    """Its process ends this time after the newest acknowledged report; 0 if it does not fence itself."""
    process_began_s: float | None = None
    """When its process started, by the clock of its machine, seconds since 1970; None if not reported."""
    pod_uid: str = ""
    devices: tuple[str, ...] = ()
    zone: str = ""
    process_facts: ProcessFacts | None = None
    rank: int | None = None
    """The rank that it was given before; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReport:
    """The state that a replica reports."""

    state: ReplicaState
    address: str = ""
    max_ongoing: int = 0
    error: str = ""
    metrics_address: str = ""
    unhealthy: bool = False
    reconfigures: bool = False
    warning: str = ""
    end_reason: str = ""
    """Why it ends; empty while it does not."""
