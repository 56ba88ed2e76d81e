"""What happens to calls, with its effect: each event changes the state of a run and all counts that its calls are in.

Purpose: the only writer of the counts. A call counts, by its state and by the way it gets its permit:

| | uploading, waiting | parked | gathered, executing |
|---|---|---|---|
| unkeyed, reservation | `permits.waiting`, `link.unkeyed` | `link.unkeyed` | `permits.in_use`, `link.unkeyed` |
| in a slot | `permits.in_use`, `link.unkeyed`, `link.in_slots` | the same | the same |
| keyed | `lanes.calls`, `link.keyed` | the same | the same and `link.handed`; its lane has a permit |

Invariants: an event that cannot happen to the calls, as the end of more calls than are executed, changes nothing and is
reported as a defect.
Owner: the scheduler, whose steps call a method for each event.
"""

from __future__ import annotations

from typing import Final

from replica_service.core.call_states import CALL_LIFE, CallEvent, CallState
from replica_service.core.events import ReplicaCommand, ReportDefect
from replica_service.core.lanes import Lanes
from replica_service.core.permits import Permits
from replica_service.core.runs import ReplicaRun
from replica_service.core.slot_table import ReservedSlotCalls

_ON_ACCEPTED: Final = CALL_LIFE.on(CallEvent.ACCEPTED)
_ON_GATHERED: Final = CALL_LIFE.on(CallEvent.GATHERED)
_ON_STARTED: Final = CALL_LIFE.on(CallEvent.STARTED)
_ON_FAILED: Final = CALL_LIFE.on(CallEvent.FAILED)
_EXECUTING: Final = CallState.EXECUTING
_GATHERED: Final = CallState.GATHERED
_WAITING: Final = (CallState.WAITING, CallState.UPLOADING)


class Accounting:
    """The states and counts of all calls of a replica."""

    __slots__ = ("_lanes", "_out", "_permits", "_slots")

    def __init__(self, permits: Permits, lanes: Lanes, slots: ReservedSlotCalls, out: list[ReplicaCommand]) -> None:
        self._permits = permits
        self._lanes = lanes
        self._slots = slots
        self._out = out

    # -- in --------------------------------------------------------------------------------------------------------

    def accepted(self, run: ReplicaRun) -> None:
        """All calls of the run are accepted, and can be taken back from now on."""
        after = _ON_ACCEPTED.get(run.state)
        if after is None:
            self._report(run, CallEvent.ACCEPTED)
            return
        run.state = after
        link, count = run.link, run.open
        link.waiting[run.key] = run
        if run.slot is not None:
            link.unkeyed += count
            link.in_slots += count
        elif run.ordering_key:
            link.keyed += count
            self._lanes.calls += count
        else:
            link.unkeyed += count
            self._permits.waiting += count

    def refused(self, run: ReplicaRun, lo: int) -> None:
        """The run's calls from `lo` on are not accepted, before any of them is."""
        if lo > run.lo or self._moves(run, CallEvent.REFUSED):
            count = run.hi - lo
            run.hi = lo
            run.open -= count
            run.ended(count)

    def uploaded(self, run: ReplicaRun) -> bool:
        """The payload is complete. Returns False if the call did not wait for it."""
        return self._moves(run, CallEvent.UPLOADED)

    # -- on the way ------------------------------------------------------------------------------------------------

    def parked(self, run: ReplicaRun) -> None:
        """The waiting calls of the run are parked."""
        if self._moves(run, CallEvent.PARKED) and run.lane is None and run.slot is None:
            self._permits.waiting -= run.hi - run.lo

    def unparked(self, run: ReplicaRun) -> None:
        """Parked calls wait again."""
        if self._moves(run, CallEvent.UNPARKED) and run.lane is None and run.slot is None:
            self._permits.waiting += run.hi - run.lo

    def gathered(self, run: ReplicaRun, count: int) -> None:
        """Calls before `lo` have permits now, and are in a batcher."""
        after = _ON_GATHERED.get(run.state)
        if after is None:
            self._report(run, CallEvent.GATHERED)
            return
        if run.lo == run.hi:
            run.state = after
        if run.slot is None:
            self._permits.waiting -= count
            self._permits.in_use += count

    def ungathered(self, run: ReplicaRun, lo: int, hi: int) -> ReplicaRun:
        """Calls in a batcher wait again. Returns the run that they are in from now on."""
        if run.slot is None:
            self._permits.in_use -= hi - lo
            self._permits.waiting += hi - lo
        part = run.split(lo, hi)
        run.close(0)
        return part

    def started(self, run: ReplicaRun, count: int, now: float) -> None:
        """An executor gets the calls before `lo`, each with a permit."""
        after = _ON_STARTED.get(run.state)
        if after is None:
            self._report(run, CallEvent.STARTED)
            return
        if run.lo == run.hi:
            run.state = after
        if run.slot is None:
            permits = self._permits
            permits.waiting -= count
            permits.in_use += count
        run.close(count)
        run.start(count, now)

    def turn_begun(self, run: ReplicaRun, count: int) -> None:
        """An executor gets the calls before `lo`, as the turn of their lane. They can still be taken back."""
        after = _ON_STARTED.get(run.state)
        if after is None:
            self._report(run, CallEvent.STARTED)
            return
        if run.lo == run.hi:
            run.state = after
        run.link.handed += count

    def batch_cut(self, run: ReplicaRun, count: int) -> None:
        """An executor gets calls that had permits, or whose lane had one."""
        run.close(count)
        if run.lane is not None:
            run.link.handed += count
        if not run.open:
            run.state = _EXECUTING

    def returned(self, run: ReplicaRun, lo: int, hi: int) -> ReplicaRun | None:
        """Calls have come back from an executor and wait again. Returns the run that they are in from now on."""
        count = hi - lo
        if count > run.left - (run.hi - run.lo):
            self._report(run, CallEvent.RETURNED)
            return None
        part = run.reopen(lo, hi)
        if run.lane is not None:
            run.link.handed -= count
        elif run.slot is None:
            self._permits.in_use -= count
            self._permits.waiting += count
        return part

    # -- out -------------------------------------------------------------------------------------------------------

    def granted(self, run: ReplicaRun) -> None:
        """A reservation has become a slot, which has its permit from now on."""
        if self._moves(run, CallEvent.GRANTED):
            self._permits.waiting -= 1
            self._permits.in_use += 1
            run.link.unkeyed -= 1
            run.close(1)
            run.ended(1)

    def failed(self, run: ReplicaRun, count: int, state: CallState) -> None:
        """Calls that were in this state, and not in an executor, have a failure as their outcome."""
        if state not in _ON_FAILED:
            self._report(run, CallEvent.FAILED)
            return
        run.close(count)
        run.ended(count)
        if run.lane is not None:
            self._lanes.gone(run.link, count)
            return
        if run.slot is not None or state is _GATHERED:
            self._permits.in_use -= count
        elif state in _WAITING:
            self._permits.waiting -= count
        run.link.unkeyed -= count
        if run.slot is not None:
            self._slots.vacate(run.slot, run.link)

    def executed(self, run: ReplicaRun, count: int) -> bool:
        """Calls in an executor have ended, with success or not. Returns False if fewer than `count` are in one."""
        if count > run.left - (run.hi - run.lo):
            self._report(run, CallEvent.EXECUTED)
            return False
        run.ended(count)
        if run.lane is not None:
            run.link.handed -= count
            self._lanes.gone(run.link, count)
            return True
        self._permits.in_use -= count
        run.link.unkeyed -= count
        if run.slot is not None:
            self._slots.vacate(run.slot, run.link)
        return True

    # -- checks ----------------------------------------------------------------------------------------------------

    def _moves(self, run: ReplicaRun, event: CallEvent) -> bool:
        """Changes the state of all calls from `lo` to `hi`. Returns False if the event cannot happen to them."""
        after = CALL_LIFE.steps.get((run.state, event))
        if after is None:
            self._report(run, event)
            return False
        run.state = after
        return True

    def _report(self, run: ReplicaRun, event: CallEvent) -> None:
        self._out.append(ReportDefect(CALL_LIFE.impossible(run.state, event)))
