"""Notices for people who watch the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controller_service.core.partitions import PartitionOwnership, count_moves


class EventKind(Enum):
    """Kinds of events. The values are those of `slotmesh.v1.EventKind`."""

    BACKEND_CREATED = 1
    BACKEND_UPDATED = 2
    BACKEND_DELETED = 3
    ENDPOINT_CREATED = 4
    ENDPOINT_UPDATED = 5
    ENDPOINT_DELETED = 6
    REPLICA_LAUNCHED = 7
    """Its process was started."""
    REPLICA_ATTACHED = 8
    """It has its stream to the controller."""
    REPLICA_STARTING = 9
    REPLICA_READY = 10
    REPLICA_DRAINING = 11
    REPLICA_STOPPED = 12
    REPLICA_FAILED = 13
    """Its process could not be started, or its handler could not be constructed, or reconfigured."""
    REPLICA_SUSPECT = 14
    """It has been silent for longer than its lease."""
    REPLICA_UNHEALTHY = 15
    """Three of its health checks have failed in a row."""
    REPLICA_EXITED = 16
    """Its process was reaped."""
    ROUTER_ATTACHED = 17
    ROUTER_LEFT = 18
    TABLE_BROUGHT = 19
    """A controller that did not remember has learnt from a router's table."""
    PARTITIONS_MOVED = 20
    """They have a new owner."""
    PARTITIONS_LEAVING = 21
    """Their owner has been ordered to give them up."""
    PARTITIONS_ORPHANED = 22
    """They have no owner: no replica is ready."""
    REPLICA_FOUND = 23
    """Its process runs on from before this controller's start: it was not started again."""
    REPLICA_DEAD = 24
    """It was silent for too long: its process is killed, and another one is started in its place."""
    BACKEND_CRASH_LOOPING = 25
    """Its replicas end soon after their start, again and again: the next start waits."""
    BACKEND_SCALED = 26
    """Another number of its replicas should run, by its load."""
    ROLLOUT_STARTED = 30
    """Replicas are being replaced, since what they are started with was changed."""
    ROLLOUT_COMPLETE = 31
    ROLLOUT_TAKEN_BACK = 32
    """The new replicas fail: the settings before are in force again."""
    TRAFFIC_SHIFT_STARTED = 40
    TRAFFIC_SHIFT_STEPPED = 41
    """Its next step is in force."""
    TRAFFIC_SHIFT_COMPLETE = 42
    TRAFFIC_SHIFT_TAKEN_BACK = 43
    """A guard has tripped: the weights before are in force again."""
    TRAFFIC_SHIFT_ENDED = 44
    """Somebody has ended it, or changed the weights meanwhile."""
    ROUTE_CREATED = 50
    ROUTE_UPDATED = 51
    ROUTE_DELETED = 52
    STATE_OUTDATED = 60
    """A member holds a newer table than the state file: nothing is reconciled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that happened."""

    kind: EventKind
    subject: str
    """What it is about: `replica/digits-v1-x7f3q`."""
    message: str
    """What happened, for a person."""


def told_of_moves(before: PartitionOwnership | None, after: PartitionOwnership) -> list[tuple[EventKind, str]]:
    """What notices say where the partitions of an endpoint get, leave or lose their owners."""
    given, orphaned = count_moves(before, after)
    leaving = len(set(after.leaving).difference(() if before is None else before.leaving))
    told = [
        (EventKind.PARTITIONS_MOVED, given, f"have a new owner, among {len(after.owners)} owners"),
        (EventKind.PARTITIONS_LEAVING, leaving, "leave their owners for others"),
        (EventKind.PARTITIONS_ORPHANED, orphaned, "have no owner: no replica is ready"),
    ]
    return [(kind, f"{count} partitions {what}") for kind, count, what in told if count]
