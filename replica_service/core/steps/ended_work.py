"""The end of work in executors: permits are freed, and unstarted calls wait again.

Invariants: work ends once, as a whole or call by call; a lane returns to the queue for its next permit. Unstarted calls
return to the head of their queue, or get their outcome if they must not wait any longer.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from replica_service.core import failures
from replica_service.core.calls.commands import Part, StartBatch, StartCalls
from replica_service.core.calls.events import BatchEnded, CallsEnded, TurnEnded, TurnsEnded, WorkReturned
from replica_service.core.calls.runs import ReplicaRun
from replica_service.core.state.call_times import ServiceTimes
from replica_service.core.state.lanes import note_progress
from replica_service.core.state.scheduler_state import SchedulerState
from replica_service.core.steps.unstarted_calls import UnstartedCalls
from slotmesh.errors import Failure


class Endings:
    """Handles the ends of work, and frees permits."""

    __slots__ = (
        "_batching",
        "_lanes",
        "_ownership",
        "_permits",
        "_slots",
        "_state",
        "_unstarted",
        "_vacancies",
        "call_times",
        "service_times",
    )

    def __init__(self, state: SchedulerState, unstarted: UnstartedCalls) -> None:
        self.service_times = ServiceTimes(state.batching.batchers)
        self.call_times = state.call_times
        self._permits = state.permits
        self._lanes = state.lanes
        self._ownership = state.ownership
        self._state = state
        self._batching = state.batching
        self._slots = state.slots
        self._vacancies = state.vacancies
        self._unstarted = unstarted

    def calls_ended(self, event: CallsEnded, now: float) -> None:
        run, count = event.run, event.count
        self.call_times.calls_ended(run, count, now)
        if event.waited:
            self.service_times.took(run.options.method, count, (now - run.started_at) * count)
        else:
            self.service_times.ended(run.options.method, count, run.started_at, now)
        if not self._permits.has_room:
            self._vacancies.freed(run.link, now)
        self._free(run, count)

    def batch_ended(self, event: BatchEnded, now: float) -> None:
        batch = event.batch
        self.call_times.batch_ended(batch, now)
        self.service_times.ended(batch.batcher.method, batch.count, batch.started_at, now)
        batch.batcher.ended(batch)
        had_room = self._permits.has_room
        for run, lo, hi in batch.parts:
            if run.lane is None:
                if not had_room:
                    self._vacancies.freed(run.link, now)
                self._free(run, hi - lo)
            else:
                run.link.handed -= hi - lo
                self._lanes.gone(run.link, hi - lo)
                run.ended(hi - lo)
                note_progress(run, hi - 1)
        self._batching.release(batch.lanes)

    def _free(self, run: ReplicaRun, count: int) -> None:
        """Handles the end of `count` unkeyed calls of the run."""
        self._permits.in_use -= count
        run.link.unkeyed -= count
        run.ended(count)
        if run.slot is not None:
            self._slots.vacate(run.slot, run.link)

    def turn_ended(self, event: TurnEnded, now: float) -> None:
        turn, reached = event.turn, event.reached
        run, lane = turn.run, turn.lane
        lane.turn = None
        ended = reached - turn.lo
        self.call_times.turn_ended(turn, ended, now)
        self.service_times.took(run.options.method, ended, now - turn.started_at)
        if ended:
            note_progress(run, reached - 1)
        if reached < turn.hi:
            rest = run.split(reached, turn.hi)
            lane.runs.appendleft(rest)
            if run.withdrawn is not None and (run.record is None or not run.record.is_fenced):
                self._unstarted.answer_withdrawn(run, rest, reached, turn.hi)
            if failure := self._must_not_wait(rest):
                for part in [each for each in lane.runs if each.key < 0 and each.is_part_of(run)]:
                    self._unstarted.answer_waiting(part, part.lo, part.hi, failure)
        run.close(ended)
        run.link.handed -= turn.hi - turn.lo
        self._lanes.gone(run.link, ended)
        run.ended(ended)
        self._permits.in_use -= 1
        self._lanes.give_back(lane)

    def turns_ended(self, event: TurnsEnded, now: float) -> None:
        turns, lanes = event.turns, self._lanes
        first = turns[0]
        calls = sum(turn.hi - turn.lo for turn in turns)
        self.service_times.ended(first.run.options.method, calls, first.started_at, now)
        for turn in turns:
            run, lane = turn.run, turn.lane
            lane.turn = None
            count = turn.hi - turn.lo
            self.call_times.turn_ended(turn, count, now)
            run.close(count)
            run.link.handed -= count
            lanes.gone(run.link, count)
            run.ended(count)
            note_progress(run, turn.hi - 1)
            lanes.give_back(lane)
        self._permits.in_use -= len(turns)

    def work_returned(self, event: WorkReturned, _now: float) -> None:
        work, permits = event.work, self._permits
        if isinstance(work, StartCalls):
            parts: Sequence[Part] = ((work.run, work.lo, work.hi),)
        else:
            work.batcher.ended(work)
            parts = work.parts
        for run, lo, hi in event.cancelled:
            run.withdraw(lo, hi)
        for run, lo, hi in reversed(parts):
            part = run.reopen(lo, hi)
            if run.slot is not None:
                self._slots.enter(part)
            elif run.lane is None:
                permits.in_use -= hi - lo
                permits.wait_first(part)
            else:
                run.link.handed -= hi - lo
                run.lane.runs.appendleft(part)
            if failure := self._must_not_wait(part):
                self._unstarted.answer_waiting(part, lo, hi, failure)
            elif run.withdrawn is not None:
                self._unstarted.answer_withdrawn(run, part, lo, hi)
        if isinstance(work, StartBatch):
            self._batching.release(work.lanes)

    def _must_not_wait(self, run: ReplicaRun) -> Failure | None:
        """Returns the failure of calls from an executor that must not wait for another turn; None if they may."""
        if self._state.ended or (self._state.draining and run.slot is None):
            return failures.DRAINING
        if run.record is not None and run.record.is_fenced:
            return failures.FENCED  # also if its link has ended: the next router may have requested it meanwhile
        if run.link.closed:
            return failures.CANCELLED
        if run.lane is not None and not self._ownership.serves(run.endpoint, run.partition, run.owner_epoch):
            return failures.STALE
        return None
