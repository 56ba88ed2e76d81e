"""What happens to calls and lanes, with its effect: each event changes a state and all counts that the calls are in.

Purpose: the only writer of the counts. A call counts, by its state and by the way it gets its permit:

| | uploading, waiting | parked | gathered, executing |
|---|---|---|---|
| unkeyed, reservation | `permits.waiting`, `link.unkeyed` | `link.unkeyed` | `permits.in_use`, `link.unkeyed` |
| in a slot | `permits.in_use`, `link.unkeyed`, `link.in_slots` | the same | the same |
| keyed | `lanes.calls`, `link.keyed` | the same | the same and `link.handed`; its lane has a permit |

Invariants: an event that cannot happen to the calls, as the end of more calls than are executed, changes nothing and is
reported as a defect.
Owner: the scheduler, whose steps call a function for each event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replica_service.core.call_states import CALL_LIFE, CallEvent, CallState
from replica_service.core.events import Commands, ReportDefect
from replica_service.core.lanes import ON_EMPTIED, ON_RETURNED, ON_TURN_BEGUN, move
from replica_service.core.runs import ReplicaLane, ReplicaRun
from replica_service.core.scheduler_state import SchedulerState

_ON_ACCEPTED: Final = CALL_LIFE.on(CallEvent.ACCEPTED)
_ON_GATHERED: Final = CALL_LIFE.on(CallEvent.GATHERED)
_ON_STARTED: Final = CALL_LIFE.on(CallEvent.STARTED)
_ON_FAILED: Final = CALL_LIFE.on(CallEvent.FAILED)
_EXECUTING: Final = CallState.EXECUTING
_GATHERED: Final = CallState.GATHERED
_WAITING: Final = (CallState.WAITING, CallState.UPLOADING)

# -- in ----------------------------------------------------------------------------------------------------------------


def accepted(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    """All calls of the run are accepted, and can be taken back from now on."""
    try:
        run.state = _ON_ACCEPTED[run.state]
    except KeyError:
        _report(run, CallEvent.ACCEPTED, commands)
        return
    link, count = run.link, run.open
    link.waiting[run.key] = run
    if run.slot is not None:
        link.unkeyed += count
        link.in_slots += count
    elif run.ordering_key or run.is_keyed:
        link.keyed += count
        state.lanes.calls += count
    else:
        link.unkeyed += count
        state.permits.waiting += count


def refused(run: ReplicaRun, lo: int, commands: Commands) -> None:
    """The run's calls from `lo` on are not accepted, before any of them is."""
    if lo > run.lo or _moves(run, CallEvent.REFUSED, commands):
        count = run.hi - lo
        run.hi = lo
        run.open -= count
        run.ended(count)


def uploaded(run: ReplicaRun, commands: Commands) -> bool:
    """The payload is complete. Returns False if the call did not wait for it."""
    return _moves(run, CallEvent.UPLOADED, commands)


# -- on the way --------------------------------------------------------------------------------------------------------


def parked(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    """The waiting calls of the run are parked."""
    if _moves(run, CallEvent.PARKED, commands) and run.lane is None and run.slot is None:
        state.permits.waiting -= run.hi - run.lo


def unparked(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    """Parked calls wait again."""
    if _moves(run, CallEvent.UNPARKED, commands) and run.lane is None and run.slot is None:
        state.permits.waiting += run.hi - run.lo


def gathered(state: SchedulerState, run: ReplicaRun, count: int, commands: Commands) -> None:
    """Calls before `lo` have permits now, and are in a batcher."""
    after = _ON_GATHERED.get(run.state)
    if after is None:
        _report(run, CallEvent.GATHERED, commands)
        return
    if run.lo == run.hi:
        run.state = after
    if run.slot is None:
        state.permits.waiting -= count
        state.permits.in_use += count


def ungathered(state: SchedulerState, run: ReplicaRun, lo: int, hi: int) -> ReplicaRun:
    """Calls in a batcher wait again. Returns the run that they are in from now on."""
    if run.slot is None:
        state.permits.in_use -= hi - lo
        state.permits.waiting += hi - lo
    part = run.split(lo, hi)
    run.close(0)
    return part


def started(state: SchedulerState, run: ReplicaRun, count: int, now: float, commands: Commands) -> None:
    """An executor gets the calls before `lo`, each with a permit."""
    try:
        after = _ON_STARTED[run.state]
    except KeyError:
        _report(run, CallEvent.STARTED, commands)
        return
    if run.lo == run.hi:
        run.state = after
    if run.slot is None:
        permits = state.permits
        permits.waiting -= count
        permits.in_use += count
    run.close(count)
    run.start(count, now)


def turn_begun(lane: ReplicaLane, run: ReplicaRun, count: int, commands: Commands) -> None:
    """An executor gets the calls before `lo`, as the turn of their lane. They can still be taken back."""
    try:
        lane.state, after = ON_TURN_BEGUN[lane.state], _ON_STARTED[run.state]
    except KeyError:
        if move(lane, ON_TURN_BEGUN, commands):  # reports the defect, if it is the lane's
            _report(run, CallEvent.STARTED, commands)
        return
    if run.lo == run.hi:
        run.state = after
    run.link.handed += count


def batch_cut(run: ReplicaRun, count: int) -> None:
    """An executor gets calls that had permits, or whose lane had one."""
    run.close(count)
    if run.lane is not None:
        run.link.handed += count
    if not run.open:
        run.state = _EXECUTING


def returned(state: SchedulerState, run: ReplicaRun, lo: int, hi: int, commands: Commands) -> ReplicaRun | None:
    """Calls have come back from an executor and wait again. Returns the run that they are in from now on."""
    count = hi - lo
    if count > run.left - (run.hi - run.lo):
        _report(run, CallEvent.RETURNED, commands)
        return None
    part = run.reopen(lo, hi)
    if run.lane is not None:
        run.link.handed -= count
    elif run.slot is None:
        state.permits.in_use -= count
        state.permits.waiting += count
    return part


# -- out ---------------------------------------------------------------------------------------------------------------


def granted(state: SchedulerState, run: ReplicaRun, commands: Commands) -> None:
    """A reservation has become a slot, which has its permit from now on."""
    if _moves(run, CallEvent.GRANTED, commands):
        state.permits.waiting -= 1
        state.permits.in_use += 1
        run.link.unkeyed -= 1
        run.close(1)
        run.ended(1)


def failed(state: SchedulerState, run: ReplicaRun, count: int, were: CallState, commands: Commands) -> None:
    """Calls that were in this state, and not in an executor, have a failure as their outcome."""
    if were not in _ON_FAILED:
        _report(run, CallEvent.FAILED, commands)
        return
    run.close(count)
    run.ended(count)
    link = run.link
    if run.lane is not None:
        state.lanes.calls -= count
        link.keyed -= count
        if not link.keyed:
            link.overrun = False
        return
    if run.slot is not None or were is _GATHERED:
        state.permits.in_use -= count
    elif were in _WAITING:
        state.permits.waiting -= count
    link.unkeyed -= count
    if run.slot is not None:
        state.slots.vacate(run.slot, link)


def executed(state: SchedulerState, run: ReplicaRun, count: int, commands: Commands) -> bool:
    """Calls in an executor have ended, with success or not. Returns False if fewer than `count` are in one."""
    if count > run.left - (run.hi - run.lo):
        _report(run, CallEvent.EXECUTED, commands)
        return False
    run.ended(count)
    link = run.link
    if run.lane is not None:
        link.handed -= count
        state.lanes.calls -= count
        link.keyed -= count
        if not link.keyed:
            link.overrun = False
        return True
    state.permits.in_use -= count
    link.unkeyed -= count
    if run.slot is not None:
        state.slots.vacate(run.slot, link)
    return True


# -- lanes -------------------------------------------------------------------------------------------------------------


def give_back(state: SchedulerState, lane: ReplicaLane, commands: Commands) -> None:
    """Ends the lane's turn: it moves to the back of the queue, or is dropped if it has no calls."""
    if state.keys.is_on:
        state.keys.returned(lane, commands)
    is_empty = lane.head() is None
    row = ON_EMPTIED if is_empty else ON_RETURNED
    after = row.get(lane.state)
    if after is None:
        move(lane, row, commands)  # reports the defect
        return
    lane.state = after
    if is_empty:
        state.lanes.forget(lane)
    else:
        state.lanes.ready.append(lane)


def release(state: SchedulerState, lanes: Iterable[ReplicaLane], commands: Commands) -> None:
    """Takes the permits of these lanes; they wait for another one, or are dropped if they have no calls."""
    for lane in lanes:
        state.permits.in_use -= 1
        give_back(state, lane, commands)


def recount(state: SchedulerState, lane: ReplicaLane, commands: Commands) -> None:
    """Counts a changed lane anew; removes it from its batcher if its first call is of another method."""
    method = lane.batch_method
    if method is not None and not state.batchers[method].gathered.recount(lane):
        release(state, (lane,), commands)


def forget_empty_lanes(state: SchedulerState, commands: Commands) -> None:
    """Drops ready lanes without calls, without waiting for a permit for them."""
    ready = state.lanes.ready
    for _ in range(len(ready)):
        give_back(state, ready.popleft(), commands)


def forget_lanes_that_left(state: SchedulerState, commands: Commands) -> None:
    """Like `forget_empty_lanes`, if any partition moves away: cancelled calls may have made it empty."""
    if state.lanes.has_leaving:
        forget_empty_lanes(state, commands)


# -- checks ------------------------------------------------------------------------------------------------------------


def _moves(run: ReplicaRun, event: CallEvent, commands: Commands) -> bool:
    """Changes the state of all calls from `lo` to `hi`. Returns False if the event cannot happen to them."""
    after = CALL_LIFE.steps.get((run.state, event))
    if after is None:
        _report(run, event, commands)
        return False
    run.state = after
    return True


def _report(run: ReplicaRun, event: CallEvent, commands: Commands) -> None:
    commands.append(ReportDefect(CALL_LIFE.impossible(run.state, event)))
