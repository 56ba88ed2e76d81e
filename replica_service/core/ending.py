"""How work ends that executors were given: permits come free, and what has not started waits again.

Invariants: work ends once, as a whole or call by call; a lane goes back to where it waits for its next permit.
Owner: the scheduler, which is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from replica_service.core.commands import Part, StartBatch, StartCalls
from replica_service.core.events import BatchEnded, CallsEnded, TurnEnded, TurnsEnded, WorkReturned
from replica_service.core.lane_history import note_progress
from replica_service.core.starting import Starting


class Ending(Starting):
    """The events of executors."""

    def _calls_ended(self, event: CallsEnded, now: float) -> None:
        run, count = event.run, event.count
        if event.waited:
            self.service_times.took(run.options.method, count, (now - run.started_at) * count)
        else:
            self.service_times.ended(run.options.method, count, run.started_at, now)
        if not self._has_room:
            self._vacancies.freed(run.link, now)
        self.in_use -= count
        run.link.unkeyed -= count
        if run.slot is not None:
            self._vacate(run.slot, run.link)

    def _turn_ended(self, event: TurnEnded, now: float) -> None:
        turn, reached = event.turn, event.reached
        run, lane = turn.run, turn.lane
        lane.turn = None
        ended = reached - turn.lo
        self.service_times.took(run.options.method, ended, now - turn.started_at)
        if ended:
            note_progress(run, reached - 1)
        if reached < turn.hi:
            rest = run.split(reached, turn.hi)
            lane.runs.appendleft(rest)
            if run.withdrawn is not None and (run.record is None or not run.record.is_fenced):
                self._take_back_withdrawn(run, rest, reached, turn.hi)
            if failure := self._verdict_on(rest):
                for part in [each for each in lane.runs if each.key < 0 and each.is_part_of(run)]:
                    self._take_back_waiting(part, part.lo, part.hi, failure)
        self._close(run, ended)
        run.link.handed -= turn.hi - turn.lo
        self._keyed_gone(run.link, ended)
        self.in_use -= 1
        self._lanes.give_back(lane)

    def _turns_ended(self, event: TurnsEnded, now: float) -> None:
        turns = event.turns
        first = turns[0]
        calls = sum(turn.hi - turn.lo for turn in turns)
        self.service_times.ended(first.run.options.method, calls, first.started_at, now)
        for turn in turns:
            run, lane = turn.run, turn.lane
            lane.turn = None
            count = turn.hi - turn.lo
            self._close(run, count)
            run.link.handed -= count
            self._keyed_gone(run.link, count)
            note_progress(run, turn.hi - 1)
            self._lanes.give_back(lane)
        self.in_use -= len(turns)

    def _batch_ended(self, event: BatchEnded, now: float) -> None:
        batch = event.batch
        self.service_times.ended(batch.batcher.method, batch.count, batch.started_at, now)
        batch.batcher.ended(batch)
        had_room = self._has_room
        for run, lo, hi in batch.parts:
            if run.lane is None:
                if not had_room:
                    self._vacancies.freed(run.link, now)
                self.in_use -= hi - lo
                run.link.unkeyed -= hi - lo
                if run.slot is not None:
                    self._vacate(run.slot, run.link)
            else:
                run.link.handed -= hi - lo
                self._keyed_gone(run.link, hi - lo)
                note_progress(run, hi - 1)
        self._release(batch.lanes)

    def _work_returned(self, event: WorkReturned, _now: float) -> None:
        work = event.work
        if isinstance(work, StartCalls):
            parts: Sequence[Part] = ((work.run, work.lo, work.hi),)
        else:
            work.batcher.ended(work)
            parts = work.parts
        for run, lo, hi in reversed(parts):
            part = run.reopen(lo, hi)
            if run.slot is not None:
                self._enter(part)
            elif run.lane is None:
                self.in_use -= hi - lo
                self.waiting += hi - lo
                self._queue.appendleft(part)
            else:
                run.link.handed -= hi - lo
                run.lane.runs.appendleft(part)
            if failure := self._verdict_on(part):
                self._take_back_waiting(part, lo, hi, failure)
            elif run.withdrawn is not None:
                self._take_back_withdrawn(run, part, lo, hi)
        if isinstance(work, StartBatch):
            self._release(work.lanes)
