"""The end of calls: executed by an executor, returned by it unstarted, or ended before they start; and parked calls.

`Endings` frees the permits of ended work; unstarted calls of it return to the head of their queue, or get their outcome
if they must not wait any longer. `UnstartedCalls` ends calls that are cancelled, handed back or overdue. `Parking`
holds runs that would have started while their link was not fresh, until their router echoes a stamp.
Invariants: work ends once, as a whole or call by call; a lane returns to the queue for its next permit. Each call is
ended once; the permit that a call or its lane holds is freed with that. A parked run is in `parked` of its link and
nowhere else, and does not count as waiting; a search for runs in queues unparks them first. A call in a slot is parked
no longer than the slot's lease would have lasted.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from replica_service.core import failures
from replica_service.core.call_states import CallState
from replica_service.core.call_times import ServiceTimes
from replica_service.core.events import (
    BatchEnded,
    CallsEnded,
    Fail,
    Refuse,
    ReportDefect,
    StampEchoed,
    TurnEnded,
    TurnsEnded,
    WorkReturned,
)
from replica_service.core.runs import FRESH_S, ReplicaLane, ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler_state import SchedulerState
from replica_service.core.work import Part, StartBatch, StartCalls, note_failure, note_progress
from slotmesh.errors import Failure


class UnstartedCalls:
    """Removes calls from their queues, and ends them with a failure."""

    __slots__ = ("_state",)

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def take_back(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Fails those of the calls that have not started, and forbids those in an executor to start."""
        handed = min(hi, run.lo)
        self.answer_waiting(run, max(lo, run.lo), min(hi, run.hi), failure)
        if lo >= handed:
            return
        if run.lane is not None:
            run.withdraw(lo, handed)
        elif batcher := self._state.batching.batchers.get(run.options.method):
            for begin, end in batcher.gathered.withdraw(run, lo, handed):
                self.answer(run, begin, end, failure, CallState.GATHERED)

    def answer_waiting(self, run: ReplicaRun, lo: int, hi: int, failure: Failure) -> None:
        """Removes waiting calls and fails them: `run.lo <= lo` and `hi <= run.hi`."""
        if lo >= hi:
            return
        lane, state = run.lane, run.state
        if lo == run.lo:
            run.lo = hi
        else:
            if hi < run.hi:
                rest = run.split(hi, run.hi)
                queue = self._state.permits.queue if lane is None else lane.runs
                queue.insert(queue.index(run) + 1, rest)
            run.hi = lo
        self.answer(run, lo, hi, failure, state)
        if lane is not None:
            self._state.lanes.unblock(lane)
            self._state.batching.recount(lane)

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

    def answer(self, run: ReplicaRun, lo: int, hi: int, failure: Failure, state: CallState | None = None) -> None:
        """Ends calls with this failure. They were removed from their queue. `state`: where that is not the run's."""
        if run.options.stop_generation and not run.link.closed and not failures.hands_back(failure):
            note_failure(run, lo)  # now: the consequences are decided before the outcome is written
        if state is None:
            state = run.state
        if state is None:
            state = run.state
        if state is CallState.UPLOADING:
            self._state.payloads.gone(run)
        self._state.accounting.failed(run, hi - lo, state)
        command = Refuse if failures.hands_back(failure) else Fail
        self._state.out.append(command(run, lo, hi, failure))


class Parking:
    """Parks runs, and returns them to their queues."""

    __slots__ = ("_state", "_unstarted", "links")

    def __init__(self, state: SchedulerState, unstarted: UnstartedCalls) -> None:
        self._state = state
        self.links: dict[RouterPeer, None] = {}
        """Links with parked runs."""
        self._unstarted = unstarted

    def stamp_echoed(self, event: StampEchoed, now: float) -> None:
        link = event.link
        if not link.closed:
            link.fresh_until = max(link.fresh_until, min(event.stamp_s, now) + FRESH_S)
            if link.fresh_until > now:
                self.unpark(link)

    def park(self, run: ReplicaRun) -> None:
        """Parks a run that was taken from its queue, until its link is fresh."""
        self._state.accounting.parked(run)
        if run.slot is not None:
            self._state.slots.hold_up(run, run.slot)
        run.link.parked.append(run)
        self.links[run.link] = None

    def park_gathered(self, run: ReplicaRun, lo: int, hi: int) -> None:
        """Parks the run's calls from `lo` up to `hi`, which were in a batcher."""
        self.park(self._state.accounting.ungathered(run, lo, hi) if run.lane is None else run)

    def unpark(self, link: RouterPeer) -> None:
        """Returns the link's runs to the front of their queues."""
        if link not in self.links:
            return
        del self.links[link]
        parked, link.parked = link.parked, []
        for run in reversed(parked):
            self._state.accounting.unparked(run)
            if run.slot is not None:
                del self._state.slots.held_up[run]
                self._state.slots.enter(run)
            elif run.lane is None:
                self._state.permits.queue.appendleft(run)
            else:
                self._state.batching.recount(self._state.lanes.put_back(run))

    def unpark_all(self) -> None:
        for link in list(self.links):
            self.unpark(link)

    def end_held_up(self, now: float) -> None:
        """Fails calls in slots that were parked for too long, which frees their permits."""
        held_up = self._state.slots.held_up
        for run in [run for run, until in held_up.items() if until <= now]:
            del held_up[run]
            run.link.parked.remove(run)
            if not run.link.parked:
                del self.links[run.link]
            failure = failures.EXPIRED if run.deadline <= now else failures.HELD_UP
            self._unstarted.answer_waiting(run, run.lo, run.hi, failure)


class Endings:
    """Handles the ends of work, and frees permits. Work that has ended already, or never begun, is a defect."""

    __slots__ = (
        "_accounting",
        "_batching",
        "_lanes",
        "_out",
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
        self._accounting = state.accounting
        self._permits = state.permits
        self._lanes = state.lanes
        self._out = state.out
        self._ownership = state.ownership
        self._state = state
        self._batching = state.batching
        self._slots = state.slots
        self._vacancies = state.vacancies
        self._unstarted = unstarted

    def calls_ended(self, event: CallsEnded, now: float) -> None:
        run, count = event.run, event.count
        had_room = self._permits.has_room
        if not self._accounting.executed(run, count):
            return
        if not had_room:
            self._vacancies.freed(run.link, now)
        self.call_times.calls_ended(run, count, now)
        if event.waited:
            self.service_times.took(run.options.method, count, (now - run.started_at) * count)
        else:
            self.service_times.ended(run.options.method, count, run.started_at, now)

    def batch_ended(self, event: BatchEnded, now: float) -> None:
        batch = event.batch
        if not self._has_left(batch):
            return
        self.call_times.batch_ended(batch, now)
        self.service_times.ended(batch.method, batch.count, batch.started_at, now)
        had_room = self._permits.has_room
        for run, lo, hi in batch.parts:
            self._accounting.executed(run, hi - lo)
            if run.lane is not None:
                note_progress(run, hi - 1)
            elif not had_room:
                self._vacancies.freed(run.link, now)
        self._batching.release(batch.lanes)

    def turn_ended(self, event: TurnEnded, now: float) -> None:
        turn, reached = event.turn, event.reached
        run, lane = turn.run, turn.lane
        if lane.turn is not turn:
            self._report(turn)
            return
        lane.turn = None
        if not turn.lo <= reached <= turn.hi:
            self._report(turn)
            reached = turn.hi
        ended = reached - turn.lo
        self.call_times.turn_ended(turn, ended, now)
        self.service_times.took(run.options.method, ended, now - turn.started_at)
        if ended:
            note_progress(run, reached - 1)
        run.close(turn.hi - turn.lo)
        rest = self._accounting.returned(run, reached, turn.hi) if reached < turn.hi else None
        if rest is not None:
            lane.runs.appendleft(rest)
            if run.withdrawn is not None and (run.record is None or not run.record.is_fenced):
                self._unstarted.answer_withdrawn(run, rest, reached, turn.hi)
            if failure := self._must_not_wait(rest):
                for part in [each for each in lane.runs if each.key < 0 and each.is_part_of(run)]:
                    self._unstarted.answer_waiting(part, part.lo, part.hi, failure)
        self._accounting.executed(run, ended)
        self._permits.in_use -= 1
        self._lanes.give_back(lane)

    def turns_ended(self, event: TurnsEnded, now: float) -> None:
        first = event.turns[0]
        calls = 0
        for turn in event.turns:
            run, lane, count = turn.run, turn.lane, turn.hi - turn.lo
            if lane.turn is not turn:
                self._report(turn)
                continue
            lane.turn = None
            calls += count
            self._permits.in_use -= 1
            self.call_times.turn_ended(turn, count, now)
            run.close(count)
            self._accounting.executed(run, count)
            note_progress(run, turn.hi - 1)
            self._lanes.give_back(lane)
        if calls:
            self.service_times.ended(first.run.options.method, calls, first.started_at, now)

    def work_returned(self, event: WorkReturned, _now: float) -> None:
        work = event.work
        if isinstance(work, StartCalls):
            parts: Sequence[Part] = ((work.run, work.lo, work.hi),)
        elif self._has_left(work):
            parts = work.parts
        else:
            return
        for run, lo, hi in event.cancelled:
            run.withdraw(lo, hi)
        for run, lo, hi in reversed(parts):
            part = self._accounting.returned(run, lo, hi)
            if part is None:
                continue
            if run.slot is not None:
                self._slots.enter(part)
            elif run.lane is None:
                self._permits.queue.appendleft(part)
            else:
                run.lane.runs.appendleft(part)
            if failure := self._must_not_wait(part):
                self._unstarted.answer_waiting(part, lo, hi, failure)
            elif run.withdrawn is not None:
                self._unstarted.answer_withdrawn(run, part, lo, hi)
        if isinstance(work, StartBatch):
            self._batching.release(work.lanes)

    def _report(self, turn: StartTurn) -> None:
        lane = turn.lane
        self._out.append(
            ReportDefect(f"a turn ended, or calls of it, that its lane in state {lane.state.value!r} has not")
        )

    def _has_left(self, batch: StartBatch) -> bool:
        """Removes a running batch; reports a defect and returns False if it is not running."""
        if self._batching.ended(batch):
            return True
        self._out.append(ReportDefect(f"a batch of {batch.method!r} ended that is not running"))
        return False

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
