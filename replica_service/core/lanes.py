"""Lanes: calls of one ordering key, executed in sequence.

Purpose: keeps the order of each key, and serves the keys in turn.
Invariants: a lane is in exactly one place, its state (`call_states.py`). Calls leave it in the order of arrival. A
partition that moves away is tracked while one of its lanes is left.
Owner: the scheduler.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Mapping
from typing import Final, TypeAlias

from replica_service.core.call_states import LANE_LIFE, LaneEvent, LaneState
from replica_service.core.events import Commands, ReportDefect
from replica_service.core.runs import LaneKey, ReplicaLane, ReplicaRun

LaneRow: TypeAlias = dict[LaneState, LaneState]
ON_BLOCKED: Final = LANE_LIFE.on(LaneEvent.BLOCKED)
ON_OFFERED: Final = LANE_LIFE.on(LaneEvent.OFFERED)
ON_TURN_BEGUN: Final = LANE_LIFE.on(LaneEvent.TURN_BEGUN)
ON_CUT: Final = LANE_LIFE.on(LaneEvent.CUT)
ON_RETURNED: Final = LANE_LIFE.on(LaneEvent.RETURNED)
ON_EMPTIED: Final = LANE_LIFE.on(LaneEvent.EMPTIED)
_BLOCKED: Final = LaneState.BLOCKED
_UNBLOCKED: Final = LANE_LIFE.steps[_BLOCKED, LaneEvent.UNBLOCKED]


def move(lane: ReplicaLane, row: LaneRow, commands: Commands) -> bool:
    """Changes the lane's state. Returns False if the event cannot happen to it: nothing has changed then."""
    try:
        lane.state = row[lane.state]
    except KeyError:
        event = next(each for each in LaneEvent if LANE_LIFE.on(each) == row)
        commands.append(ReportDefect(LANE_LIFE.impossible(lane.state, event)))
        return False
    return True


class Lanes:
    """All lanes that have calls, and the queue of those that wait for a permit."""

    __slots__ = ("_by_key", "_leaving", "calls", "ready")

    def __init__(self) -> None:
        self._by_key: dict[LaneKey, ReplicaLane] = {}
        self._leaving: dict[tuple[str, int], int] = {}
        """Number of lanes left of each partition (endpoint, number) that moves away; no entry is 0."""
        self.calls = 0
        """Present keyed calls, running or not."""
        self.ready: deque[ReplicaLane] = deque()
        """Lanes that wait for a permit, in the order of their turns."""

    def __len__(self) -> int:
        return len(self._by_key)

    def of_run(self, run: ReplicaRun) -> ReplicaLane:
        """Returns the lane of the run's key, for a run that is to be put into it. It becomes ready if it was idle."""
        # Nearly all have an ordering key: without the call of a property for each.
        key = (run.endpoint, run.ordering_key) if run.ordering_key else run.lane_key
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
            lane.state = _UNBLOCKED
            self.ready.append(lane)

    @property
    def has_leaving(self) -> bool:
        """Whether any partition moves away."""
        return bool(self._leaving)

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

    def forget(self, lane: ReplicaLane) -> None:
        """Removes a lane without calls."""
        del self._by_key[lane.key]
        if self._leaving:
            partition = (lane.key[0], lane.partition)
            left = self._leaving.pop(partition, 0) - 1
            if left > 0:
                self._leaving[partition] = left
