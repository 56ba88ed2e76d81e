"""Lanes: calls of one ordering key, one after another.

Purpose: keeps the order of each key, and serves the keys in turn.
Invariants: a lane is in exactly one place: idle (empty, and then dropped), in the ready queue, blocked (the payload of
its first call is under way, or a hook of the handler for its partition), or held by a turn or a batcher, with one
permit. Calls leave it in the order in which they came. A partition that moves away is kept apart for as long as one of
its lanes is left.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping

from replica_service.core.calls import ReplicaLane, ReplicaRun, RouterPeer

MAX_TURN_CALLS = 256
"""Calls that a lane executes before others get their turn."""
MAX_TURN_S = 0.050
"""Seconds after which a lane starts no further call before others got their turn."""


class Lanes:
    """All lanes that have calls, and those of them that wait for a permit."""

    __slots__ = ("_by_key", "_leaving", "calls", "on_returned", "ready")

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], ReplicaLane] = {}
        self._leaving: dict[tuple[str, int], int] = {}
        """Lanes that are left of each partition (endpoint, number) that moves away; no entry where there is none."""
        self.calls = 0
        """Keyed calls that are here, running or not."""
        self.ready: deque[ReplicaLane] = deque()
        """In the order of their turns."""
        self.on_returned: Callable[[ReplicaLane], None] | None = None
        """Called with each lane whose turn is over. None: no part asks."""

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, run: ReplicaRun) -> ReplicaLane:
        """Puts the run at the end of its key's lane, which becomes ready if it was idle."""
        lane = self._lane_of(run)
        lane.runs.append(run)
        return lane

    def put_back(self, run: ReplicaRun) -> ReplicaLane:
        """Puts the run at the head of its key's lane, which becomes ready if it was idle."""
        lane = self._lane_of(run)
        lane.runs.appendleft(run)
        return lane

    def _lane_of(self, run: ReplicaRun) -> ReplicaLane:
        key = (run.endpoint, run.ordering_key)
        lane = self._by_key.get(key)
        if lane is None:
            lane = self._by_key[key] = ReplicaLane(key, run.partition)
            if self._leaving and (run.endpoint, run.partition) in self._leaving:
                self._leaving[run.endpoint, run.partition] += 1
        run.lane = lane
        if lane.is_idle:
            lane.is_idle = False
            self.ready.append(lane)
        elif lane.is_blocked:
            self.unblock(lane)
        return lane

    def unblock(self, lane: ReplicaLane) -> None:
        """Its calls have changed: it becomes ready if it was blocked."""
        if lane.is_blocked:
            lane.is_blocked = False
            self.ready.append(lane)

    def gone(self, link: RouterPeer, count: int) -> None:
        """Takes keyed calls that have ended, or were answered, off the link's count."""
        self.calls -= count
        link.keyed -= count
        if not link.keyed:
            link.overrun = False

    def give_back(self, lane: ReplicaLane) -> None:
        """The lane's turn is over: it goes to the back of the queue, or is dropped where it has no calls."""
        if self.on_returned is not None:
            self.on_returned(lane)
        if lane.head() is not None:
            self.ready.append(lane)
        else:
            self._forget(lane)

    def forget_empty(self) -> None:
        """Forgets the lanes in which nothing waits any more, without waiting for a permit for them."""
        for _ in range(len(self.ready)):
            self.give_back(self.ready.popleft())

    def forget_those_that_left(self) -> None:
        """The same after calls of lanes were cancelled; partitions that are empty by that are reported."""
        if self._leaving:
            self.forget_empty()

    def leave(self, partitions: Mapping[str, Container[int]]) -> None:
        """These partitions, by endpoint, move away: nothing of them is started any more."""
        self._leaving |= Counter((lane.key[0], lane.partition) for lane in self.of(partitions))

    def is_left(self, endpoint: str, partition: int) -> bool:
        """Whether something of a partition that moves away is still here."""
        return (endpoint, partition) in self._leaving

    def of(self, partitions: Mapping[str, Container[int]]) -> list[ReplicaLane]:
        """The lanes of these partitions, by endpoint. Looks at each lane: for rare events."""
        return [lane for lane in self._by_key.values() if lane.partition in partitions.get(lane.key[0], ())]

    def all(self) -> list[ReplicaLane]:
        """Every lane that has calls, running or not."""
        return list(self._by_key.values())

    def _forget(self, lane: ReplicaLane) -> None:
        lane.is_idle = True
        del self._by_key[lane.key]
        if self._leaving:
            partition = (lane.key[0], lane.partition)
            left = self._leaving.pop(partition, 0) - 1
            if left > 0:
                self._leaving[partition] = left
