"""The state of the mesh, as a controller reports it: values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy

READY_STATE = "READY"
FAILED_STATE = "FAILED"
STARTING_STATE = "STARTING"
ENDED = frozenset({"STOPPED", FAILED_STATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """A replica, as the controller sees it."""

    replica_id: str
    backend: str
    state: str
    """Name of a `ReplicaState` without its prefix, as `READY`."""
    address: str = ""
    pid: int = 0
    """0 where it is not known."""
    max_ongoing: int = 0
    error: str = ""
    """Why it failed, traceback included."""
    start_time: datetime | None = None
    metrics_address: str = ""
    warning: str = ""
    """A problem that operators should know, while the replica keeps running."""
    restart_count: int = 0
    """How often one was started in place of another, up to this one."""
    last_exit: str = ""
    """How its process has ended, or that of the one before it; empty where that is not known."""
    last_output: str = ""
    """The last lines that that process has written."""
    end_reason: str = ""
    """Why it ends or has ended, as it has reported itself."""
    version: str = ""
    """Of slotmesh."""
    handler_version: str = ""
    """Of the handler's code that it was started with; empty if the controller does not know it."""
    outdated: bool = False
    """It runs another handler or configuration than its backend has now, and will be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterStatus:
    """A router, as the controller sees it."""

    router_id: str
    address: str
    generation: str
    revision: int
    """Of the routing table in force there."""
    linked_replica_ids: frozenset[str]
    start_time: datetime | None = None
    metrics_address: str = ""
    version: str = ""
    """Of slotmesh."""
    end_reason: str = ""
    """Why it ends, as it has reported itself."""
    shadows: Mapping[str, ShadowCount] = field(default_factory=lambda: MappingProxyType({}))
    """By backend, for those that got copies, or should have."""


@dataclass(frozen=True, slots=True)
class ShadowCount:
    """What became of copies of calls for a shadow, since the start of the routers that count them."""

    copies: int = 0
    """Ended one way or another, dropped ones included."""
    dropped: int = 0
    """For want of a free slot."""
    failed: int = 0
    """For what the backend is, or not answered in time."""

    def __add__(self, other: ShadowCount) -> ShadowCount:
        return ShadowCount(self.copies + other.copies, self.dropped + other.dropped, self.failed + other.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members, and the version of the newest routing table."""

    replicas: tuple[ReplicaStatus, ...]
    routers: tuple[RouterStatus, ...]
    generation: str
    revision: int

    def ready(self, backend: str | None = None) -> frozenset[str]:
        """Ids of the replicas that take calls: of one backend, or all."""
        return frozenset(
            replica.replica_id
            for replica in self.replicas
            if replica.state == READY_STATE and backend in {None, replica.backend}
        )

    def attached(self, backend: str) -> frozenset[str]:
        """Ids of the replicas of a backend that have not ended, ready or not."""
        return frozenset(it.replica_id for it in self.replicas if it.backend == backend and it.state not in ENDED)

    def is_current(self, router: RouterStatus) -> bool:
        """Whether the newest routing table is in force at a router."""
        return (router.generation, router.revision) == (self.generation, self.revision)

    def shadow(self, backend: str) -> ShadowCount:
        """The copies of calls for a backend as a shadow, at all routers that are attached."""
        return sum((it.shadows[backend] for it in self.routers if backend in it.shadows), ShadowCount())

    def behind(self, revision: int) -> tuple[RouterStatus, ...]:
        """The routers where no table of this revision, or a newer one, is in force yet."""
        return tuple(
            router for router in self.routers if router.generation != self.generation or router.revision < revision
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """The newest rollout of a backend."""

    backend: str
    phase: str
    """Name of a `RolloutPhase` without its prefix, as `PROGRESSING`."""
    handler: str
    version: str
    wanted: int
    """Replicas that should run."""
    current: int
    """Replicas that run the new settings."""
    available: int
    """Those of them that have been ready for long enough."""
    outdated: int
    """Replicas that run older settings, those that drain included."""
    start_time: datetime | None = None
    trouble: str = ""
    """What is wrong now."""
    taken_back: str = ""
    """Why the rollout before this one was taken back."""
    taken_back_time: datetime | None = None
    paused: bool = False
    """It was paused and not resumed. Controllers of older versions do not report it."""

    @property
    def is_paused(self) -> bool:
        """Whether it is paused now, or the next one will be."""
        return self.paused or self.phase == "PAUSED"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of waiting."""
        return self.phase in {"COMPLETE", "PAUSED", "FAILING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCalls:
    """What has become of a backend's calls in the present step of a shift."""

    backend: str
    calls: int
    failed: int
    unanswered: int
    p99_s: float | None
    """An upper bound; None where it is not known, or above 30 s."""
    is_shadow: bool = False
    """They are copies of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftStatus:
    """The newest shift of an endpoint's traffic."""

    endpoint: str
    phase: str
    """Name of a `ShiftPhase` without its prefix, as `SHIFTING`."""
    from_weights: Mapping[str, float]
    to_weights: Mapping[str, float]
    step_number: int
    steps: int
    every_s: float
    guards: tuple[str, ...]
    """As people write them: `p99=200ms`."""
    min_calls: int
    start_time: datetime
    step_time: datetime
    end_time: datetime | None
    who: str
    reason: str
    """Why it ended."""
    waits_for: str
    figures: tuple[StepCalls, ...]
    awaited_backends: tuple[str, ...] = ()
    """Backends whose rollouts have to be complete before all of the traffic moves; empty for other shifts."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for rollouts, and no weight has changed yet."""
        return self.is_under_way and bool(self.awaited_backends)

    @property
    def is_under_way(self) -> bool:
        return self.phase == "SHIFTING"

    @property
    def is_there(self) -> bool:
        """Whether it got where it should."""
        return self.phase == "COMPLETE"

    @property
    def is_taken_back(self) -> bool:
        """Whether a guard, or a rollout that it waited for, has ended it."""
        return self.phase == "TAKEN_BACK"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStatus:
    """The role of a controller, as it reports it."""

    address: str
    leads: bool
    term: int = 0
    """Under which it leads; 0 where it does not, or does not say."""
    leader_address: str = ""
    """Of the controller that leads; empty where that is not known."""
    standby_addresses: tuple[str, ...] = ()
    """Of those that stand by for it."""
    newer_members: tuple[str, ...] = ()
    """Why it reconciles nothing: members that know a newer state than its store. Empty: it does."""
    knows_request_ids: bool = False
    """A request that is repeated with its id is carried out once there."""
    generation: str = ""
    """Of its store; empty where it does not report it. With the term it identifies the start of a leader."""

    @property
    def is_on_hold(self) -> bool:
        """Whether it reconciles nothing."""
        return bool(self.newer_members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The mesh: its configuration, and its members."""

    backends: tuple[Backend, ...]
    endpoints: tuple[Endpoint, ...]
    members: Members
    scaled_to: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many replicas should run, of backends whose number follows from their load."""
    rollouts: tuple[RolloutStatus, ...] = ()
    """By backend; none where the controller does not launch replicas."""
    shifts: tuple[ShiftStatus, ...] = ()
    """The newest of each endpoint that was ever shifted, by endpoint."""
    revision: int = 0
    """Of the configuration; it has what shifts that are complete have changed."""
    controller: ControllerStatus | None = None
    """The controller that was asked."""

    @property
    def is_on_hold(self) -> bool:
        """Whether the controller reconciles nothing, since members know a newer state than its store."""
        return self.controller is not None and self.controller.is_on_hold

    def wanted(self, backend: Backend) -> int | None:
        """How many replicas should run; None: any number."""
        return self.scaled_to.get(backend.name, backend.num_replicas)

    def traffic_of(self, endpoint: str) -> TrafficPolicy | None:
        """The policy of an endpoint, if both are there."""
        return next((each.traffic for each in self.endpoints if each.name == endpoint), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleStatus:
    """What a look at the load of a backend came to."""

    time: datetime | None
    from_replicas: int
    to_replicas: int
    reason: str
    ready: int
    starting: int
    queued: int
    ongoing: int
    queue_time_s: float
    routers: int
    late_routers: int
    silent_routers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDescription:
    """A backend, and what has become of it."""

    backend: Backend
    revision: int
    replicas: tuple[ReplicaStatus, ...]
    wanted_replicas: int | None
    """None: any number."""
    rollout: RolloutStatus | None = None
    """None where the controller launches no replicas."""
    latest_decision: ScaleStatus | None = None
    latest_change: ScaleStatus | None = None


@dataclass(frozen=True, slots=True)
class RevisionChange:
    """What a revision did to one backend or endpoint."""

    subject: str
    """`backend/NAME` or `endpoint/NAME`."""
    change: str
    """`created`, `updated` or `deleted`."""
    fields: tuple[str, ...]
    """Of one that was updated: the settings that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A revision of the configuration, as the controller has it in its history."""

    revision: int
    base_revision: int
    time: datetime | None
    who: str
    note: str
    changes: tuple[RevisionChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedLines:
    """What a replica has written."""

    replica_id: str
    lines: tuple[str, ...]
    """Oldest first."""
    missed: int = 0
    """Lines before these that are not kept any more."""
