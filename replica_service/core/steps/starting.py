"""The start of calls: lanes and unkeyed runs get permits alternately, and batches are cut when one may run.

Purpose: after each event, starts all calls that can be started, and fails those that are found overdue.
A reservation waits among the unkeyed runs, and starts by passing its permit to the table of slots. A call that is
dispatched in a slot uses the slot's permit, and so waits for none.
Whether a call in an executor may start is decided in `state/claims.py`, right before it would.
Invariants: no call is handed to an executor after its deadline, nor while its link is not fresh; no permit is free
while a call waits for one.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from replica_service.core import failures
from replica_service.core.calls.commands import Grant, StartCalls, TellCapacity
from replica_service.core.calls.runs import ReplicaRun, StartTurn
from replica_service.core.state.lanes import MAX_TURN_CALLS, is_passed, is_stopped
from replica_service.core.state.scheduler_state import SchedulerState
from replica_service.core.steps.slot_operations import HeldSlots
from replica_service.core.steps.unstarted_calls import Parking, UnstartedCalls

SHARE_OF_ONE_CALLER: Final = 0.75
"""The share of the permits that one caller may have reserved, if no number is configured."""


class Starting:
    """Starts all calls that can be started."""

    __slots__ = (
        "_batching",
        "_gathering",
        "_held",
        "_keys",
        "_lanes",
        "_max_slots_per_caller",
        "_new_secret",
        "_odd",
        "_out",
        "_parking",
        "_payloads",
        "_permits",
        "_queue",
        "_ready",
        "_slots",
        "_unstarted",
        "_vacancies",
    )

    def __init__(
        self,
        state: SchedulerState,
        new_secret: Callable[[], bytes],
        unstarted: UnstartedCalls,
        parking: Parking,
        held: HeldSlots,
        max_slots_per_caller: int | None,
    ) -> None:
        """`new_secret` draws 128 random bits, for each slot. `max_slots_per_caller`: see `ReplicaScheduler`."""
        self._max_slots_per_caller = max_slots_per_caller
        self._odd = 0
        """Which side gets the odd permit when lanes and unkeyed runs share: 1 means lanes."""
        self._out = state.out
        self._new_secret = new_secret
        self._permits = state.permits
        self._lanes = state.lanes
        self._keys = state.keys
        self._batching = state.batching
        # Cached for each step: these objects are never replaced.
        self._queue = state.permits.queue
        self._ready = state.lanes.ready
        self._gathering = state.batching.gathering
        self._slots = state.slots
        self._payloads = state.payloads
        self._vacancies = state.vacancies
        self._unstarted = unstarted
        self._parking = parking
        self._held = held

    def settle(self, now: float) -> None:
        """Starts all calls that can be started, at the end of each step."""
        if self._payloads.due <= now:
            for run in self._payloads.late(now):
                self._unstarted.answer_waiting(run, run.lo, run.hi, failures.EXPIRED)
        slots = self._slots
        if slots.entered:
            self._start_entered(now)
        if slots.due <= now:
            self._see_to_slots(now)
        if self._queue or self._ready:
            self._grant(now)
        while self._gathering and self._cut(now):
            self._grant(now)
        if self._vacancies.full:
            while (link := self._vacancies.due(now, has_room=self._permits.has_room)) is not None:
                self._out.append(TellCapacity(link))
        if slots.vacated:
            slots.forget_vacated(now)

    def _grant(self, now: float) -> None:
        """Assigns free permits to lanes and unkeyed runs, half and half if both wait."""
        permits, queue, ready = self._permits, self._queue, self._ready
        while (free := permits.max_ongoing - permits.in_use) > 0:
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
        lane = self._ready.popleft()
        answer = self._unstarted.answer
        while (run := lane.head()) is not None:
            if run.deadline <= now:
                lo, run.lo = run.lo, run.hi
                answer(run, lo, run.hi, failures.EXPIRED)
            elif run.awaits or (self._keys.is_on and not self._keys.may_start(lane, run)):
                lane.is_blocked = True
                return
            elif run.options.stop_generation and is_stopped(run, run.lo):
                lo, run.lo = run.lo, run.hi
                answer(run, lo, run.hi, failures.STOPPED)
            elif is_passed(run):
                lo, run.lo = run.lo, run.lo + 1
                answer(run, lo, run.lo, failures.PASSED)
            elif run.link.fresh_until <= now:
                lane.runs.popleft()
                self._parking.park(run)
            else:
                break
        if run is None:
            self._lanes.give_back(lane)
            return
        self._permits.in_use += 1
        if self._keys.is_on:
            self._keys.started(lane, run)
        batcher = self._batching.batchers.get(run.options.method)
        if batcher is not None:
            batcher.gathered.offer(lane)
            self._gathering[batcher] = None
            return
        lo = run.lo
        run.lo = hi = min(run.hi, lo + MAX_TURN_CALLS)
        run.link.handed += hi - lo
        lane.turn = turn = StartTurn(lane, run, lo, hi, now)
        self._out.append(turn)

    def _start_calls(self, free: int, now: float) -> None:
        """Starts calls of the oldest unkeyed runs, `free` at most."""
        permits, queue = self._permits, self._queue
        while free and queue:
            run = queue[0]
            lo, hi = run.lo, run.hi
            count = hi - lo
            if run.deadline <= now and count:
                queue.popleft()
                permits.waiting -= count
                run.lo = hi
                self._unstarted.answer(run, lo, hi, failures.EXPIRED)
                continue
            if run.link.fresh_until <= now and count:
                queue.popleft()
                self._parking.park(run)
                continue
            if run.lease_s and count:
                queue.popleft()
                free -= self._lease(run, now)
                continue
            if count > free:
                count = free
                hi = lo + count
            else:
                queue.popleft()
            if not count:
                continue
            run.lo = hi
            free -= count
            permits.waiting -= count
            permits.in_use += count
            self._start_with_permits(run, lo, hi, now)

    def _start_with_permits(self, run: ReplicaRun, lo: int, hi: int, now: float) -> None:
        batcher = self._batching.batchers.get(run.options.method)
        if batcher is not None:
            self._gathering[batcher] = None
            for index, failure in batcher.gathered.add(run, lo, hi):
                self._permits.in_use -= 1
                self._unstarted.answer(run, index, index + 1, failure)
        else:
            run.close(hi - lo)
            run.start(hi - lo, now)
            self._out.append(StartCalls(run, lo, hi))

    def _lease(self, run: ReplicaRun, now: float) -> int:
        """Starts a reservation: its permit passes to the table of slots. Returns the number of permits used."""
        permits = self._permits
        most = self._max_slots_per_caller or max(1, int(permits.max_ongoing * SHARE_OF_ONE_CALLER))
        if (failure := self._slots.table.too_many_of(run.identity, most)) is not None:
            self._unstarted.answer_waiting(run, run.lo, run.hi, failure)
            return 0
        slot = self._slots.grant(self._new_secret(), run.endpoint, run.lease_s, now, run.identity)
        run.lo = run.hi
        permits.waiting -= 1
        permits.in_use += 1
        run.link.unkeyed -= 1
        run.close(1)
        run.ended(1)
        self._out.append(Grant(run, slot, permits.in_use))
        return 1

    def _see_to_slots(self, now: float) -> None:
        """Ends due leases, and parked calls in slots whose time is over."""
        slots = self._slots
        self._permits.in_use -= slots.table.expire(now)
        if slots.table.lapsed:
            self._held.tell_lapsed()
        if slots.held_up:
            self._parking.end_held_up(now)
        slots.set_due()

    def _start_entered(self, now: float) -> None:
        """Starts calls that were dispatched in slots."""
        slots = self._slots
        while slots.entered:
            run = slots.entered.popleft()
            lo, hi = run.lo, run.hi
            if lo == hi:
                continue
            if run.deadline <= now:
                self._unstarted.answer_waiting(run, lo, hi, failures.EXPIRED)
            elif run.link.fresh_until <= now:
                self._parking.park(run)
            else:
                run.lo = hi
                self._start_with_permits(run, lo, hi, now)

    def _cut(self, now: float) -> bool:
        """Cuts all due batches. Returns whether permits were freed meanwhile."""
        permits, batching, answer = self._permits, self._batching, self._unstarted.answer
        in_use = permits.in_use
        for batcher in list(self._gathering):
            while batcher.is_due(now):
                batch, expired, stale, failed, left = batcher.cut(now)
                for run, lo, hi in batch.parts:
                    run.close(hi - lo)
                    if run.lane is not None:
                        run.link.handed += hi - lo
                for run, lo, hi in expired:
                    if run.lane is None:
                        permits.in_use -= hi - lo
                    answer(run, lo, hi, failures.EXPIRED)
                for run, index, failure in failed:
                    if run.lane is None:
                        permits.in_use -= 1
                    answer(run, index, index + 1, failure)
                for run, lo, hi in stale:
                    self._parking.park_gathered(run, lo, hi)
                if batch.count:
                    batch.started_at = now
                    self._out.append(batch)
                batching.release(left)
            if not batcher.gathered.queue:
                del self._gathering[batcher]
        return permits.in_use < in_use
