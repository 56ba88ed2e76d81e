"""Accepts the runs of routers as far as there is room, or refuses them immediately.

Invariants: a refused call was not executed. Of unkeyed calls the last ones of a run are refused, of keyed calls whole
runs, so that no later run of a key is accepted after an earlier one was refused.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection

from replica_service.core import failures
from replica_service.core.calls.commands import Fail, Refuse
from replica_service.core.calls.events import PayloadCame, PayloadFailed, RunsCame
from replica_service.core.calls.runs import ReplicaRun
from replica_service.core.state.lanes import note_failure
from replica_service.core.state.scheduler_state import SchedulerState
from replica_service.core.steps.unstarted_calls import UnstartedCalls
from slotmesh.errors import Failure


class RunIntake:
    """Accepts runs, and payloads that arrive later."""

    __slots__ = (
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
        self._permits = state.permits
        self._lanes = state.lanes
        self._ownership = state.ownership
        self._state = state
        self._payloads = state.payloads
        self._vacancies = state.vacancies
        self._unstarted = unstarted

    def runs_came(self, event: RunsCame, now: float) -> None:
        methods = self._methods
        for run in event.runs:
            if self._state.draining:
                self._refuse(run, run.lo, failures.DRAINING)
            elif run.options.method not in methods and not run.lease_s:
                if run.options.stop_generation:
                    note_failure(run, run.lo)
                self._out.append(Fail(run, run.lo, run.hi, failures.no_such_method(run.options.method, methods)))
                run.ended(run.open)
            elif run.ordering_key:
                self._take_keyed(run)
            else:
                self._vacancies.came(run.link, now)
                self._take(run)

    def payload_came(self, event: PayloadCame, _now: float) -> None:
        run = event.run
        if not run.awaits:
            return
        run.payloads = [event.payload]
        self._payloads.gone(run)
        if run.lane is None:
            self._permits.queue.append(run)
        else:
            self._lanes.unblock(run.lane)
            if (batcher := run.lane.batcher) is not None:
                batcher.recount(run.lane)

    def payload_failed(self, event: PayloadFailed, _now: float) -> None:
        run = event.run
        if run.awaits:
            self._unstarted.answer_waiting(run, run.lo, run.hi, event.failure)

    def _refuse(self, run: ReplicaRun, lo: int, failure: Failure) -> None:
        """Refuses the run's calls from `lo` on."""
        self._out.append(Refuse(run, lo, run.hi, failure))
        run.ended(run.hi - lo)

    def _take(self, run: ReplicaRun) -> None:
        link, count, permits = run.link, run.open, self._permits
        room = permits.max_ongoing + permits.prefetch - permits.in_use - permits.waiting
        if count > room:
            room = max(0, room)
            failure = failures.no_room(permits.max_ongoing, permits.prefetch)
            self._refuse(run, run.lo + room, failure)
            if not room:
                return
            run.hi = run.lo + room
            run.open = count = room
        link.unkeyed += count
        permits.waiting += count
        link.waiting[run.key] = run
        if run.awaits:
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
        link.keyed += count
        self._lanes.calls += count
        link.waiting[run.key] = run
        if run.awaits:
            self._payloads.add(run)
        lane = self._lanes.add(run)
        if lane.batcher is not None:
            lane.batcher.extend(lane, run)
