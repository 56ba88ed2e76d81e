"""The end of calls: executed by an executor, returned by it unstarted, or ended before they start; and parked calls.

`calls_ended` and the other ends of work free its permits; unstarted calls of it return to the head of their queue, or
get their outcome if they must not wait any longer. `answer` and its callers end calls that are cancelled, handed back
or overdue. `park` holds runs that would have started while their link was not fresh, until their router echoes a stamp.
Invariants: work ends once, as a whole or call by call; a lane returns to the queue for its next permit. Each call is
ended once; the permit that a call or its lane holds is freed with that. Work that has ended already, or never begun, is
a defect. A parked run is in `parked` of its link and nowhere else, and does not count as waiting; a search for runs in
queues unparks them first. A call in a slot is parked no longer than the slot's lease would have lasted.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from replica_service.core import accounting, failures
from replica_service.core.accounting import give_back, recount, release
from replica_service.core.call_states import CallState
from replica_service.core.events import (
    BatchEnded,
    CallsEnded,
    Commands,
    Fail,
    Refuse,
    ReportDefect,
    StampEchoed,
    TurnEnded,
    TurnsEnded,
    WorkReturned,
)
from replica_service.core.runs import FRESH_S, ReplicaLane, ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.work import Part, StartBatch, StartCalls, note_failure, note_progress
from slotmesh.errors import Failure

_GATHERED: Final = CallState.GATHERED
_UPLOADING: Final = CallState.UPLOADING

# -- calls that never start --------------------------------------------------------------------------------------------


def take_back(state: SchedulerState, run: ReplicaRun, lo: int, hi: int, failure: Failure, commands: Commands) -> None:
    """Fails those of the calls that have not started, and forbids those in an executor to start."""
    handed = min(hi, run.lo)
    answer_waiting(state, run, max(lo, run.lo), min(hi, run.hi), failure, commands)
    if lo >= handed:
        return
    if run.lane is not None:
        run.withdraw(lo, handed)
    elif batcher := state.batchers.get(run.options.method):
        for begin, end in batcher.gathered.withdraw(run, lo, handed):
            answer(state, run, begin, end, failure, commands, _GATHERED)


def answer_waiting(
    state: SchedulerState, run: ReplicaRun, lo: int, hi: int, failure: Failure, commands: Commands
) -> None:
    """Removes waiting calls and fails them: `run.lo <= lo` and `hi <= run.hi`."""
    if lo >= hi:
        return
    lane, were = run.lane, run.state
    if lo == run.lo:
        run.lo = hi
    else:
        if hi < run.hi:
            rest = run.split(hi, run.hi)
            queue = state.permits.queue if lane is None else lane.runs
            queue.insert(queue.index(run) + 1, rest)
        run.hi = lo
    answer(state, run, lo, hi, failure, commands, were)
    if lane is not None:
        state.lanes.unblock(lane)
        recount(state, lane, commands)


def answer_withdrawn(
    state: SchedulerState, run: ReplicaRun, part: ReplicaRun, lo: int, hi: int, commands: Commands
) -> None:
    """The part, which has the run's calls from `lo` up to `hi`, has come back from an executor and waits again.

    Those of its calls that were taken back meanwhile do not.
    """
    # In descending order, because removing calls in the middle splits off those after them.
    for index in sorted(run.withdrawn or (), reverse=True):
        if lo <= index < hi:
            answer_waiting(state, part, index, index + 1, failures.CANCELLED, commands)


def hand_back(
    state: SchedulerState, lane: ReplicaLane, failure: Failure, commands: Commands, *, through_epoch: float = inf
) -> None:
    """Fails the lane's waiting calls that were sent at this owner epoch, or an older one."""
    for run in list(lane.runs):
        if run.owner_epoch <= through_epoch:
            answer_waiting(state, run, run.lo, run.hi, failure, commands)


def answer(
    state: SchedulerState,
    run: ReplicaRun,
    lo: int,
    hi: int,
    failure: Failure,
    commands: Commands,
    were: CallState | None = None,
) -> None:
    """Ends calls with this failure. They were removed from their queue. `were`: their state, if not the run's."""
    hands_back = failures.hands_back(failure)
    if run.options.stop_generation and not run.link.closed and not hands_back:
        note_failure(run, lo)  # now: the consequences are decided before the outcome is written
    were = were or run.state
    if were is _UPLOADING:
        del state.payloads.runs[run]
    accounting.failed(state, run, hi - lo, were, commands)
    commands.append(Refuse(run, lo, hi, failure) if hands_back else Fail(run, lo, hi, failure))


# -- parked runs -------------------------------------------------------------------------------------------------------


def stamp_echoed(state: SchedulerState, event: StampEchoed, now: float, commands: Commands) -> None:
    link = event.link
    if not link.closed:
        link.fresh_until = max(link.fresh_until, min(event.stamp_s, now) + FRESH_S)
        if link.fresh_until > now:
            unpark(state, link, commands)


def park(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    """Parks a run that was taken from its queue, until its link is fresh."""
    accounting.parked(state, run, commands)
    if run.slot is not None:
        state.slots.hold_up(run, run.slot)
    run.link.parked.append(run)
    state.parked[run.link] = None


def park_gathered(state: SchedulerState, run: ReplicaRun, lo: int, hi: int, commands: Commands) -> None:
    """Parks the run's calls from `lo` up to `hi`, which were in a batcher."""
    park(state, accounting.ungathered(state, run, lo, hi) if run.lane is None else run, commands)


def unpark(state: SchedulerState, link: RouterPeer, commands: Commands) -> None:
    """Returns the link's runs to the front of their queues."""
    if link not in state.parked:
        return
    del state.parked[link]
    parked, link.parked = link.parked, []
    for run in reversed(parked):
        accounting.unparked(state, run, commands)
        if run.slot is not None:
            del state.slots.held_up[run]
            state.slots.entered.appendleft(run)
        elif run.lane is None:
            state.permits.queue.appendleft(run)
        else:
            lane = state.lanes.of_run(run)
            lane.runs.appendleft(run)
            recount(state, lane, commands)


def unpark_all(state: SchedulerState, commands: Commands) -> None:
    for link in list(state.parked):
        unpark(state, link, commands)


def end_held_up(state: SchedulerState, now: float, commands: Commands) -> None:
    """Fails calls in slots that were parked for too long, which frees their permits."""
    held_up = state.slots.held_up
    for run in [run for run, until in held_up.items() if until <= now]:
        del held_up[run]
        run.link.parked.remove(run)
        if not run.link.parked:
            del state.parked[run.link]
        failure = failures.EXPIRED if run.deadline <= now else failures.HELD_UP
        answer_waiting(state, run, run.lo, run.hi, failure, commands)


# -- ends of work ------------------------------------------------------------------------------------------------------


def calls_ended(state: SchedulerState, event: CallsEnded, now: float, commands: Commands) -> None:
    run, count = event.run, event.count
    is_awaited = state.vacancies.full and not state.permits.has_room
    if not accounting.executed(state, run, count, commands):
        return
    if is_awaited:
        state.vacancies.freed(run.link, now)
    state.call_times.calls_ended(run, count, now)
    if event.waited:
        state.service_times.took(run.options.method, count, (now - run.started_at) * count)
    else:
        state.service_times.ended(run.options.method, count, run.started_at, now)


def batch_ended(state: SchedulerState, event: BatchEnded, now: float, commands: Commands) -> None:
    batch = event.batch
    if not _ends(state, batch, commands):
        return
    state.call_times.batch_ended(batch, now)
    state.service_times.ended(batch.method, batch.count, batch.started_at, now)
    had_room = state.permits.has_room
    for run, lo, hi in batch.parts:
        accounting.executed(state, run, hi - lo, commands)
        if run.lane is not None:
            note_progress(run, hi - 1)
        elif not had_room:
            state.vacancies.freed(run.link, now)
    release(state, batch.lanes, commands)


def turn_ended(state: SchedulerState, event: TurnEnded, now: float, commands: Commands) -> None:
    turn, reached = event.turn, event.reached
    run, lane = turn.run, turn.lane
    if lane.turn is not turn:
        _report(turn, commands)
        return
    lane.turn = None
    if not turn.lo <= reached <= turn.hi:
        _report(turn, commands)
        reached = turn.hi
    ended = reached - turn.lo
    state.call_times.turn_ended(turn, ended, now)
    state.service_times.took(run.options.method, ended, now - turn.started_at)
    if ended and run.record is not None:
        note_progress(run, reached - 1)
    run.close(turn.hi - turn.lo)
    rest = accounting.returned(state, run, reached, turn.hi, commands) if reached < turn.hi else None
    if rest is not None:
        lane.runs.appendleft(rest)
        if run.withdrawn is not None and (run.record is None or not run.record.is_fenced):
            answer_withdrawn(state, run, rest, reached, turn.hi, commands)
        if failure := _must_not_wait(state, rest):
            for part in [each for each in lane.runs if each.key < 0 and each.is_part_of(run)]:
                answer_waiting(state, part, part.lo, part.hi, failure, commands)
    accounting.executed(state, run, ended, commands)
    state.permits.in_use -= 1
    give_back(state, lane, commands)


def turns_ended(state: SchedulerState, event: TurnsEnded, now: float, commands: Commands) -> None:
    first = event.turns[0]
    calls = 0
    for turn in event.turns:
        run, lane, count = turn.run, turn.lane, turn.hi - turn.lo
        if lane.turn is not turn:
            _report(turn, commands)
            continue
        lane.turn = None
        calls += count
        state.permits.in_use -= 1
        state.call_times.turn_ended(turn, count, now)
        run.close(count)
        accounting.executed(state, run, count, commands)
        if run.record is not None:
            note_progress(run, turn.hi - 1)
        give_back(state, lane, commands)
    if calls:
        state.service_times.ended(first.run.options.method, calls, first.started_at, now)


def work_returned(state: SchedulerState, event: WorkReturned, _now: float, commands: Commands) -> None:
    work = event.work
    if isinstance(work, StartCalls):
        parts: Sequence[Part] = ((work.run, work.lo, work.hi),)
    elif _ends(state, work, commands):
        parts = work.parts
    else:
        return
    for run, lo, hi in event.cancelled:
        run.withdraw(lo, hi)
    for run, lo, hi in reversed(parts):
        part = accounting.returned(state, run, lo, hi, commands)
        if part is None:
            continue
        if run.slot is not None:
            state.slots.entered.appendleft(part)
        elif run.lane is None:
            state.permits.queue.appendleft(part)
        else:
            run.lane.runs.appendleft(part)
        if failure := _must_not_wait(state, part):
            answer_waiting(state, part, lo, hi, failure, commands)
        elif run.withdrawn is not None:
            answer_withdrawn(state, run, part, lo, hi, commands)
    if isinstance(work, StartBatch):
        release(state, work.lanes, commands)


def _report(turn: StartTurn, commands: Commands) -> None:
    was = turn.lane.state.value
    commands.append(ReportDefect(f"a turn ended, or calls of it, that its lane in state {was!r} has not"))


def _ends(state: SchedulerState, batch: StartBatch, commands: Commands) -> bool:
    """Removes a running batch; reports a defect and returns False if it is not running."""
    running = state.batchers[batch.method].running
    if batch in running:
        del running[batch]
        return True
    commands.append(ReportDefect(f"a batch of {batch.method!r} ended that is not running"))
    return False


def _must_not_wait(state: SchedulerState, run: ReplicaRun) -> Failure | None:
    """Returns the failure of calls from an executor that must not wait for another turn; None if they may."""
    if state.ended or (state.draining and run.slot is None):
        return failures.DRAINING
    if run.record is not None and run.record.is_fenced:
        return failures.FENCED  # also if its link has ended: the next router may have requested it meanwhile
    if run.link.closed:
        return failures.CANCELLED
    if run.lane is not None and not state.ownership.serves(run.endpoint, run.partition, run.owner_epoch):
        return failures.STALE
    return None
