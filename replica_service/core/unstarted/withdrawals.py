"""What routers take back: calls that they cancel, and all that they have sent when they leave or sessions leave them.

Purpose: what has not started is answered; the executors, which the shell asks next, hold the rest.
Owner: the scheduler.
"""

from __future__ import annotations

from math import inf

from replica_service.core import failures
from replica_service.core.events import LinkClosed, RunsCancelled, SessionsMoved
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.sessions.moved import note_moved
from replica_service.core.slots.held_slots import HeldSlots
from replica_service.core.starting.parking import Parking
from replica_service.core.unstarted.unstarted_calls import UnstartedCalls
from slotmesh.wire.ranges import Range, common, merged


class RunWithdrawals:
    """Finds what is taken back."""

    __slots__ = ("_held", "_lanes", "_parking", "_unstarted", "_vacancies")

    def __init__(self, state: SchedulerState, parking: Parking, unstarted: UnstartedCalls, held: HeldSlots) -> None:
        self._held = held
        self._lanes = state.lanes
        self._parking = parking
        self._unstarted = unstarted
        self._vacancies = state.vacancies

    def runs_cancelled(self, event: RunsCancelled, _now: float) -> None:
        link, take_back = event.link, self._unstarted.take_back
        self._parking.unpark(link)
        others: list[Range] = []
        for first, last in event.ranges:
            run = link.waiting.get(first)
            if run is not None and last - first + 1 == run.end - run.begin == run.hi - run.begin and not run.is_split:
                take_back(run, run.begin, run.end, failures.CANCELLED)
            else:
                others.append((first, last))
        if wanted := merged(others):
            for run in list(link.waiting.values()):
                # From the last one on: what is taken out in the middle splits off what follows.
                for first, last in reversed(common(run.first + run.begin, run.first + run.end - 1, wanted)):
                    take_back(run, first - run.first, last + 1 - run.first, failures.CANCELLED)
        self._lanes.forget_those_that_left()

    def link_closed(self, event: LinkClosed, now: float) -> None:
        link = event.link
        link.closed = True
        link.fresh_until = -inf
        self._vacancies.told(link, is_full=False)
        self._parking.unpark(link)
        self._held.stream_ended(link, now)
        for run in list(link.waiting.values()):
            self._unstarted.take_back(run, run.begin, run.end, failures.CANCELLED)
        self._lanes.forget_those_that_left()

    def sessions_moved(self, event: SessionsMoved, _now: float) -> None:
        note_moved(event.runs)
        for run in event.runs:
            if run.link.waiting.get(run.key) is run:
                self._parking.unpark(run.link)
                self._unstarted.take_back(run, run.begin, run.end, failures.FENCED)
        self._lanes.forget_those_that_left()
