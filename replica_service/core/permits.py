"""Permits: how many calls may run, how many do, which unkeyed calls wait, and which router is notified of free permits.

Invariants: `in_use <= max_ongoing` unless `max_ongoing` was lowered meanwhile. `waiting` counts the unkeyed calls in
the queue and those whose payloads are still arriving. Lanes wait in a queue of their own (`lanes.py`); a call in
a slot uses the slot's permit. A router is notified of room only while there is room, and at most once per gap, which is
jittered.
Owner: the scheduler, whose parts take permits here and return them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from dataclasses import dataclass
from math import inf

from replica_service.core.runs import ReplicaRun, RouterPeer

CAPACITY_GAP_S = 0.1
"""A router that had no room is notified of room at most this often; results carry the capacity as well."""
_HEAD_START = 1.5
"""In reaction times: a little more than a router needs to send. With less, calls of others find no permit."""
_NO_HEAD_START = 0.25
"""Share of the freed permits that two routers race for. Each race costs a refusal."""
_SLOWER = 1.05
"""Factor by which the estimated reaction time may grow per sample, so that one quick sample does not last."""
_LEAST_REACTION = 0.01
"""The shortest reaction time that is assumed, in gaps."""


@dataclass(frozen=True, slots=True)
class PermitCapacity:
    """The load as reported to one router. The router may have sent `max_ongoing + prefetch - others` calls."""

    max_ongoing: int
    prefetch: int
    keyed_window: int
    draining: bool
    others: int
    """Permits in use and waiting unkeyed calls, except this router's own unkeyed calls outside slots."""


class Permits:
    """The permits of one replica, and the queue of unkeyed calls."""

    __slots__ = ("_lanes", "in_use", "max_ongoing", "prefetch", "queue", "waiting")

    def __init__(self, max_ongoing: int, prefetch: int, lanes: Sized = ()) -> None:
        """`lanes`: those that wait for permits."""
        self._lanes = lanes
        self.max_ongoing = max_ongoing
        self.prefetch = prefetch
        """Unkeyed calls that may wait for a permit."""
        self.in_use = 0
        """Held by running calls, calls in a batcher, lanes with a turn, and slots."""
        self.waiting = 0
        """Unkeyed calls and reservations without a permit."""
        self.queue: deque[ReplicaRun] = deque()
        """Unkeyed runs with calls that wait for permits, oldest first. Some may have been emptied by a cancel."""

    @property
    def room_to_wait(self) -> int:
        """How many unkeyed calls may wait for a permit.

        While lanes wait, at least one: they take each permit that becomes free before a router could use it, so
        unkeyed calls would only ever wait at routers.
        """
        return self.prefetch or (1 if self._lanes else 0)

    @property
    def has_room(self) -> bool:
        """Whether another unkeyed call would be accepted."""
        return self.in_use + self.waiting < self.max_ongoing + self.room_to_wait


class Vacancies:
    """Decides which router is notified next that there is room again. All times are monotonic seconds.

    A router whose call has ended learns of the free permit from the result. Routers with a report of no room do not,
    and if all were notified, calls of all but one would find none. So the router whose call ended has a head start, and
    then one router after another is notified, a head start apart, until one sends a call. It is drawn at random, as is
    whether there is a head start at all: otherwise routers that always have calls to send would keep the permits
    that they happen to have, and some of them would always have too few.
    """

    def __init__(self, gap_s: float, chance: Callable[[], float]) -> None:
        """`gap_s` is the longest gap between two capacity frames to one router; `chance` draws from [0, 1)."""
        self._gap_s = gap_s
        self._chance = chance
        self.full: dict[RouterPeer, None] = {}
        """Links whose last report stated no room: an ordered set. Nothing is due while it is empty."""
        self.notify_at = inf
        """When the next router is notified if there is room then; infinite while there is none, or no router waits."""
        self._reaction_s = gap_s
        """How soon a router sends after a notification, about a round trip: the quickest of recent samples."""

    def reported(self, link: RouterPeer, *, is_full: bool) -> None:
        """Notes that a frame with the capacity goes to the router."""
        if is_full:
            self.full[link] = None
        else:
            self.full.pop(link, None)
            if not self.full:
                self.notify_at = inf

    def freed(self, link: RouterPeer, now: float) -> None:
        """Notes that a call of the router has ended and made room."""
        if self.full:
            link.freed_at = now

    def came(self, link: RouterPeer, now: float) -> None:
        """Measures the reaction of a router that sends a run after its call's end had made room."""
        if link.freed_at is not None:
            reaction_s = min(now - link.freed_at, self._reaction_s * _SLOWER, self._gap_s)
            self._reaction_s = max(reaction_s, self._gap_s * _LEAST_REACTION)
            link.freed_at = None

    def due(self, now: float, *, has_room: bool) -> RouterPeer | None:
        """Returns a router to notify now, or None. To be called until it returns None."""
        if not has_room or not self.full:
            self.notify_at = inf
            return None
        if self.notify_at == inf:
            self.notify_at = now if self._chance() < _NO_HEAD_START else now + self._head_start_s()
        if now < self.notify_at:
            return None
        candidates = [link for link in self.full if link.silent_until <= now]
        if not candidates:
            self.notify_at = min(link.silent_until for link in self.full)
            return None
        link = candidates[int(self._chance() * len(candidates))]
        del self.full[link]
        link.silent_until = now + self._gap_s * (1.0 + self._chance()) / 2
        self.notify_at = now + self._head_start_s() if self.full else inf
        return link

    def _head_start_s(self) -> float:
        return min(self._reaction_s * _HEAD_START, self._gap_s)
