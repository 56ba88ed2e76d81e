"""Notices for people who watch the mesh, and which events are kept.

Invariants: the numbers of events ascend, over all feeds; the newest are kept, within a number and their bytes, those of
earlier controllers included; the bounds hold after each addition, but the newest event is always kept.
Owner: the feed; the archive reads what it has not stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Final, NamedTuple

from controller_service.core.partition_owners import PartitionOwnership, count_moves


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
    ROUTER_DETACHED = 18
    TABLE_RECOVERED = 19
    """A controller without its own memory of the mesh has learnt from a router's table."""
    PARTITIONS_MOVED = 20
    """They have a new owner."""
    PARTITIONS_REVOKED = 21
    """Their owner has been ordered to give them up."""
    PARTITIONS_ORPHANED = 22
    """They have no owner: no replica is ready."""
    REPLICA_ADOPTED = 23
    """Its process runs on from before this controller's start: it was not started again."""
    REPLICA_DEAD = 24
    """It was silent for too long: its process is killed, and another one is started in its place."""
    BACKEND_CRASH_LOOPING = 25
    """Its replicas end soon after their start, again and again: the next start waits."""
    BACKEND_SCALED = 26
    """Another number of its replicas should run, by its load."""
    ROLLOUT_STARTED = 27
    """Replicas are being replaced, since what they are started with was changed."""
    ROLLOUT_COMPLETE = 28
    ROLLOUT_ROLLED_BACK = 29
    """The new replicas fail: the settings before are in force again."""
    ROLLOUT_PAUSED = 30
    ROLLOUT_RESUMED = 31
    TRAFFIC_SHIFT_STARTED = 32
    TRAFFIC_SHIFT_STEPPED = 33
    """Its next step is in force."""
    TRAFFIC_SHIFT_COMPLETE = 34
    TRAFFIC_SHIFT_ROLLED_BACK = 35
    """A guard has tripped: the weights before are in force again."""
    TRAFFIC_SHIFT_ENDED = 36
    """An operator has ended it, or the weights were changed by another request meanwhile."""
    ROUTE_CREATED = 37
    ROUTE_UPDATED = 38
    ROUTE_DELETED = 39
    STATE_OUTDATED = 40
    """A member holds a newer table than the state file: nothing is reconciled."""
    CONTROLLER_LEADS = 41
    """A controller has begun to lead."""
    STATE_NOT_WRITABLE = 42
    """The leader's state cannot be written: changes are refused."""
    STATE_WRITABLE = 43
    """The leader's state can be written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that happened."""

    kind: EventKind
    subject: str
    """What it is about: `replica/digits-v1-x7f3q`."""
    message: str
    """What happened, for a person."""


def notices_of_moves(before: PartitionOwnership | None, after: PartitionOwnership) -> list[tuple[EventKind, str]]:
    """Kinds and texts of notices for the partitions of an endpoint that get, leave or lose their owners."""
    given, orphaned = count_moves(before, after)
    leaving = len(set(after.leaving).difference(() if before is None else before.leaving))
    moves = [
        (EventKind.PARTITIONS_MOVED, given, f"have a new owner, among {len(after.owners)} owners"),
        (EventKind.PARTITIONS_REVOKED, leaving, "leave their owners for others"),
        (EventKind.PARTITIONS_ORPHANED, orphaned, "have no owner: no replica is ready"),
    ]
    return [(kind, f"{count} partitions {what}") for kind, count, what in moves if count]


UNKNOWN: Final = -1
"""Some events were missed; their number is not known."""
FIRST_BY_CLOCK: Final = 10**12
"""A feed that cannot read the one before it has numbers above the milliseconds since 1970 at which it began."""
_EVENT_BYTES: Final = 100
"""What an event takes of the bound besides its texts."""


class EventBounds(NamedTuple):
    """What is kept of events, at most."""

    events: int = 10_000
    size: int = 8 * 1024 * 1024
    """Bytes of their texts, and 100 for each."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """A notice, its time in seconds since 1970, and its place."""

    feed: str
    """Of the controller that published it."""
    number: int
    """From 1 on. A feed continues the numbers of the one before it, or is above them where it could not read these."""
    time_s: float
    notice: Notice

    @property
    def size(self) -> int:
        """Its share of the bound, bytes."""
        notice = self.notice
        return _EVENT_BYTES + sum(len(text.encode("utf-8", "replace")) for text in (notice.subject, notice.message))


class KeptEvents:
    """The newest events, oldest first."""

    def __init__(self, bounds: EventBounds, earlier: Iterable[FeedEvent] = ()) -> None:
        self._bounds = bounds
        self._events: deque[FeedEvent] = deque()
        self._size = 0
        for event in earlier:
            self.add(event)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[FeedEvent]:
        return iter(self._events)

    @property
    def newest_number(self) -> int:
        """0 if there is no event."""
        return self._events[-1].number if self._events else 0

    @property
    def dropped_through(self) -> int:
        """Events up to this number are not kept."""
        return self._events[0].number - 1 if self._events else 0

    @property
    def missed_before(self) -> int:
        """How many events there were before the oldest one that is kept; UNKNOWN if their number is not known."""
        return UNKNOWN if self.dropped_through >= FIRST_BY_CLOCK else self.dropped_through

    def put_before(self, earlier: Sequence[FeedEvent]) -> None:
        """Events of earlier feeds, oldest first, that could not be read before: the newest ones, as far as they fit."""
        for event in reversed(earlier):
            if len(self._events) >= self._bounds.events or self._size + event.size > self._bounds.size:
                return
            self._events.appendleft(event)
            self._size += event.size

    def add(self, event: FeedEvent) -> None:
        self._events.append(event)
        self._size += event.size
        while len(self._events) > max(1, self._bounds.events) or (
            self._size > self._bounds.size and len(self._events) > 1
        ):
            self._size -= self._events.popleft().size

    def newer_than(self, number: int) -> list[FeedEvent]:
        """Events with larger numbers, oldest first."""
        newer = [*takewhile(lambda event: event.number > number, reversed(self._events))]
        return newer[::-1]

    def after(self, feed: str, number: int) -> tuple[list[FeedEvent], int]:
        """Events after one of a feed, and how many that followed on it are not kept: UNKNOWN if that is not known."""
        numbers = [event.number for event in self._events if event.feed == feed]
        if not numbers:
            return list(self._events), UNKNOWN
        if number > numbers[-1]:  # it was never stored, nor perhaps what followed on it
            return self.newer_than(numbers[-1]), UNKNOWN
        return self.newer_than(max(number, numbers[0] - 1)), max(0, numbers[0] - 1 - number)
