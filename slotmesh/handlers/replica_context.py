"""The replica that a handler runs in: `slotmesh.replica()`, also in constructors and background tasks.

Invariants: immutable; what the controller changes makes a new value. Before the handler is constructed, the first
configuration has arrived.
Owner: the replica sets `current_replica` before it runs code of its handler; tests of handlers may, by
`slotmesh.testing`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """One replica, as its handler sees it."""

    replica_id: str = ""
    """Unique in the mesh; empty in a replica that belongs to no mesh."""
    backend: str = ""
    """The backend that it runs."""
    version: str = ""
    """The `version` of that backend with which the handler was constructed; empty if it has none."""
    rank: int | None = None
    """Its rank among the live replicas of the backend: the lowest that was free, from 0. None: no controller, or one
    of a version without ranks, has assigned one."""
    num_replicas: int | None = None
    """The number of replicas that the backend should have now. None: unknown, as for `rank`."""
    devices: tuple[str, ...] = ()
    """The devices that the replica holds, each as `cuda=0`, or `cuda=0@0.5` for a share of one."""


class OwnReplica:
    """The newest context of one replica. Read on any thread, replaced as a whole by the replica."""

    __slots__ = ("current",)

    def __init__(self, current: ReplicaContext | None = None) -> None:
        self.current = current or ReplicaContext()


current_replica: ContextVar[OwnReplica | None] = ContextVar("slotmesh.replica", default=None)
"""Set before code of a handler runs."""


class ReplicaOfProcess:
    """The replica of a process that runs one: threads that a handler starts have no context variables."""

    __slots__ = ("own",)

    def __init__(self) -> None:
        self.own: OwnReplica | None = None


of_process = ReplicaOfProcess()


def replica() -> ReplicaContext:
    """The replica that this code runs in, as of now: in methods, constructors, hooks, and tasks of a handler.

    Rank and number of replicas may change while it runs: read them when they are needed.

    Raises:
        RuntimeError: not in a handler.
    """
    own = current_replica.get() or of_process.own
    if own is None:
        raise RuntimeError(
            "slotmesh.replica() outside of a handler: call it in the constructor, in methods, or in what they start;"
            " in a test, slotmesh.testing.replica_context sets one"
        )
    return own.current
