"""How calls start: permits go to lanes and unkeyed runs in turn, batches are cut when one may run.

A reservation waits among the unkeyed runs, and its start is that its permit passes to the table of slots. A call that
is dispatched in a slot takes over that permit, and so waits for none.
Whether a call that was handed to an executor may start is decided in `claims.py`, right before it would.
Invariants: nothing is handed out past its deadline, nor while its link is not fresh; no permit is free while something
waits for one.
Owner: the scheduler, which is one.
"""

from __future__ import annotations

from math import inf

from replica_service.core import verdicts
from replica_service.core.calls import Run, StartTurn
from replica_service.core.commands import Command, Grant, StartCalls, TellCapacity
from replica_service.core.lane_history import is_passed, is_stopped
from replica_service.core.lanes import MAX_TURN_CALLS
from replica_service.core.waiting import Waiting


class Starting(Waiting):
    """Starts all that can be started."""

    @property
    def _has_room(self) -> bool:
        """Whether one unkeyed call more would be taken."""
        return self.in_use + self.waiting < self.max_ongoing + self.prefetch

    def _settle(self, now: float) -> list[Command]:
        """Starts all that can be started; returns what was decided since the last time."""
        if self._uploads_due <= now:
            self._expire_uploads(now)
        if self._slots_due <= now:
            self._see_to_slots(now)
        if self._queue or self._lanes.ready:
            self._grant(now)
        while self._gathering and self._cut(now):
            self._grant(now)
        while (link := self._vacancies.due(now, has_room=self._has_room)) is not None:
            self._out.append(TellCapacity(link))
        if self._vacated:
            for slot in self._vacated:
                self.slots.done(slot, now)
            self._vacated.clear()
        out = self._out
        if out:
            self._out = []
        return out

    def _grant(self, now: float) -> None:
        """Gives free permits to lanes and unkeyed runs, half and half where both wait."""
        ready, queue = self._lanes.ready, self._queue
        while (free := self.max_ongoing - self.in_use) > 0:
            if not ready:
                if not queue:
                    return
                self._start_calls(free, now)
            elif not queue:
                self._start_turn(now)
            else:
                share = (free + self._odd) // 2
                if free & 1:
                    self._odd ^= 1
                for _ in range(min(share, len(ready))):
                    self._start_turn(now)
                if share < free:
                    self._start_calls(free - share, now)

    def _start_turn(self, now: float) -> None:
        lane = self._lanes.ready.popleft()
        while (run := lane.head()) is not None:
            if run.deadline <= now:
                lo, run.lo = run.lo, run.hi
                self._answer(run, lo, run.hi, verdicts.EXPIRED)
            elif run.awaits:
                lane.is_blocked = True
                return
            elif run.options.stop_generation and is_stopped(run, run.lo):
                lo, run.lo = run.lo, run.hi
                self._answer(run, lo, run.hi, verdicts.STOPPED)
            elif is_passed(run):
                lo, run.lo = run.lo, run.lo + 1
                self._answer(run, lo, run.lo, verdicts.PASSED)
            elif run.link.fresh_until <= now:
                lane.runs.popleft()
                self._park(run)
            else:
                break
        if run is None:
            self._lanes.give_back(lane)
            return
        self.in_use += 1
        batcher = self._batchers.get(run.options.method)
        if batcher is not None:
            batcher.gathered.offer(lane)
            self._gathering[batcher] = None
            return
        lo = run.lo
        run.lo = hi = min(run.hi, lo + MAX_TURN_CALLS)
        run.link.handed += hi - lo
        lane.turn = turn = StartTurn(lane, run, lo, hi, now)
        self._out.append(turn)

    def _start_calls(self, permits: int, now: float) -> None:
        """Starts calls of the oldest unkeyed runs, `permits` at most."""
        queue = self._queue
        while permits and queue:
            run = queue[0]
            lo, hi = run.lo, run.hi
            count = hi - lo
            if run.deadline <= now and count:
                queue.popleft()
                self.waiting -= count
                run.lo = hi
                self._answer(run, lo, hi, verdicts.EXPIRED)
                continue
            if run.link.fresh_until <= now and count:
                queue.popleft()
                self._park(run)
                continue
            if run.lease_s and count:
                queue.popleft()
                permits -= 1
                self._lease(run, now)
                continue
            if count > permits:
                count = permits
                hi = lo + count
            else:
                queue.popleft()
            if not count:
                continue
            run.lo = hi
            permits -= count
            self.waiting -= count
            self.in_use += count
            self._start_with_permits(run, lo, hi, now)

    def _start_with_permits(self, run: Run, lo: int, hi: int, now: float) -> None:
        batcher = self._batchers.get(run.options.method)
        if batcher is not None:
            self._gathering[batcher] = None
            for index, failure in batcher.gathered.add(run, lo, hi):
                self.in_use -= 1
                self._answer(run, index, index + 1, failure)
        else:
            self._close(run, hi - lo)
            run.started_at = now
            self._out.append(StartCalls(run, lo, hi))

    def _lease(self, run: Run, now: float) -> None:
        """The turn of a reservation has come: its permit passes to the table."""
        slot = self.slots.grant(self._new_secret(), run.endpoint, run.lease_s, now)
        self._slots_due = min(self._slots_due, slot.expires_at)
        run.lo = run.hi
        self.waiting -= 1
        self.in_use += 1
        run.link.unkeyed -= 1
        self._close(run, 1)
        self._out.append(Grant(run, slot, self.in_use))

    def _see_to_slots(self, now: float) -> None:
        """Leases end, and calls that were dispatched in slots start."""
        self.in_use -= self.slots.expire(now)
        if self._held_up:
            self._end_held_up(now)
        while self._entered:
            run = self._entered.popleft()
            lo, hi = run.lo, run.hi
            if lo == hi:
                continue
            if run.deadline <= now:
                self._take_back_waiting(run, lo, hi, verdicts.EXPIRED)
            elif run.link.fresh_until <= now:
                self._park(run)
            else:
                run.lo = hi
                self._start_with_permits(run, lo, hi, now)
        deadline = self.slots.next_deadline()
        self._slots_due = min(self._held_up.values(), default=inf)
        if deadline is not None:
            self._slots_due = min(self._slots_due, deadline)

    def _cut(self, now: float) -> bool:
        """Cuts all batches that are due; returns whether permits came free on the way."""
        in_use = self.in_use
        for batcher in list(self._gathering):
            while batcher.is_due(now):
                batch, expired, stale, failed, left = batcher.cut(now)
                for run, lo, hi in batch.parts:
                    self._close(run, hi - lo)
                    if run.lane is not None:
                        run.link.handed += hi - lo
                for run, lo, hi in expired:
                    if run.lane is None:
                        self.in_use -= hi - lo
                    self._answer(run, lo, hi, verdicts.EXPIRED)
                for run, index, failure in failed:
                    if run.lane is None:
                        self.in_use -= 1
                    self._answer(run, index, index + 1, failure)
                for run, lo, hi in stale:
                    self._park_gathered(run, lo, hi)
                if batch.count:
                    batch.started_at = now
                    self._out.append(batch)
                self._release(left)
            if not batcher.gathered.queue:
                del self._gathering[batcher]
        return self.in_use < in_use

    def _park_gathered(self, run: Run, lo: int, hi: int) -> None:
        """Calls that were in a batcher."""
        if run.lane is None:
            if run.slot is None:
                self.in_use -= hi - lo
                self.waiting += hi - lo
            part = run.split(lo, hi)
            self._close(run, 0)
            run = part
        self._park(run)
