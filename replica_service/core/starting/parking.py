"""Runs that would have started when their link was not fresh: parked until their router echoes a stamp.

Invariants: a parked run is in `parked` of its link and nowhere else; it does not count as waiting. A call in a slot is
parked no longer than the lease of the slot would have lasted.
Owner: the scheduler.
"""

from __future__ import annotations

from replica_service.core import failures
from replica_service.core.calls import FRESH_S, ReplicaRun, RouterPeer
from replica_service.core.events import StampEchoed
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.unstarted.unstarted_calls import UnstartedCalls


class Parking:
    """Parks runs, and has them wait again."""

    __slots__ = ("_batching", "_lanes", "_permits", "_slots", "_unstarted", "links")

    def __init__(self, state: SchedulerState, unstarted: UnstartedCalls) -> None:
        self.links: dict[RouterPeer, None] = {}
        """Those that have parked runs."""
        self._permits = state.permits
        self._lanes = state.lanes
        self._batching = state.batching
        self._slots = state.slots
        self._unstarted = unstarted

    def stamp_echoed(self, event: StampEchoed, now: float) -> None:
        link = event.link
        if not link.closed:
            link.fresh_until = max(link.fresh_until, min(event.stamp_s, now) + FRESH_S)
            if link.fresh_until > now:
                self.unpark(link)

    def park(self, run: ReplicaRun) -> None:
        """The run was taken from where it waited: it stays with its link until that is fresh."""
        if run.slot is not None:
            self._slots.hold_up(run, run.slot)
        elif run.lane is None:
            self._permits.waiting -= run.hi - run.lo
        run.link.parked.append(run)
        self.links[run.link] = None

    def park_gathered(self, run: ReplicaRun, lo: int, hi: int) -> None:
        """The same for calls from `lo` up to `hi` that were in a batcher."""
        if run.lane is None:
            if run.slot is None:
                self._permits.in_use -= hi - lo
                self._permits.waiting += hi - lo
            part = run.split(lo, hi)
            run.close(0)
            run = part
        self.park(run)

    def unpark(self, link: RouterPeer) -> None:
        """Its runs wait again where they were, before those of other links."""
        if link not in self.links:
            return
        del self.links[link]
        parked, link.parked = link.parked, []
        for run in reversed(parked):
            if run.slot is not None:
                del self._slots.held_up[run]
                self._slots.enter(run)
            elif run.lane is None:
                self._permits.wait_first(run)
            else:
                self._batching.recount(self._lanes.put_back(run))

    def unpark_all(self) -> None:
        for link in list(self.links):
            self.unpark(link)

    def end_held_up(self, now: float) -> None:
        """Calls in slots that were parked for too long give back their permits."""
        held_up = self._slots.held_up
        for run in [run for run, until in held_up.items() if until <= now]:
            del held_up[run]
            run.link.parked.remove(run)
            if not run.link.parked:
                del self.links[run.link]
            failure = failures.EXPIRED if run.deadline <= now else failures.HELD_UP
            self._unstarted.answer_waiting(run, run.lo, run.hi, failure)
