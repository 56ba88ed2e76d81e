"""Withdrawals of calls by routers, and calls that the replica hands back.

`RunWithdrawals`: calls that a router cancels, or that it has sent when its link ends or its sessions move.
`HandingBack`: calls of partitions that move away, and all calls when the replica drains; they return unexecuted to
their router, which sends them elsewhere. Both end the calls that have not started in the scheduler; the shell recalls
those in executors.
A router that a session has left may not be aware of that. It may cancel a call whose deadline has passed after another
router was informed that the call runs, and waits for its outcome. So `RouterPeer.moved` notes the runs that have moved,
and `without_moved` excludes them from cancels.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from replica_service.core import failures
from replica_service.core.ending import Parking, UnstartedCalls
from replica_service.core.events import (
    DrainBegan,
    EpochFenced,
    GraceEnded,
    LinkClosed,
    PartitionsRevoked,
    RunsCancelled,
    SessionsMoved,
)
from replica_service.core.runs import ReplicaLane, ReplicaRun, RouterPeer
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.slot_operations import HeldSlots
from slotmesh.calls.id_ranges import Range, common, merged, without


def note_moved(runs: Sequence[ReplicaRun]) -> None:
    """Notes that the sessions of these runs have moved to another router."""
    for link in {run.link for run in runs}:
        link.moved = _pending(link)
    for run in runs:
        run.link.moved.append(run)


def without_moved(link: RouterPeer, ranges: Iterable[Range]) -> list[Range]:
    """Returns these ranges of the link's run ids, both ends included, without those of moved calls."""
    if not link.moved:
        return list(ranges)
    link.moved = _pending(link)
    moved = merged((run.first + run.begin, run.first + run.end - 1) for run in link.moved)
    return [part for first, last in ranges for part in without(first, last, moved)]


def _pending(link: RouterPeer) -> list[ReplicaRun]:
    return [run for run in link.moved if run.record is not None and run.record.pending]


class HandingBack:
    """Hands unstarted calls back to their routers."""

    __slots__ = ("_parking", "_state", "_unstarted")

    def __init__(self, state: SchedulerState, parking: Parking, unstarted: UnstartedCalls) -> None:
        self._state = state
        self._parking = parking
        self._unstarted = unstarted

    def partitions_revoked(self, event: PartitionsRevoked, _now: float) -> None:
        epochs = event.epochs
        self._parking.unpark_all()
        for endpoint, revoked in epochs.items():
            self._state.ownership.revoke(endpoint, revoked)
        for lane in self._state.lanes.of(epochs):
            self._unstarted.hand_back(lane, failures.STALE, through_epoch=epochs[lane.key[0]][lane.partition])
        self._state.lanes.forget_empty()
        self._state.lanes.leave(epochs)
        for endpoint, revoked in epochs.items():
            self._state.keys.leave(endpoint, revoked)

    def epoch_fenced(self, event: EpochFenced, _now: float) -> None:
        self._parking.unpark_all()
        self._state.ownership.fence(event.epoch)
        for lane in self._state.lanes.all():
            self._unstarted.hand_back(lane, failures.STALE, through_epoch=event.epoch)
        self._state.lanes.forget_empty()
        self._state.keys.leave_all(event.epoch)

    def drain_began(self, _event: DrainBegan, _now: float) -> None:
        self._hand_back_all(slots_too=False)

    def grace_ended(self, _event: GraceEnded, _now: float) -> None:
        self._hand_back_all(slots_too=True)

    def _hand_back_all(self, *, slots_too: bool) -> None:
        unstarted = self._unstarted
        self._state.draining = True
        self._state.slots.table.prolongs = False
        self._state.ended |= slots_too
        self._parking.unpark_all()
        waiting = [*self._state.permits.queue, *(run for run in self._state.payloads.runs if run.lane is None)]
        if slots_too:
            waiting += self._state.slots.entered
        for run in waiting:
            unstarted.answer_waiting(run, run.lo, run.hi, failures.DRAINING)
        for batcher in self._state.batching.gathering:
            for entry in list(batcher.gathered.queue):
                if not isinstance(entry, ReplicaLane) and (slots_too or entry.run.slot is None):
                    unstarted.take_back(entry.run, entry.run.begin, entry.run.end, failures.DRAINING)
        for lane in self._state.lanes.all():
            unstarted.hand_back(lane, failures.DRAINING)
        self._state.keys.leave_all(inf)


class RunWithdrawals:
    """Ends the unstarted calls that routers withdraw."""

    __slots__ = ("_held", "_parking", "_state", "_unstarted")

    def __init__(self, state: SchedulerState, parking: Parking, unstarted: UnstartedCalls, held: HeldSlots) -> None:
        self._state = state
        self._held = held
        self._parking = parking
        self._unstarted = unstarted

    def runs_cancelled(self, event: RunsCancelled, _now: float) -> None:
        link, take_back = event.link, self._unstarted.take_back
        self._parking.unpark(link)
        others: list[Range] = []
        for first, last in event.ranges:
            run = link.waiting.get(first)
            if run is not None and last - first + 1 == run.end - run.begin == run.hi - run.begin and not run.is_split:
                take_back(run, run.begin, run.end, failures.CANCELLED)
            else:
                others.append((first, last))
        if wanted := merged(others):
            for run in list(link.waiting.values()):
                # In descending order, because removing calls in the middle splits off those after them.
                for first, last in reversed(common(run.first + run.begin, run.first + run.end - 1, wanted)):
                    take_back(run, first - run.first, last + 1 - run.first, failures.CANCELLED)
        self._state.lanes.forget_those_that_left()

    def link_closed(self, event: LinkClosed, now: float) -> None:
        link = event.link
        link.closed = True
        link.fresh_until = -inf
        self._state.vacancies.reported(link, is_full=False)
        self._parking.unpark(link)
        self._held.stream_ended(link, now)
        for run in list(link.waiting.values()):
            self._unstarted.take_back(run, run.begin, run.end, failures.CANCELLED)
        self._state.lanes.forget_those_that_left()

    def sessions_moved(self, event: SessionsMoved, _now: float) -> None:
        note_moved(event.runs)
        for run in event.runs:
            if run.link.waiting.get(run.key) is run:
                self._parking.unpark(run.link)
                self._unstarted.take_back(run, run.begin, run.end, failures.FENCED)
        self._state.lanes.forget_those_that_left()
