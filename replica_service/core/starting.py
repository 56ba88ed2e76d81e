"""The way of a run in: it is accepted as far as there is room, gets permits, and its calls are handed to executors.

`runs_received` accepts the runs of routers, or refuses them immediately. `settle` starts, after each event, all calls
that can be started, and fails those that are found overdue: lanes and unkeyed runs get permits alternately, and batches
are cut when one may run. A reservation waits among the unkeyed runs, and starts by passing its permit to the table of
slots. A call that is dispatched in a slot uses the slot's permit, and so waits for none. Whether a call in an executor
may start is decided in `work.py`, right before it would.
Invariants: a refused call was not executed. Of unkeyed calls the last ones of a run are refused, of keyed calls whole
runs, so that no later run of a key is accepted after an earlier one was refused. No call is handed to an executor after
its deadline, nor while its link is not fresh; no permit is free while a call waits for one.
Owner: the scheduler.
"""

from __future__ import annotations

from typing import Final

from replica_service.core import accounting, failures
from replica_service.core.accounting import give_back, recount, release
from replica_service.core.call_states import CallState
from replica_service.core.ending import answer, answer_waiting, end_held_up, park, park_gathered
from replica_service.core.events import (
    Commands,
    Fail,
    Grant,
    PayloadFailed,
    PayloadReceived,
    Refuse,
    ReportCapacity,
    ReportRenewal,
    RunsReceived,
)
from replica_service.core.lanes import ON_BLOCKED, ON_CUT, ON_OFFERED, move
from replica_service.core.runs import ReplicaRun, StartTurn
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.slot_operations import report_lapsed
from replica_service.core.work import MAX_TURN_CALLS, StartCalls, is_passed, is_stopped, note_failure
from slotmesh.errors import Failure

_GATHERED: Final = CallState.GATHERED
_UPLOADING: Final = CallState.UPLOADING

SHARE_OF_ONE_CALLER: Final = 0.75
"""The share of the permits that one caller may have reserved, if no number is configured."""

# -- in ----------------------------------------------------------------------------------------------------------------


def runs_received(state: SchedulerState, event: RunsReceived, now: float, commands: Commands) -> None:
    methods, draining = state.methods, state.draining
    for run in event.runs:
        if run.reservation is not None and (found := state.slots.table.requested.find(run.reservation, now)):
            commands.append(ReportRenewal(run.link, run.first, found))
            accounting.refused(run, run.lo, commands)
        elif draining:
            _refuse(run, run.lo, failures.DRAINING, commands)
        elif run.options.method not in methods and not run.lease_s:
            if run.options.stop_generation:
                note_failure(run, run.lo)
            commands.append(Fail(run, run.lo, run.hi, failures.no_such_method(run.options.method, methods)))
            accounting.refused(run, run.lo, commands)
        elif run.ordering_key or run.is_keyed:
            _take_keyed(state, run, commands)
        else:
            if run.link.freed_at is not None:
                state.vacancies.came(run.link, now)
            _take(state, run, commands)


def payload_received(state: SchedulerState, event: PayloadReceived, _now: float, commands: Commands) -> None:
    run = event.run
    if run.state is not _UPLOADING or not accounting.uploaded(run, commands):
        return
    run.payloads = [event.payload]
    del state.payloads.runs[run]
    if run.lane is None:
        state.permits.queue.append(run)
    else:
        state.lanes.unblock(run.lane)
        recount(state, run.lane, commands)


def payload_failed(state: SchedulerState, event: PayloadFailed, _now: float, commands: Commands) -> None:
    run = event.run
    if run.state is _UPLOADING:
        answer_waiting(state, run, run.lo, run.hi, event.failure, commands)


def _refuse(run: ReplicaRun, lo: int, failure: Failure, commands: Commands) -> None:
    """Refuses the run's calls from `lo` on."""
    commands.append(Refuse(run, lo, run.hi, failure))
    accounting.refused(run, lo, commands)


def _take(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    permits = state.permits
    room = permits.max_ongoing + permits.room_to_wait - permits.in_use - permits.waiting
    if run.open > room:
        room = max(0, room)
        failure = failures.no_room(permits.max_ongoing, permits.room_to_wait)
        _refuse(run, run.lo + room, failure, commands)
        if not room:
            return
    accounting.accepted(state, run, commands)
    if run.state is _UPLOADING:
        state.payloads.add(run)
    else:
        permits.queue.append(run)


def _take_keyed(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    link, count = run.link, run.open
    if not state.ownership.admit(run.endpoint, run.partition, run.owner_epoch):
        _refuse(run, run.lo, failures.STALE, commands)
        return
    # Calls in a turn may have their outcome already, and the router may have sent others for them.
    if link.overrun or link.keyed - link.handed + count > state.keyed_window:
        # No later run of the same key may be accepted before this one: all keyed runs are refused for now.
        link.overrun = link.keyed > 0
        _refuse(run, run.lo, failures.past_window(link.keyed, count, state.keyed_window), commands)
        return
    accounting.accepted(state, run, commands)
    if run.state is _UPLOADING:
        state.payloads.add(run)
    lane = state.lanes.of_run(run)
    lane.runs.append(run)
    if lane.batch_method is not None:
        state.batchers[lane.batch_method].gathered.extend(lane, run)


# -- to executors ------------------------------------------------------------------------------------------------------


def settle(state: SchedulerState, now: float, commands: Commands) -> None:
    """Starts all calls that can be started, at the end of each step."""
    if state.payloads.due <= now:
        for run in state.payloads.late(now):
            answer_waiting(state, run, run.lo, run.hi, failures.EXPIRED, commands)
    slots = state.slots
    if slots.entered:
        _start_entered(state, now, commands)
    if slots.due <= now:
        _end_due_leases(state, now, commands)
    if state.permits.queue or state.lanes.ready:
        _grant(state, now, commands)
    while state.gathering and _cut(state, now, commands):
        _grant(state, now, commands)
    if state.vacancies.full:
        while (link := state.vacancies.due(now, has_room=state.permits.has_room)) is not None:
            commands.append(ReportCapacity(link))
    if slots.vacated:
        slots.forget_vacated(now)


def _grant(state: SchedulerState, now: float, commands: Commands) -> None:
    """Assigns free permits to lanes and unkeyed runs, half and half if both wait."""
    permits, queue, ready = state.permits, state.permits.queue, state.lanes.ready
    while (free := permits.max_ongoing - permits.in_use) > 0:
        if not ready:
            if not queue:
                return
            _start_calls(state, free, now, commands)
        elif not queue:
            _start_turn(state, now, commands)
        else:
            share = (free + state.odd) // 2
            if free & 1:
                state.odd ^= 1
            for _ in range(min(share, len(ready))):
                _start_turn(state, now, commands)
            if share < free:
                _start_calls(state, free - share, now, commands)


def _start_turn(state: SchedulerState, now: float, commands: Commands) -> None:
    lane = state.lanes.ready.popleft()
    keys = state.keys
    while (run := lane.head()) is not None:
        if run.deadline <= now:
            lo, run.lo = run.lo, run.hi
            answer(state, run, lo, run.hi, failures.EXPIRED, commands)
        elif run.state is _UPLOADING or (keys.is_on and not keys.may_start(lane, run, commands)):
            move(lane, ON_BLOCKED, commands)
            return
        elif run.options.stop_generation and is_stopped(run, run.lo):
            lo, run.lo = run.lo, run.hi
            answer(state, run, lo, run.hi, failures.STOPPED, commands)
        elif run.record is not None and is_passed(run):
            lo, run.lo = run.lo, run.lo + 1
            answer(state, run, lo, run.lo, failures.PASSED, commands)
        elif run.link.fresh_until <= now:
            lane.runs.popleft()
            park(state, run, commands)
        else:
            break
    if run is None:
        give_back(state, lane, commands)
        return
    state.permits.in_use += 1
    if keys.is_on:
        keys.started(lane, run)
    batcher = state.batchers.get(run.options.method)
    if batcher is not None:
        move(lane, ON_OFFERED, commands)
        batcher.gathered.offer(lane)
        state.gathering[batcher] = None
        return
    lo = run.lo
    run.lo = hi = min(run.hi, lo + MAX_TURN_CALLS)
    accounting.turn_begun(lane, run, hi - lo, commands)
    lane.turn = turn = StartTurn(lane, run, lo, hi, now)
    commands.append(turn)


def _start_calls(state: SchedulerState, free: int, now: float, commands: Commands) -> None:
    """Starts calls of the oldest unkeyed runs, `free` at most."""
    queue = state.permits.queue
    while free and queue:
        run = queue[0]
        lo, hi = run.lo, run.hi
        count = hi - lo
        if not count:
            queue.popleft()
        elif run.deadline <= now:
            queue.popleft()
            run.lo = hi
            answer(state, run, lo, hi, failures.EXPIRED, commands)
        elif run.link.fresh_until <= now:
            queue.popleft()
            park(state, run, commands)
        elif run.lease_s:
            queue.popleft()
            free -= _lease(state, run, now, commands)
        else:
            if count > free:
                count = free
            else:
                queue.popleft()
            free -= count
            _start_with_permits(state, run, lo, lo + count, now, commands)


def _start_with_permits(
    state: SchedulerState, run: ReplicaRun, lo: int, hi: int, now: float, commands: Commands
) -> None:
    run.lo = hi
    batcher = state.batchers.get(run.options.method)
    if batcher is None:
        accounting.started(state, run, hi - lo, now, commands)
        commands.append(StartCalls(run, lo, hi))
        return
    accounting.gathered(state, run, hi - lo, commands)
    state.gathering[batcher] = None
    for index, failure in batcher.gathered.add(run, lo, hi):
        answer(state, run, index, index + 1, failure, commands, _GATHERED)


def _lease(state: SchedulerState, run: ReplicaRun, now: float, commands: Commands) -> int:
    """Starts a reservation: its permit passes to the table of slots. Returns the number of permits used."""
    permits, table = state.permits, state.slots.table
    most = state.max_slots_per_caller or max(1, int(permits.max_ongoing * SHARE_OF_ONE_CALLER))
    known = table.requested.find(run.reservation, now) if run.reservation is not None else None
    slot = known if known is not None else table.too_many_of(run.identity, most)
    if isinstance(slot, Failure):
        answer_waiting(state, run, run.lo, run.hi, slot, commands)
        return 0
    if slot is None:
        slot = state.slots.grant(state.new_secret(), run, now)
    run.lo = run.hi
    accounting.granted(state, run, commands)
    if known is not None:  # since it began to wait, the same reservation was granted to another link
        permits.in_use -= 1
    commands.append(Grant(run, slot, permits.in_use))
    return 0 if known is not None else 1


def _end_due_leases(state: SchedulerState, now: float, commands: Commands) -> None:
    """Ends due leases, and parked calls in slots whose time is over."""
    slots = state.slots
    state.permits.in_use -= slots.table.expire(now)
    if slots.table.lapsed:
        report_lapsed(state, commands)
    if slots.held_up:
        end_held_up(state, now, commands)
    slots.set_due()


def _start_entered(state: SchedulerState, now: float, commands: Commands) -> None:
    """Starts calls that were dispatched in slots."""
    entered = state.slots.entered
    while entered:
        run = entered.popleft()
        lo, hi = run.lo, run.hi
        if lo == hi:
            continue
        if run.deadline <= now:
            answer_waiting(state, run, lo, hi, failures.EXPIRED, commands)
        elif run.link.fresh_until <= now:
            park(state, run, commands)
        else:
            _start_with_permits(state, run, lo, hi, now, commands)


def _cut(state: SchedulerState, now: float, commands: Commands) -> bool:
    """Cuts all due batches. Returns whether permits were freed meanwhile."""
    permits = state.permits
    in_use = permits.in_use
    for batcher in list(state.gathering):
        while batcher.is_due(now):
            batch, expired, stale, failed, left = batcher.cut(now)
            for run, lo, hi in batch.parts:
                accounting.batch_cut(run, hi - lo)
            for lane in batch.lanes:
                move(lane, ON_CUT, commands)
            for run, lo, hi in expired:
                answer(state, run, lo, hi, failures.EXPIRED, commands, _GATHERED)
            for run, index, failure in failed:
                answer(state, run, index, index + 1, failure, commands, _GATHERED)
            for run, lo, hi in stale:
                park_gathered(state, run, lo, hi, commands)
            if batch.count:
                batch.started_at = now
                commands.append(batch)
            release(state, left, commands)
        if not batcher.gathered.queue:
            del state.gathering[batcher]
    return permits.in_use < in_use
