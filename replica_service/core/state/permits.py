"""Permits: how many calls may run, how many do, and which unkeyed calls wait for a permit.

Invariants: `in_use <= max_ongoing` unless `max_ongoing` was lowered meanwhile; `waiting` counts the unkeyed calls in
the queue, and those whose payloads are under way. Lanes wait in a queue of their own (`state/lanes.py`); a call in a
slot has the permit of the slot and waits for none.
Owner: the scheduler, whose parts take permits here and give them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from replica_service.core.calls.runs import ReplicaRun, RouterPeer

# The load of the replica, as it is reported to one router.


@dataclass(frozen=True, slots=True)
class PermitCapacity:
    """Counts calls. What the router may send is `max_ongoing + prefetch - others` less what it has sent."""

    max_ongoing: int
    prefetch: int
    keyed_window: int
    draining: bool
    others: int
    """Permits in use and unkeyed calls that wait, without the unkeyed calls of this router that are not in slots."""


class Permits:
    """The permits of one replica, and the queue of unkeyed calls."""

    __slots__ = ("in_use", "max_ongoing", "prefetch", "queue", "waiting")

    def __init__(self, max_ongoing: int, prefetch: int) -> None:
        self.max_ongoing = max_ongoing
        self.prefetch = prefetch
        """Unkeyed calls that may wait for a permit."""
        self.in_use = 0
        """Calls that run or are in a batcher, lanes that have their turn, slots."""
        self.waiting = 0
        """Unkeyed calls and reservations without a permit."""
        self.queue: deque[ReplicaRun] = deque()
        """Unkeyed runs with calls that wait for permits, by age. Some may have been emptied by a cancel."""

    @property
    def has_room(self) -> bool:
        """Whether one unkeyed call more would be taken."""
        return self.in_use + self.waiting < self.max_ongoing + self.prefetch

    def wait_first(self, run: ReplicaRun) -> None:
        """The run, which was here before, waits again, before all others."""
        self.waiting += run.hi - run.lo
        self.queue.appendleft(run)


# Which router is told next that there is room again.
#
# A router whose call has ended knows of the free permit at once, by the result. Routers that were told of no room do
# not,
# and if all of them were told, all but one would send in vain. So the router whose call ended has a head start, and
# then
# one router after another is told, a head start apart, for as long as none has sent a call. Which one is drawn at
# random,
# as is whether there is a head start at all: otherwise routers that always have calls to send would keep the permits
# that
# they happen to have, and some of them would always have too few.
# Invariants: a router is told only while there is room, and at most once a gap, which is jittered.
# Owner: the scheduler.

CAPACITY_GAP_S = 0.1
"""A router that had no room is told of room at most this often, unless results tell it anyway."""
_HEAD_START = 1.5
"""In reactions: a little more than the time that a router needs to come. With less, others would come in vain."""
_NO_HEAD_START = 0.25
"""Share of the freed slots that two routers race for. Each race that both run costs a refusal."""
_SLOWER = 1.05
"""By how much a reaction may be slower than the quickest before, so that what was quick once is forgotten."""
_LEAST_REACTION = 0.01
"""In gaps."""


class Vacancies:
    """Links that wait for room. All times are monotonic seconds."""

    def __init__(self, gap_s: float, chance: Callable[[], float]) -> None:
        """`gap_s` is the longest gap between two capacity frames to one router; `chance` draws from [0, 1)."""
        self._gap_s = gap_s
        self._chance = chance
        self.full: dict[RouterPeer, None] = {}
        """Links that were told that there is no room: a set that keeps its order. Nothing is due while it is empty."""
        self.tell_at = inf
        """When the next one is told, if there is still room then; infinite while there is none, or no router waits."""
        self._reaction_s = gap_s
        """How soon a router sends once it was told of room: about a round trip. The quickest seen lately."""

    def told(self, link: RouterPeer, *, is_full: bool) -> None:
        """A frame with the capacity goes to the router."""
        if is_full:
            self.full[link] = None
        else:
            self.full.pop(link, None)
            if not self.full:
                self.tell_at = inf

    def freed(self, link: RouterPeer, now: float) -> None:
        """A call of the router has ended, and that made room."""
        if self.full:
            link.freed_at = now

    def came(self, link: RouterPeer, now: float) -> None:
        """A router that a call's end had made room for has sent a run."""
        if link.freed_at is not None:
            reaction_s = min(now - link.freed_at, self._reaction_s * _SLOWER, self._gap_s)
            self._reaction_s = max(reaction_s, self._gap_s * _LEAST_REACTION)
            link.freed_at = None

    def due(self, now: float, *, has_room: bool) -> RouterPeer | None:
        """The router that has to be told now, if any; ask again until there is none."""
        if not has_room or not self.full:
            self.tell_at = inf
            return None
        if self.tell_at == inf:
            self.tell_at = now if self._chance() < _NO_HEAD_START else now + self._head_start_s()
        if now < self.tell_at:
            return None
        may_hear = [link for link in self.full if link.untold_until <= now]
        if not may_hear:
            self.tell_at = min(link.untold_until for link in self.full)
            return None
        link = may_hear[int(self._chance() * len(may_hear))]
        del self.full[link]
        link.untold_until = now + self._gap_s * (1.0 + self._chance()) / 2
        self.tell_at = now + self._head_start_s() if self.full else inf
        return link

    def _head_start_s(self) -> float:
        return min(self._reaction_s * _HEAD_START, self._gap_s)
