"""What the replica gives up: partitions that move away, and everything when it drains.

Purpose: what has not started goes back to its router, unexecuted, which sends it elsewhere.
Owner: the scheduler.
"""

from __future__ import annotations

from math import inf

from replica_service.core import failures
from replica_service.core.calls import ReplicaLane
from replica_service.core.events import DrainBegan, EpochFenced, GraceEnded, PartitionsRevoked
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.starting.parking import Parking
from replica_service.core.unstarted.unstarted_calls import UnstartedCalls


class HandingBack:
    """Hands calls back."""

    __slots__ = (
        "_batching",
        "_keys",
        "_lanes",
        "_ownership",
        "_parking",
        "_payloads",
        "_permits",
        "_slots",
        "_state",
        "_unstarted",
    )

    def __init__(self, state: SchedulerState, parking: Parking, unstarted: UnstartedCalls) -> None:
        self._permits = state.permits
        self._lanes = state.lanes
        self._keys = state.keys
        self._ownership = state.ownership
        self._state = state
        self._payloads = state.payloads
        self._batching = state.batching
        self._slots = state.slots
        self._parking = parking
        self._unstarted = unstarted

    def partitions_revoked(self, event: PartitionsRevoked, _now: float) -> None:
        epochs = event.epochs
        self._parking.unpark_all()
        for endpoint, revoked in epochs.items():
            self._ownership.revoke(endpoint, revoked)
        for lane in self._lanes.of(epochs):
            self._unstarted.hand_back(lane, failures.STALE, through_epoch=epochs[lane.key[0]][lane.partition])
        self._lanes.forget_empty()
        self._lanes.leave(epochs)
        for endpoint, revoked in epochs.items():
            self._keys.leave(endpoint, revoked)

    def epoch_fenced(self, event: EpochFenced, _now: float) -> None:
        self._parking.unpark_all()
        self._ownership.fence(event.epoch)
        for lane in self._lanes.all():
            self._unstarted.hand_back(lane, failures.STALE, through_epoch=event.epoch)
        self._lanes.forget_empty()
        self._keys.leave_all(event.epoch)

    def drain_began(self, _event: DrainBegan, _now: float) -> None:
        self._hand_back_all(slots_too=False)

    def grace_ended(self, _event: GraceEnded, _now: float) -> None:
        self._hand_back_all(slots_too=True)

    def _hand_back_all(self, *, slots_too: bool) -> None:
        unstarted = self._unstarted
        self._state.draining = True
        self._slots.table.prolongs = False
        self._state.ended |= slots_too
        self._parking.unpark_all()
        waiting = [*self._permits.queue, *(run for run in self._payloads.runs if run.lane is None)]
        if slots_too:
            waiting += self._slots.entered
        for run in waiting:
            unstarted.answer_waiting(run, run.lo, run.hi, failures.DRAINING)
        for batcher in self._batching.gathering:
            for entry in list(batcher.gathered.queue):
                if not isinstance(entry, ReplicaLane) and (slots_too or entry.run.slot is None):
                    unstarted.take_back(entry.run, entry.run.begin, entry.run.end, failures.DRAINING)
        for lane in self._lanes.all():
            unstarted.hand_back(lane, failures.DRAINING)
        self._keys.leave_all(inf)
