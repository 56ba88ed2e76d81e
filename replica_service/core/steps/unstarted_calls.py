"""Calls that have not started: those that are cancelled, handed back or overdue, and those that are parked.

`UnstartedCalls` ends them. `Parking` holds runs that would have started while their link was not fresh, until their
router echoes a stamp.
Invariants: each call is ended once; the permit that a call or its lane holds is freed with that. A parked run is in
`parked` of its link and nowhere else, and does not count as waiting; a search for runs in queues unparks them first. A
call in a slot is parked no longer than the slot's lease would have lasted.
Owner: the scheduler.
"""

from __future__ import annotations

from math import inf

from replica_service.core import failures
from replica_service.core.calls.commands import Fail, Refuse
from replica_service.core.calls.events import StampEchoed
from replica_service.core.calls.runs import FRESH_S, ReplicaLane, ReplicaRun, RouterPeer
from replica_service.core.state.lanes import note_failure
from replica_service.core.state.scheduler_state import SchedulerState
from slotmesh.errors import Failure


class UnstartedCalls:
    """Removes calls from their queues, and ends them with a failure."""

    __slots__ = ("_batching", "_lanes", "_out", "_payloads", "_permits", "_slots")

    def __init__(self, state: SchedulerState) -> None:
        self._out = state.out
        self._permits = state.permits
        self._lanes = state.lanes
        self._batching = state.batching
        self._slots = state.slots
        self._payloads = state.payloads

    def take_back(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Fails those of the calls that have not started, and forbids those in an executor to start."""
        handed = min(hi, run.lo)
        self.answer_waiting(run, max(lo, run.lo), min(hi, run.hi), failure)
        if lo >= handed:
            return
        if run.lane is not None:
            run.withdraw(lo, handed)
        elif batcher := self._batching.batchers.get(run.options.method):
            for begin, end in batcher.gathered.withdraw(run, lo, handed):
                self._permits.in_use -= end - begin
                self.answer(run, begin, end, failure)

    def answer_waiting(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Removes waiting calls and fails them: `run.lo <= lo` and `hi <= run.hi`."""
        if lo >= hi:
            return
        lane = run.lane
        if run.slot is not None:
            self._permits.in_use -= hi - lo
        elif lane is None:
            self._permits.waiting -= hi - lo
        if lo == run.lo:
            run.lo = hi
        else:
            if hi < run.hi:
                rest = run.split(hi, run.hi)
                queue = self._permits.queue if lane is None else lane.runs
                queue.insert(queue.index(run) + 1, rest)
            run.hi = lo
        self.answer(run, lo, hi, failure)
        if lane is not None:
            self._lanes.unblock(lane)
            self._batching.recount(lane)

    def answer_withdrawn(self, run: ReplicaRun, part: ReplicaRun, lo: int, hi: int) -> None:
        """The part, which has the run's calls from `lo` up to `hi`, has come back from an executor and waits again.

        Those of its calls that were taken back meanwhile do not.
        """
        # In descending order, because removing calls in the middle splits off those after them.
        for index in sorted(run.withdrawn or (), reverse=True):
            if lo <= index < hi:
                self.answer_waiting(part, index, index + 1, failures.CANCELLED)

    def hand_back(self, lane: ReplicaLane, failure: Failure, *, through_epoch: float = inf) -> None:
        """Fails the lane's waiting calls that were sent at this owner epoch, or an older one."""
        for run in list(lane.runs):
            if run.owner_epoch <= through_epoch:
                self.answer_waiting(run, run.lo, run.hi, failure)

    def answer(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Ends calls that were removed from their queue with this failure."""
        if run.options.stop_generation and not run.link.closed and not failures.hands_back(failure):
            note_failure(run, lo)  # now: the consequences are decided before the outcome is written
        count = hi - lo
        run.close(count)
        run.ended(count)
        if run.awaits:
            self._payloads.gone(run)
        if run.lane is None:
            run.link.unkeyed -= count
            if run.slot is not None:
                self._slots.vacate(run.slot, run.link)
        else:
            self._lanes.gone(run.link, count)
        command = Refuse if failures.hands_back(failure) else Fail
        self._out.append(command(run, lo, hi, failure))


class Parking:
    """Parks runs, and returns them to their queues."""

    __slots__ = ("_batching", "_lanes", "_permits", "_slots", "_unstarted", "links")

    def __init__(self, state: SchedulerState, unstarted: UnstartedCalls) -> None:
        self.links: dict[RouterPeer, None] = {}
        """Links with parked runs."""
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
        """Parks a run that was taken from its queue, until its link is fresh."""
        if run.slot is not None:
            self._slots.hold_up(run, run.slot)
        elif run.lane is None:
            self._permits.waiting -= run.hi - run.lo
        run.link.parked.append(run)
        self.links[run.link] = None

    def park_gathered(self, run: ReplicaRun, lo: int, hi: int) -> None:
        """Parks the run's calls from `lo` up to `hi`, which were in a batcher."""
        if run.lane is None:
            if run.slot is None:
                self._permits.in_use -= hi - lo
                self._permits.waiting += hi - lo
            part = run.split(lo, hi)
            run.close(0)
            run = part
        self.park(run)

    def unpark(self, link: RouterPeer) -> None:
        """Returns the link's runs to the front of their queues."""
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
        """Fails calls in slots that were parked for too long, which frees their permits."""
        held_up = self._slots.held_up
        for run in [run for run, until in held_up.items() if until <= now]:
            del held_up[run]
            run.link.parked.remove(run)
            if not run.link.parked:
                del self.links[run.link]
            failure = failures.EXPIRED if run.deadline <= now else failures.HELD_UP
            self._unstarted.answer_waiting(run, run.lo, run.hi, failure)
