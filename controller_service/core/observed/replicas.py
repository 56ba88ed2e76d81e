"""Replicas as the controller observes them: one process that runs a handler, its restarts, and groups by backend.

Invariants: immutable; `transitions` changes them. A launched replica that ended unasked leaves one place, the oldest of
which the next replica takes that is started with the same template; one that was asked to end leaves none. Places are
bounded (`EXITS_KEPT`).
Owner: `core.observed`, of which this is a part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final
from zlib import crc32

from controller_service.core.partition_owners import Incarnation
from slotmesh.spec.environment import ProcessFacts

EXITS_KEPT: Final = 256
"""Of all backends, the newest ones."""
STARTS_KEPT: Final = 8
"""Of one place, the newest ones: more than the deaths that make a crash loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreplacedExit:
    """A launched replica has ended unasked, and none was started in its place."""

    backend: str
    template: str
    """What it was started with."""
    restarts: int
    how: str
    last_output: str = ""
    """The last lines that it has written."""
    starts: tuple[float, ...] = ()
    """When it was started, and the newest of those before it in this place; oldest first, `STARTS_KEPT` at most."""


UnreplacedExits = tuple[UnreplacedExit, ...]
"""Oldest first."""


def with_exit(exits: UnreplacedExits, exit_: UnreplacedExit) -> UnreplacedExits:
    """One more has ended."""
    return (*exits, exit_)[-EXITS_KEPT:]


def take_place(exits: UnreplacedExits, backend: str, template: str) -> tuple[UnreplacedExits, UnreplacedExit | None]:
    """A replica was started: the exits left, and the one whose place it takes; None if none has its template."""
    for at, each in enumerate(exits):
        if (each.backend, each.template) == (backend, template):
            return (*exits[:at], *exits[at + 1 :]), each
    return exits, None


RETIRED_KEPT: Final = 16
"""Replaced incarnations remembered for each replica id."""


class ReplicaState(Enum):
    """Where a replica is in its life. The values are those of `slotmesh.v1.ReplicaState`."""

    STARTING = 1
    READY = 2
    DRAINING = 3
    STOPPED = 4
    FAILED = 5
    SUSPECT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReplica:
    """One process that runs a backend's handler."""

    replica_id: str
    backend: str
    state: ReplicaState
    """The state of its last report, or that follows from its end. Never SUSPECT: `suspect_since` has that."""
    started_at: float
    """When it was launched or attached first, seconds (monotonic)."""
    incarnation: str = ""
    """Empty until it attached."""
    address: str = ""
    pid: int = 0
    max_ongoing: int = 0
    error: str = ""
    """What is wrong with it."""
    warning: str = ""
    """What operators should know although the replica continues."""
    end_reason: str = ""
    """Why it ends, as it has reported; empty while it does not."""
    metrics_address: str = ""
    launched: bool = False
    """This controller started the process and will learn of its end."""
    template: str = ""
    """What the process was started with: one that differs from its backend's is outdated."""
    fixed: str = ""
    """The part of the template that it cannot take on without a restart."""
    handler_version: str = ""
    """Of the code that it was started with; empty if it is not known."""
    reconfigures: bool = False
    """It takes a new `user_config` without a restart: only the fixed part makes it outdated."""
    is_unhealthy: bool = False
    """It has reported that its health checks fail. It takes calls for as long as no other replica does."""
    ready_at: float | None = None
    """When it was ready first."""
    ended_at: float | None = None
    """When it reported that it stopped or failed."""
    suspect_since: float | None = None
    """When its silence outlasted its lease; None while it reports. It may well be alive, and serve."""
    silent_since: float | None = None
    """With `suspect_since`: when its newest report was read, or later. None: this controller has read none."""
    is_drain_requested: bool = False
    order: str = ""
    """Why this controller has ordered it to drain, if it also launched it: then its launcher sends SIGTERM, too."""
    gone: bool = False
    """It is proven that it starts nothing any more: docs/guarantees.md lists the proofs."""
    reaped: bool = False
    """Its process has ended. Known of launched ones only."""
    retired: tuple[str, ...] = ()
    """Incarnations that it replaced; bounded."""
    process: str = ""
    """The identity of its process; empty if its machine provides none."""
    served_under: str = ""
    """The generation, an earlier one, that it served under before it attached here."""
    named_by: tuple[str, int] | None = None
    """The generation and the roster's revision of the table that named it, for as long as it has not attached here."""
    must_fence_through: int = 0
    """Nothing up to this epoch may start there before it is given anything; what others gave it is not newer."""
    fenced_through: int = 0
    """It has reported that it starts nothing that was sent at this epoch or an older one."""
    busy: Mapping[str, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))
    """Partitions, by endpoint, of which something still ran there when it was fenced."""
    version: str = ""
    """Of slotmesh; empty until it attached."""
    restarts: int = 0
    """How often one was started in place of another, up to this one."""
    earlier_starts: tuple[float, ...] = ()
    """When the newest of these were started, seconds (monotonic); bounded."""
    last_exit: str = ""
    """How its process has ended, or that of the one before it; empty where that is not known."""
    last_output: str = ""
    """The last lines that that process has written; empty where they are not known."""
    fenced_after_s: float = 0.0
    """Its process ends this time after the newest acknowledged report; 0 if it does not fence itself."""
    process_began_s: float | None = None
    """When its process started, by the clock of its machine, seconds since 1970; for display, None if not reported."""
    pod_uid: str = ""
    """Of the Kubernetes pod that it runs in, as it has reported; empty where it is not known."""
    zone: str = ""
    """Where it runs, as it has reported; empty where it is not known."""
    process_facts: ProcessFacts | None = None
    """How its process runs, as it has reported; None: unknown."""
    waits_for: str = ""
    """Why the system that starts its process has not started it, for a person; empty once it has."""
    devices: tuple[str, ...] = ()
    """What it holds, as its launcher knows or it has reported: `cuda=0`, or `cuda=0@0.5` for a share of one."""
    rank: int | None = None
    """Among the live replicas of its backend, from 0 (`ranks`), or the last one it had; None: it has had none."""
    has_not_started: bool = False
    """Its process could not be started: there was none."""
    is_given_up: bool = False
    """It was silent for too long, and its process is being killed. It is not gone before that was reaped."""

    @property
    def is_ending(self) -> bool:
        """It will end, or has; its process may still be there."""
        return self.gone or self.is_drain_requested or self.is_given_up or self.ended_at is not None

    @property
    def owner(self) -> Incarnation:
        """The incarnation."""
        return Incarnation(self.replica_id, self.incarnation)

    @property
    def is_fenced(self) -> bool:
        """Nothing starts there that an earlier generation gave it."""
        return self.fenced_through >= self.must_fence_through

    @property
    def has_attached(self) -> bool:
        """It has had its stream to this controller."""
        return bool(self.incarnation) and self.named_by is None

    @property
    def shown_state(self) -> ReplicaState:
        """The state as operators see it."""
        return ReplicaState.SUSPECT if self.suspect_since is not None and not self.gone else self.state

    @property
    def is_over(self) -> bool:
        """There is nothing left to wait for."""
        return self.gone and (self.reaped or not self.launched)

    @property
    def takes_calls(self) -> bool:
        """It can own partitions and be picked."""
        if self.gone or self.is_drain_requested or self.is_given_up:
            return False
        return self.state is ReplicaState.READY

    def with_own_reason(self, text: str) -> str:
        """What the controller has seen of its end, and why it ends by its own report."""
        return f"{text}; its own reason: {self.end_reason}" if self.end_reason else text

    def having_replaced(self, *incarnations: str) -> ObservedReplica:
        """With older incarnations that have ended."""
        return replace(self, retired=(*self.retired, *filter(None, incarnations))[-RETIRED_KEPT:])


_SHARDS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """Figures over all replicas of a group."""

    must_fence_through: int
    """The largest of replicas that are not gone; 0 if there are none."""
    has_unfenced: bool
    awaits_fence: bool
    """One that reports is not fenced."""
    busy: Mapping[str, tuple[tuple[Incarnation, int], ...]]
    """Partitions, by endpoint, of which something still ran at replicas when they were fenced."""


class ReplicaGroup(Mapping[str, ObservedReplica]):
    """The replicas of one backend, by id.

    A mesh has thousands of replicas, and most changes concern one of them. A group is copied when one of its replicas
    changes; `facts`, which are asked of all replicas, are kept with each group, so that unchanged groups are not walked
    again. Immutable; `facts` follow from the group alone; two equal histories give the same order.
    """

    __slots__ = ("_facts", "_replicas")

    def __init__(self, replicas: dict[str, ObservedReplica]) -> None:
        """`replicas` belongs to the group from now on."""
        self._replicas: Final = replicas
        self._facts: GroupFacts | None = None

    def __getitem__(self, replica_id: str) -> ObservedReplica:
        return self._replicas[replica_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    def copy(self) -> dict[str, ObservedReplica]:
        """What the next group is made of."""
        return self._replicas.copy()

    def replicas(self) -> Iterator[ObservedReplica]:
        """In the order in which they came."""
        return iter(self._replicas.values())

    @property
    def facts(self) -> GroupFacts:
        """Found at first use."""
        if self._facts is None:
            self._facts = self._find_facts()
        return self._facts

    def _find_facts(self) -> GroupFacts:
        there = [it for it in self._replicas.values() if not it.gone]
        busy: defaultdict[str, list[tuple[Incarnation, int]]] = defaultdict(list)
        for replica in there:
            for endpoint, numbers in replica.busy.items():
                busy[endpoint] += ((replica.owner, number) for number in numbers)
        return GroupFacts(
            must_fence_through=max((it.must_fence_through for it in there), default=0),
            has_unfenced=any(not it.is_fenced for it in self._replicas.values()),
            awaits_fence=any(not it.is_fenced and it.suspect_since is None for it in there),
            busy={endpoint: tuple(each) for endpoint, each in busy.items()},
        )


class BackendIndex(Mapping[str, str]):
    """Backend of each replica, by id. What changes copies a small part of it."""

    __slots__ = ("_shards", "_size")

    def __init__(self, shards: tuple[dict[str, str], ...] = ({},) * _SHARDS, size: int = 0) -> None:
        self._shards: Final = shards
        self._size: Final = size

    def __getitem__(self, replica_id: str) -> str:
        return self._shards[_shard(replica_id)][replica_id]

    def __iter__(self) -> Iterator[str]:
        for shard in self._shards:
            yield from shard

    def __len__(self) -> int:
        return self._size

    def with_changes(self, changes: Mapping[str, str | None]) -> BackendIndex:
        """With other backends of these replicas; None: the replica is no more."""
        if not changes:
            return self
        by_shard: defaultdict[int, dict[str, str | None]] = defaultdict(dict)
        for replica_id, backend in changes.items():
            by_shard[_shard(replica_id)][replica_id] = backend
        shards, size = [*self._shards], self._size
        for number, each in by_shard.items():
            merged: dict[str, str | None] = {**shards[number], **each}
            kept = {replica_id: backend for replica_id, backend in merged.items() if backend is not None}
            size += len(kept) - len(shards[number])
            shards[number] = kept
        return BackendIndex(tuple(shards), size)


def _shard(replica_id: str) -> int:
    return crc32(replica_id.encode()) % _SHARDS


NO_REPLICAS: Final = ReplicaGroup({})
