"""What waits at a replica, and how it is answered without having run.

Purpose: the state that the scheduler decides about; the way in, as far as there is room; and the way back: calls that
are taken back, handed back, or parked because their link is not fresh.
Invariants: `waiting` counts unkeyed calls in the queue, and those whose payloads are under way; `keyed` all keyed ones
that are here. A call in a slot is in neither: it never waits for a permit, as it has one; so it is parked no longer
than the lease of the slot would have lasted. A parked run is in `parked` of its link and nowhere else; whatever looks
through queues unparks first.
Owner: the scheduler, which is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf

from replica_service.core import verdicts
from replica_service.core.batcher import Batcher
from replica_service.core.calls import FRESH_S, Lane, Link, Run
from replica_service.core.commands import Command, Fail, Refuse
from replica_service.core.gathering import Weigh
from replica_service.core.lane_history import note_failure
from replica_service.core.lanes import Lanes
from replica_service.core.ownership import Ownership
from replica_service.core.service_times import ServiceTimes
from replica_service.core.slots import Slot, SlotTable
from replica_service.core.vacancies import CAPACITY_GAP_S, Vacancies
from slotmesh.errors import Failure
from slotmesh.handlers import BatchControl

DEFAULT_KEYED_WINDOW = 8192
"""Keyed calls that one router may have unanswered."""


def no_secrets() -> bytes:
    raise RuntimeError("new_secret: needed where slots are reserved")


class Waiting:
    """Runs, permits, lanes and batchers of one replica."""

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        *,
        weigh: Mapping[str, Weigh] | None = None,
        max_ongoing: int,
        prefetch: int = 0,
        keyed_window: int = DEFAULT_KEYED_WINDOW,
        capacity_gap_s: float = CAPACITY_GAP_S,
        chance: Callable[[], float] = lambda: 0.5,
        new_secret: Callable[[], bytes] = no_secrets,
    ) -> None:
        """`methods`: those that can be called, by name, with the settings of batch methods.

        `weigh`: who says what calls of a batch method weigh, for those where they have a weight.
        `capacity_gap_s` and `chance`: see `Vacancies`. `new_secret` draws 128 random bits, for each slot.
        """
        self.max_ongoing = max_ongoing
        self.prefetch = prefetch
        self.keyed_window = keyed_window
        self.draining = False
        self.ended = False
        """Nothing starts any more, be it in a slot."""
        self.in_use = 0
        """Permits in use: calls that run or are in a batcher, lanes that have their turn, slots."""
        self.waiting = 0
        """Unkeyed calls and reservations without a permit."""
        self.keyed = 0
        """Keyed calls that are here, running or not."""
        self._methods = methods
        self._batchers = _batchers_of(methods, weigh or {}, max_ongoing)
        self.service_times = ServiceTimes(self._batchers)
        self._gathering: dict[Batcher, None] = {}
        """Batchers in which calls wait."""
        self._queue: deque[Run] = deque()
        """Unkeyed runs with calls that wait for permits, by age. Some may have been emptied by a cancel."""
        self._lanes = Lanes()
        self._parked: dict[Link, None] = {}
        """Links that have parked runs."""
        self._ownership = Ownership()
        self._uploading: dict[Run, None] = {}
        """Runs whose payloads are under way. Unkeyed ones are in no queue, keyed ones in their lane."""
        self._uploads_due = inf
        """No deadline of theirs is before this moment."""
        self.slots = SlotTable()
        self._new_secret = new_secret
        self._entered: deque[Run] = deque()
        """Calls in slots that have not started. Some may have been emptied by a cancel."""
        self._held_up: dict[Run, float] = {}
        """Calls in slots that are parked, and until when they may be: they keep permits from others."""
        self._vacated: list[Slot] = []
        """Slots whose calls have ended since the last time."""
        self._slots_due = inf
        """No lease ends before this moment, nor the time of a call that is held up; minus infinity where there is
        something to do at once."""
        self._odd = 0
        """Who gets the odd permit when lanes and unkeyed runs share: 1 for lanes."""
        self._vacancies = Vacancies(capacity_gap_s, chance)
        self._out: list[Command] = []

    @property
    def batchers(self) -> Mapping[str, Batcher]:
        """Those of the batch methods, by name."""
        return self._batchers

    # -- in --------------------------------------------------------------------------------------------------------

    def _admit(self, run: Run) -> None:
        link, count = run.link, run.open
        room = max(0, self.max_ongoing + self.prefetch - self.in_use - self.waiting)
        if count > room:
            failure = verdicts.no_room(self.max_ongoing, self.prefetch)
            self._out.append(Refuse(run, run.lo + room, run.hi, failure))
            if not room:
                return
            run.hi = run.lo + room
            run.open = count = room
        link.unkeyed += count
        self.waiting += count
        link.waiting[run.key] = run
        if run.awaits:
            self._await(run)
        else:
            self._queue.append(run)

    def _admit_keyed(self, run: Run) -> None:
        link, count = run.link, run.open
        if not self._ownership.admit(run.endpoint, run.partition, run.owner_epoch):
            self._out.append(Refuse(run, run.lo, run.hi, verdicts.STALE))
            return
        # What is in a turn may have been answered, and the router may have filled its place.
        if link.overrun or link.keyed - link.handed + count > self.keyed_window:
            # A later run of the same key must not be taken where this one was not: all of them wait outside.
            link.overrun = link.keyed > 0
            failure = verdicts.past_window(link.keyed, count, self.keyed_window)
            self._out.append(Refuse(run, run.lo, run.hi, failure))
            return
        link.keyed += count
        self.keyed += count
        link.waiting[run.key] = run
        if run.awaits:
            self._await(run)
        lane = self._lanes.add(run)
        if lane.batcher is not None:
            lane.batcher.extend(lane, run)

    # -- links that are not fresh ----------------------------------------------------------------------------------

    def _park(self, run: Run) -> None:
        """The run was taken from where it waited: it stays with its link until that is fresh."""
        if run.slot is not None:
            # The rest of a lease may be less than what a link takes to become fresh.
            until = self._held_up[run] = min(run.deadline, max(run.slot.expires_at, run.arrived + FRESH_S))
            self._slots_due = min(self._slots_due, until)
        elif run.lane is None:
            self.waiting -= run.hi - run.lo
        run.link.parked.append(run)
        self._parked[run.link] = None

    def _unpark(self, link: Link) -> None:
        """Its runs wait again where they were, before those of other links."""
        if link not in self._parked:
            return
        del self._parked[link]
        parked, link.parked = link.parked, []
        for run in reversed(parked):
            if run.slot is not None:
                del self._held_up[run]
                self._enter(run)
                continue
            if run.lane is None:
                self.waiting += run.hi - run.lo
                self._queue.appendleft(run)
                continue
            lane = self._lanes.put_back(run)
            if (batcher := lane.batcher) is not None and not batcher.recount(lane):
                self._release((lane,))

    def _unpark_all(self) -> None:
        for link in list(self._parked):
            self._unpark(link)

    # -- slots -----------------------------------------------------------------------------------------------------

    def _enter(self, run: Run) -> None:
        """A call in a slot is to start."""
        self._entered.appendleft(run)
        self._slots_due = -inf

    def _end_held_up(self, now: float) -> None:
        """Calls in slots that were parked for too long give back their permits."""
        for run in [run for run, until in self._held_up.items() if until <= now]:
            del self._held_up[run]
            run.link.parked.remove(run)
            if not run.link.parked:
                del self._parked[run.link]
            self._take_back_waiting(run, run.lo, run.hi, verdicts.EXPIRED if run.deadline <= now else verdicts.HELD_UP)

    def _vacate(self, slot: Slot, link: Link) -> None:
        """The call in the slot has ended, or will not start; its permit is free, or about to be."""
        link.in_slots -= 1
        self._vacated.append(slot)

    # -- payloads that are under way -------------------------------------------------------------------------------

    def _await(self, run: Run) -> None:
        self._uploading[run] = None
        self._uploads_due = min(self._uploads_due, run.deadline)

    def _expire_uploads(self, now: float) -> None:
        """Nobody waits for what would come too late."""
        for run in [run for run in self._uploading if run.deadline <= now]:
            self._take_back_waiting(run, run.lo, run.hi, verdicts.EXPIRED)
        self._uploads_due = min((run.deadline for run in self._uploading), default=inf)

    # -- back ------------------------------------------------------------------------------------------------------

    def _take_back(self, run: Run, lo: int, hi: int, failure: Failure) -> None:
        """Answers those of the calls that have not started; those that an executor holds must not start any more."""
        handed = min(hi, run.lo)
        self._take_back_waiting(run, max(lo, run.lo), min(hi, run.hi), failure)
        if lo >= handed:
            return
        if run.lane is not None:
            run.withdraw(lo, handed)
        elif batcher := self._batchers.get(run.options.method):
            for begin, end in batcher.gathered.withdraw(run, lo, handed):
                self.in_use -= end - begin
                self._answer(run, begin, end, failure)

    def _take_back_waiting(self, run: Run, lo: int, hi: int, failure: Failure) -> None:
        """Answers calls that wait: `run.lo <= lo` and `hi <= run.hi`."""
        if lo >= hi:
            return
        lane = run.lane
        if run.slot is not None:
            self.in_use -= hi - lo
        elif lane is None:
            self.waiting -= hi - lo
        if lo == run.lo:
            run.lo = hi
        else:
            if hi < run.hi:
                rest = run.split(hi, run.hi)
                queue = self._queue if lane is None else lane.runs
                queue.insert(queue.index(run) + 1, rest)
            run.hi = lo
        self._answer(run, lo, hi, failure)
        if lane is None:
            return
        self._lanes.unblock(lane)
        if (batcher := lane.batcher) is not None and not batcher.recount(lane):
            self._release((lane,))

    def _take_back_withdrawn(self, run: Run, part: Run, lo: int, hi: int) -> None:
        """The part, which has the run's calls from `lo` up to `hi`, has come back from an executor and waits again."""
        # From the last one on: what is taken out in the middle splits off what follows.
        for index in sorted(run.withdrawn or (), reverse=True):
            if lo <= index < hi:
                self._take_back_waiting(part, index, index + 1, verdicts.CANCELLED)

    def _verdict_on(self, run: Run) -> Failure | None:
        """Why calls that came back from an executor cannot wait for another turn, if they cannot."""
        if self.ended or (self.draining and run.slot is None):
            return verdicts.DRAINING
        if run.record is not None and run.record.is_fenced:
            return verdicts.FENCED  # also where its link has ended: who took over may have asked for it meanwhile
        if run.link.closed:
            return verdicts.CANCELLED
        if run.lane is not None and not self._ownership.serves(run.endpoint, run.partition, run.owner_epoch):
            return verdicts.STALE
        return None

    def _answer(self, run: Run, lo: int, hi: int, failure: Failure) -> None:
        """Calls that never start have their answer."""
        if run.options.stop_generation and not run.link.closed and not verdicts.hands_back(failure):
            note_failure(run, lo)  # at once: what follows is decided before anybody hears of it
        count = hi - lo
        self._close(run, count)
        if run.awaits:
            run.awaits = False
            del self._uploading[run]
        if run.lane is None:
            run.link.unkeyed -= count
            if run.slot is not None:
                self._vacate(run.slot, run.link)
        else:
            self._keyed_gone(run.link, count)
        command = Refuse if verdicts.hands_back(failure) else Fail
        self._out.append(command(run, lo, hi, failure))

    def _hand_back(self, lane: Lane, failure: Failure, *, through_epoch: float = inf) -> None:
        for run in list(lane.runs):
            if run.owner_epoch <= through_epoch:
                self._take_back_waiting(run, run.lo, run.hi, failure)

    @staticmethod
    def _close(run: Run, count: int) -> None:
        """So many calls of the run can no longer be taken back."""
        run.open -= count
        if not run.open:
            del run.link.waiting[run.key]

    def _keyed_gone(self, link: Link, count: int) -> None:
        self.keyed -= count
        link.keyed -= count
        if not link.keyed:
            link.overrun = False

    def _release(self, lanes: Iterable[Lane]) -> None:
        """Lanes that held a permit go back to where they wait for one, or out."""
        for lane in lanes:
            self.in_use -= 1
            self._lanes.give_back(lane)


def _batchers_of(
    methods: Mapping[str, BatchControl | None], weigh: Mapping[str, Weigh], max_ongoing: int
) -> dict[str, Batcher]:
    return {
        name: Batcher(name, control, max_ongoing, weigh.get(name))
        for name, control in methods.items()
        if control is not None
    }
