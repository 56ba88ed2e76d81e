"""The way of a run in: it is accepted as far as there is room, gets permits, and its calls are handed to executors.

`RunIntake` accepts the runs of routers, or refuses them immediately. `Starting` starts, after each event, all calls
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

from collections.abc import Callable, Collection
from typing import Final

from replica_service.core import failures
from replica_service.core.call_states import CallState
from replica_service.core.ending import Parking, UnstartedCalls
from replica_service.core.events import (
    Fail,
    Grant,
    PayloadFailed,
    PayloadReceived,
    Refuse,
    ReportCapacity,
    RunsReceived,
)
from replica_service.core.lanes import ON_BLOCKED, ON_CUT, ON_OFFERED, ON_TURN_BEGUN
from replica_service.core.runs import ReplicaRun, StartTurn
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.slot_operations import HeldSlots
from replica_service.core.work import MAX_TURN_CALLS, StartCalls, is_passed, is_stopped, note_failure
from slotmesh.errors import Failure

_GATHERED: Final = CallState.GATHERED
_UPLOADING: Final = CallState.UPLOADING


class RunIntake:
    """Accepts runs, and payloads that arrive later."""

    __slots__ = (
        "_accounting",
        "_lanes",
        "_methods",
        "_out",
        "_ownership",
        "_payloads",
        "_permits",
        "_state",
        "_unstarted",
        "_vacancies",
        "keyed_window",
    )

    def __init__(
        self, state: SchedulerState, methods: Collection[str], keyed_window: int, unstarted: UnstartedCalls
    ) -> None:
        """`methods`: the callable ones."""
        self.keyed_window = keyed_window
        """Keyed calls without outcome that one router may have here."""
        self._out = state.out
        self._methods = methods
        self._accounting = state.accounting
        self._permits = state.permits
        self._lanes = state.lanes
        self._ownership = state.ownership
        self._state = state
        self._payloads = state.payloads
        self._vacancies = state.vacancies
        self._unstarted = unstarted

    def runs_received(self, event: RunsReceived, now: float) -> None:
        methods = self._methods
        for run in event.runs:
            if self._state.draining:
                self._refuse(run, run.lo, failures.DRAINING)
            elif run.options.method not in methods and not run.lease_s:
                if run.options.stop_generation:
                    note_failure(run, run.lo)
                self._out.append(Fail(run, run.lo, run.hi, failures.no_such_method(run.options.method, methods)))
                self._accounting.refused(run, run.lo)
            elif run.ordering_key:
                self._take_keyed(run)
            else:
                self._vacancies.came(run.link, now)
                self._take(run)

    def payload_received(self, event: PayloadReceived, _now: float) -> None:
        run = event.run
        if run.state is not _UPLOADING or not self._accounting.uploaded(run):
            return
        run.payloads = [event.payload]
        self._payloads.gone(run)
        if run.lane is None:
            self._permits.queue.append(run)
        else:
            self._lanes.unblock(run.lane)
            self._state.batching.recount(run.lane)

    def payload_failed(self, event: PayloadFailed, _now: float) -> None:
        run = event.run
        if run.state is _UPLOADING:
            self._unstarted.answer_waiting(run, run.lo, run.hi, event.failure)

    def _refuse(self, run: ReplicaRun, lo: int, failure: Failure) -> None:
        """Refuses the run's calls from `lo` on."""
        self._out.append(Refuse(run, lo, run.hi, failure))
        self._accounting.refused(run, lo)

    def _take(self, run: ReplicaRun) -> None:
        count, permits = run.open, self._permits
        room = permits.max_ongoing + permits.prefetch - permits.in_use - permits.waiting
        if count > room:
            room = max(0, room)
            failure = failures.no_room(permits.max_ongoing, permits.prefetch)
            self._refuse(run, run.lo + room, failure)
            if not room:
                return
        self._accounting.accepted(run)
        if run.state is _UPLOADING:
            self._payloads.add(run)
        else:
            permits.queue.append(run)

    def _take_keyed(self, run: ReplicaRun) -> None:
        link, count = run.link, run.open
        if not self._ownership.admit(run.endpoint, run.partition, run.owner_epoch):
            self._refuse(run, run.lo, failures.STALE)
            return
        # Calls in a turn may have their outcome already, and the router may have sent others for them.
        if link.overrun or link.keyed - link.handed + count > self.keyed_window:
            # No later run of the same key may be accepted before this one: all keyed runs are refused for now.
            link.overrun = link.keyed > 0
            failure = failures.past_window(link.keyed, count, self.keyed_window)
            self._refuse(run, run.lo, failure)
            return
        self._accounting.accepted(run)
        if run.state is _UPLOADING:
            self._payloads.add(run)
        self._state.batching.extend(self._lanes.add(run), run)


SHARE_OF_ONE_CALLER: Final = 0.75
"""The share of the permits that one caller may have reserved, if no number is configured."""


class Starting:
    """Starts all calls that can be started."""

    __slots__ = (
        "_accounting",
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
        self._accounting = state.accounting
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
                self._out.append(ReportCapacity(link))
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
            elif run.state is _UPLOADING or (self._keys.is_on and not self._keys.may_start(lane, run)):
                self._lanes.move(lane, ON_BLOCKED)
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
            self._lanes.move(lane, ON_OFFERED)
            batcher.gathered.offer(lane)
            self._gathering[batcher] = None
            return
        self._lanes.move(lane, ON_TURN_BEGUN)
        lo = run.lo
        run.lo = hi = min(run.hi, lo + MAX_TURN_CALLS)
        self._accounting.turn_begun(run, hi - lo)
        lane.turn = turn = StartTurn(lane, run, lo, hi, now)
        self._out.append(turn)

    def _start_calls(self, free: int, now: float) -> None:
        """Starts calls of the oldest unkeyed runs, `free` at most."""
        queue = self._queue
        while free and queue:
            run = queue[0]
            lo, hi = run.lo, run.hi
            count = hi - lo
            if run.deadline <= now and count:
                queue.popleft()
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
            free -= count
            self._start_with_permits(run, lo, hi, now)

    def _start_with_permits(self, run: ReplicaRun, lo: int, hi: int, now: float) -> None:
        batcher = self._batching.batchers.get(run.options.method)
        run.lo = hi
        if batcher is not None:
            self._accounting.gathered(run, hi - lo)
            self._gathering[batcher] = None
            for index, failure in batcher.gathered.add(run, lo, hi):
                self._unstarted.answer(run, index, index + 1, failure, _GATHERED)
        else:
            self._accounting.started(run, hi - lo, now)
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
        self._accounting.granted(run)
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
                self._start_with_permits(run, lo, hi, now)

    def _cut(self, now: float) -> bool:
        """Cuts all due batches. Returns whether permits were freed meanwhile."""
        permits, batching, answer = self._permits, self._batching, self._unstarted.answer
        in_use = permits.in_use
        for batcher in list(self._gathering):
            while batcher.is_due(now):
                batch, expired, stale, failed, left = batcher.cut(now)
                for run, lo, hi in batch.parts:
                    self._accounting.batch_cut(run, hi - lo)
                for lane in batch.lanes:
                    self._lanes.move(lane, ON_CUT)
                for run, lo, hi in expired:
                    answer(run, lo, hi, failures.EXPIRED, _GATHERED)
                for run, index, failure in failed:
                    answer(run, index, index + 1, failure, _GATHERED)
                for run, lo, hi in stale:
                    self._parking.park_gathered(run, lo, hi)
                if batch.count:
                    batch.started_at = now
                    self._out.append(batch)
                batching.release(left)
            if not batcher.gathered.queue:
                del self._gathering[batcher]
        return permits.in_use < in_use
