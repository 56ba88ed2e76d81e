"""Withdrawals of calls by routers, and calls that the replica hands back.

Withdrawn are calls that a router cancels, or that it has sent when its link ends or its sessions move. Handed back are
calls of partitions that move away, and all calls when the replica drains: they return unexecuted to their router, which
sends them elsewhere. Both end the calls that have not started in the scheduler; the shell recalls those in executors.
A router that a session has left may not be aware of that. It may cancel a call whose deadline has passed after another
router was informed that the call runs, and waits for its outcome. So `RouterPeer.moved` notes the runs that have moved,
and `without_moved` excludes them from cancels.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from replica_service.core import failures
from replica_service.core.accounting import forget_empty_lanes, forget_lanes_that_left
from replica_service.core.ending import answer_waiting, hand_back, take_back, unpark, unpark_all
from replica_service.core.events import (
    Commands,
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
from replica_service.core.slot_operations import stream_ended
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


# -- handed back -------------------------------------------------------------------------------------------------------


def partitions_revoked(state: SchedulerState, event: PartitionsRevoked, _now: float, commands: Commands) -> None:
    epochs = event.epochs
    unpark_all(state, commands)
    for endpoint, revoked in epochs.items():
        state.ownership.revoke(endpoint, revoked)
    for lane in state.lanes.of(epochs):
        hand_back(state, lane, failures.STALE, commands, through_epoch=epochs[lane.key[0]][lane.partition])
    forget_empty_lanes(state, commands)
    state.lanes.leave(epochs)
    for endpoint, revoked in epochs.items():
        state.keys.leave(endpoint, revoked, commands)


def epoch_fenced(state: SchedulerState, event: EpochFenced, _now: float, commands: Commands) -> None:
    unpark_all(state, commands)
    state.ownership.fence(event.epoch)
    for lane in state.lanes.all():
        hand_back(state, lane, failures.STALE, commands, through_epoch=event.epoch)
    forget_empty_lanes(state, commands)
    state.keys.leave_all(event.epoch, commands)


def drain_began(state: SchedulerState, event: DrainBegan | GraceEnded, _now: float, commands: Commands) -> None:
    """Hands back unstarted calls; those in slots only once the grace has ended."""
    slots_too = isinstance(event, GraceEnded)
    state.draining = True
    state.slots.table.prolongs = False
    state.ended |= slots_too
    unpark_all(state, commands)
    waiting = [*state.permits.queue, *(run for run in state.payloads.runs if run.lane is None)]
    if slots_too:
        waiting += state.slots.entered
    for run in waiting:
        answer_waiting(state, run, run.lo, run.hi, failures.DRAINING, commands)
    for batcher in state.gathering:
        for entry in list(batcher.gathered.queue):
            if not isinstance(entry, ReplicaLane) and (slots_too or entry.run.slot is None):
                take_back(state, entry.run, entry.run.begin, entry.run.end, failures.DRAINING, commands)
    for lane in state.lanes.all():
        hand_back(state, lane, failures.DRAINING, commands)
    state.keys.leave_all(inf, commands)


# -- withdrawn ---------------------------------------------------------------------------------------------------------


def runs_cancelled(state: SchedulerState, event: RunsCancelled, _now: float, commands: Commands) -> None:
    link = event.link
    unpark(state, link, commands)
    others: list[Range] = []
    for first, last in event.ranges:
        run = link.waiting.get(first)
        if run is not None and last - first + 1 == run.end - run.begin == run.hi - run.begin and not run.is_split:
            take_back(state, run, run.begin, run.end, failures.CANCELLED, commands)
        else:
            others.append((first, last))
    if wanted := merged(others):
        for run in list(link.waiting.values()):
            # In descending order, because removing calls in the middle splits off those after them.
            for first, last in reversed(common(run.first + run.begin, run.first + run.end - 1, wanted)):
                take_back(state, run, first - run.first, last + 1 - run.first, failures.CANCELLED, commands)
    forget_lanes_that_left(state, commands)


def link_closed(state: SchedulerState, event: LinkClosed, now: float, commands: Commands) -> None:
    link = event.link
    link.closed = True
    link.fresh_until = -inf
    state.vacancies.reported(link, is_full=False)
    unpark(state, link, commands)
    stream_ended(state, link, now)
    for run in list(link.waiting.values()):
        take_back(state, run, run.begin, run.end, failures.CANCELLED, commands)
    forget_lanes_that_left(state, commands)


def sessions_moved(state: SchedulerState, event: SessionsMoved, _now: float, commands: Commands) -> None:
    note_moved(event.runs)
    for run in event.runs:
        if run.link.waiting.get(run.key) is run:
            unpark(state, run.link, commands)
            take_back(state, run, run.begin, run.end, failures.FENCED, commands)
    forget_lanes_that_left(state, commands)
