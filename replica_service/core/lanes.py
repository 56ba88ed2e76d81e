"""Lanes: calls of one ordering key, executed in sequence.

Purpose: keeps the order of each key, and serves the keys in turn.
Invariants: a lane is in exactly one place, its state (`call_states.py`). Calls leave it in the order of arrival. A
partition that moves away is tracked while one of its lanes is left.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from typing import Final, TypeAlias

from replica_service.core.call_states import LANE_LIFE, LaneEvent, LaneState
from replica_service.core.events import ReplicaCommand, ReportDefect
from replica_service.core.runs import ReplicaLane, ReplicaRun, RouterPeer

LaneRow: TypeAlias = dict[LaneState, LaneState]
ON_BLOCKED: Final = LANE_LIFE.on(LaneEvent.BLOCKED)
ON_OFFERED: Final = LANE_LIFE.on(LaneEvent.OFFERED)
ON_TURN_BEGUN: Final = LANE_LIFE.on(LaneEvent.TURN_BEGUN)
ON_CUT: Final = LANE_LIFE.on(LaneEvent.CUT)
_ON_UNBLOCKED: Final = LANE_LIFE.on(LaneEvent.UNBLOCKED)
_ON_RETURNED: Final = LANE_LIFE.on(LaneEvent.RETURNED)
_ON_EMPTIED: Final = LANE_LIFE.on(LaneEvent.EMPTIED)

_BLOCKED: Final = LaneState.BLOCKED


class Lanes:
    """All lanes that have calls, and the queue of those that wait for a permit."""

    __slots__ = ("_by_key", "_leaving", "_out", "calls", "on_returned", "ready")

    def __init__(self, out: list[ReplicaCommand]) -> None:
        self._out = out
        self._by_key: dict[tuple[str, str], ReplicaLane] = {}
        self._leaving: dict[tuple[str, int], int] = {}
        """Number of lanes left of each partition (endpoint, number) that moves away; no entry is 0."""
        self.calls = 0
        """Present keyed calls, running or not."""
        self.ready: deque[ReplicaLane] = deque()
        """Lanes that wait for a permit, in the order of their turns."""
        self.on_returned: Callable[[ReplicaLane], None] | None = None
        """Called with each lane whose turn is over."""

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
            self.ready.append(lane)
        elif lane.state is _BLOCKED:
            self.unblock(lane)
        run.lane = lane
        return lane

    def unblock(self, lane: ReplicaLane) -> None:
        """Makes the lane ready if it was blocked."""
        if lane.state is _BLOCKED:
            self.move(lane, _ON_UNBLOCKED)
            self.ready.append(lane)

    def gone(self, link: RouterPeer, count: int) -> None:
        """Subtracts keyed calls that have ended or have an outcome from the link's count."""
        self.calls -= count
        link.keyed -= count
        if not link.keyed:
            link.overrun = False

    def give_back(self, lane: ReplicaLane) -> None:
        """Ends the lane's turn: it moves to the back of the queue, or is dropped if it has no calls."""
        if self.on_returned is not None:
            self.on_returned(lane)
        if lane.head() is not None:
            if self.move(lane, _ON_RETURNED):
                self.ready.append(lane)
        elif self.move(lane, _ON_EMPTIED):
            self._forget(lane)

    def move(self, lane: ReplicaLane, row: LaneRow) -> bool:
        """Changes the lane's state. Returns False if the event cannot happen to it: nothing has changed then."""
        after = row.get(lane.state)
        if after is None:
            event = next(each for each in LaneEvent if LANE_LIFE.on(each) == row)
            self._out.append(ReportDefect(LANE_LIFE.impossible(lane.state, event)))
            return False
        lane.state = after
        return True

    def forget_empty(self) -> None:
        """Drops ready lanes without calls, without waiting for a permit for them."""
        for _ in range(len(self.ready)):
            self.give_back(self.ready.popleft())

    def forget_those_that_left(self) -> None:
        """Like `forget_empty`, if any partition moves away: cancelled calls may have made it empty."""
        if self._leaving:
            self.forget_empty()

    def leave(self, partitions: Mapping[str, Container[int]]) -> None:
        """Tracks these partitions, by endpoint, which move away: none of their calls starts any more."""
        self._leaving |= Counter((lane.key[0], lane.partition) for lane in self.of(partitions))

    def is_left(self, endpoint: str, partition: int) -> bool:
        """Whether a partition that moves away still has lanes here."""
        return (endpoint, partition) in self._leaving

    def of(self, partitions: Mapping[str, Container[int]]) -> list[ReplicaLane]:
        """Returns the lanes of these partitions, by endpoint. Iterates over all lanes: for rare events."""
        return [lane for lane in self._by_key.values() if lane.partition in partitions.get(lane.key[0], ())]

    def all(self) -> list[ReplicaLane]:
        """Returns every lane that has calls, running or not."""
        return list(self._by_key.values())

    def _forget(self, lane: ReplicaLane) -> None:
        del self._by_key[lane.key]
        if self._leaving:
            partition = (lane.key[0], lane.partition)
            left = self._leaving.pop(partition, 0) - 1
            if left > 0:
                self._leaving[partition] = left
