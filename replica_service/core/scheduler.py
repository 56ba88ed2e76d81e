"""Who runs next: permits, lanes, batches, drain. The replica's decisions, `(event, now) -> commands`.

Purpose: the core that the engine feeds with what routers send and what executors finish.
Invariants: `in_use <= max_ongoing` unless `max_ongoing` was lowered meanwhile, then nothing starts until it holds
again; an unkeyed call holds one permit from its start, or its way into a batcher, to its end, a lane one for its turn,
a slot one from its grant to its end, or that of the call in it; no permit is free while something waits for one; each
call of a run is started at most once and answered or refused exactly once; nothing starts whose link is not fresh. Cost
is per run, never per call.
One class in five files, by inheritance (`waiting`, `starting`, `ending`, `dispatching`): each event ends in the same
step, which reads permits, lanes and queue together, so parts would cost a call more for each run.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from replica_service.core import verdicts
from replica_service.core.calls import FRESH_S, Lane, Link, Run, StartTurn
from replica_service.core.capacity import Capacity
from replica_service.core.commands import Command, Fail, Part, Refuse
from replica_service.core.dispatching import Dispatching
from replica_service.core.events import (
    BatchEnded,
    BatchSettingsChanged,
    CallsEnded,
    DispatchCame,
    DrainBegan,
    EpochFenced,
    Event,
    GraceEnded,
    LimitsChanged,
    LinkClosed,
    PartitionsRevoked,
    PayloadCame,
    PayloadFailed,
    ReleaseCame,
    RenewalCame,
    RunsCame,
    RunsCancelled,
    SessionsMoved,
    StampEchoed,
    TimePassed,
    TurnEnded,
    TurnsEnded,
    WorkReturned,
)
from replica_service.core.gathering import Weigh
from replica_service.core.lane_history import note_failure
from replica_service.core.moved import note_moved
from replica_service.core.ranges import Range, common, merged
from replica_service.core.vacancies import CAPACITY_GAP_S
from replica_service.core.waiting import DEFAULT_KEYED_WINDOW, no_secrets
from slotmesh.handlers import BatchControl


class Scheduler(Dispatching):
    """All decisions about the calls of one replica."""

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
        super().__init__(
            methods,
            weigh=weigh,
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            keyed_window=keyed_window,
            capacity_gap_s=capacity_gap_s,
            chance=chance,
            new_secret=new_secret,
        )
        self._handlers: dict[type[Event], Callable[[Any, float], None]] = {
            RunsCame: self._runs_came,
            RunsCancelled: self._runs_cancelled,
            PayloadCame: self._payload_came,
            PayloadFailed: self._payload_failed,
            StampEchoed: self._stamp_echoed,
            SessionsMoved: self._sessions_moved,
            LinkClosed: self._link_closed,
            DispatchCame: self._dispatch_came,
            RenewalCame: self._renewal_came,
            ReleaseCame: self._release_came,
            CallsEnded: self._calls_ended,
            TurnEnded: self._turn_ended,
            TurnsEnded: self._turns_ended,
            BatchEnded: self._batch_ended,
            WorkReturned: self._work_returned,
            TimePassed: self._look_again,
            BatchSettingsChanged: self._look_again,
            LimitsChanged: self._limits_changed,
            PartitionsRevoked: self._partitions_revoked,
            EpochFenced: self._epoch_fenced,
            DrainBegan: self._drain_began,
            GraceEnded: self._grace_ended,
        }

    def step(self, event: Event, now: float) -> list[Command]:
        """What is to be done after this event: the only way to change anything here. `now`: monotonic seconds."""
        self._handlers[type(event)](event, now)
        return self._settle(now)

    # -- routers ---------------------------------------------------------------------------------------------------

    def _runs_came(self, event: RunsCame, now: float) -> None:
        methods = self._methods
        for run in event.runs:
            if self.draining:
                self._out.append(Refuse(run, run.lo, run.hi, verdicts.DRAINING))
            elif run.options.method not in methods and not run.lease_s:
                if run.options.stop_generation:
                    note_failure(run, run.lo)
                self._out.append(Fail(run, run.lo, run.hi, verdicts.no_such_method(run.options.method, methods)))
            elif run.ordering_key:
                self._admit_keyed(run)
            else:
                self._vacancies.came(run.link, now)
                self._admit(run)

    def _runs_cancelled(self, event: RunsCancelled, _now: float) -> None:
        link = event.link
        self._unpark(link)
        others: list[Range] = []
        for first, last in event.ranges:
            run = link.waiting.get(first)
            if run is not None and last - first + 1 == run.end - run.begin == run.hi - run.begin and not run.is_split:
                self._take_back(run, run.begin, run.end, verdicts.CANCELLED)
            else:
                others.append((first, last))
        if wanted := merged(others):
            for run in list(link.waiting.values()):
                # From the last one on: what is taken out in the middle splits off what follows.
                for first, last in reversed(common(run.first + run.begin, run.first + run.end - 1, wanted)):
                    self._take_back(run, first - run.first, last + 1 - run.first, verdicts.CANCELLED)
        self._lanes.forget_those_that_left()

    def _payload_came(self, event: PayloadCame, _now: float) -> None:
        run = event.run
        if run.awaits:
            run.payloads = [event.payload]
            run.awaits = False
            del self._uploading[run]
            if (lane := run.lane) is None:
                self._queue.append(run)
            else:
                self._lanes.unblock(lane)
                if (batcher := lane.batcher) is not None:
                    batcher.recount(lane)

    def _payload_failed(self, event: PayloadFailed, _now: float) -> None:
        run = event.run
        if run.awaits:
            self._take_back_waiting(run, run.lo, run.hi, event.failure)

    def _link_closed(self, event: LinkClosed, _now: float) -> None:
        link = event.link
        link.closed = True
        link.fresh_until = -inf
        self._vacancies.told(link, is_full=False)
        self._unpark(link)
        for run in list(link.waiting.values()):
            self._take_back(run, run.begin, run.end, verdicts.CANCELLED)
        self._lanes.forget_those_that_left()

    def _stamp_echoed(self, event: StampEchoed, now: float) -> None:
        link = event.link
        if not link.closed:
            link.fresh_until = max(link.fresh_until, min(event.stamp_s, now) + FRESH_S)
            if link.fresh_until > now:
                self._unpark(link)

    def _sessions_moved(self, event: SessionsMoved, _now: float) -> None:
        note_moved(event.runs)
        for run in event.runs:
            if run.link.waiting.get(run.key) is run:
                self._unpark(run.link)
                self._take_back(run, run.begin, run.end, verdicts.FENCED)
        self._lanes.forget_those_that_left()

    def capacity(self, link: Link) -> Capacity:
        """What the router is told now. Where that means full because of others, it is told when it no longer is."""
        taken = self.in_use + self.waiting
        parked = sum(run.hi - run.lo for run in link.parked if run.lane is None and run.slot is None)
        others = taken - (link.unkeyed - link.in_slots - parked)
        is_full = others > 0 and taken >= self.max_ongoing + self.prefetch and not link.closed
        self._vacancies.told(link, is_full=is_full)
        return Capacity(
            self.in_use, self.max_ongoing, self.waiting, self.prefetch, self.keyed_window, self.draining, others
        )

    # -- time ------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `passed` should be called next; None where nothing waits for time to pass."""
        deadline = self._vacancies.next_deadline()
        for batcher in self._gathering:
            due = batcher.next_deadline()
            if due is not None and (deadline is None or due < deadline):
                deadline = due
        if self._uploads_due < inf and (deadline is None or self._uploads_due < deadline):
            deadline = self._uploads_due
        if self._slots_due < inf and (deadline is None or self._slots_due < deadline):
            deadline = self._slots_due
        return deadline

    def _look_again(self, _event: TimePassed | BatchSettingsChanged, _now: float) -> None:
        """What is due is seen to after each event."""

    # -- the replica -----------------------------------------------------------------------------------------------

    def _drain_began(self, _event: DrainBegan | GraceEnded, _now: float) -> None:
        self.draining = True
        self._unpark_all()
        for run in [*self._queue, *(run for run in self._uploading if run.lane is None)]:
            self._take_back_waiting(run, run.lo, run.hi, verdicts.DRAINING)
        for batcher in self._gathering:
            for entry in list(batcher.gathered.queue):
                if not isinstance(entry, Lane) and entry.run.slot is None:
                    self._take_back(entry.run, entry.run.begin, entry.run.end, verdicts.DRAINING)
        for lane in self._lanes.all():
            self._hand_back(lane, verdicts.DRAINING)

    def _grace_ended(self, event: GraceEnded, now: float) -> None:
        self.ended = True
        self._unpark_all()
        for run in list(self._entered):
            self._take_back_waiting(run, run.lo, run.hi, verdicts.DRAINING)
        for batcher in self._gathering:
            for entry in list(batcher.gathered.queue):
                if not isinstance(entry, Lane):
                    self._take_back(entry.run, entry.run.begin, entry.run.end, verdicts.DRAINING)
        self._drain_began(event, now)

    def about_to_end(self, link: Link) -> int:
        """How many of the router's calls are about to end, while others wait here for their permits.

        None where nothing waits here: then results are what brings the calls that take free permits.
        """
        return link.unkeyed + link.keyed if self.waiting or self._lanes.ready else 0

    @property
    def is_quiet(self) -> bool:
        """Whether no call runs, nor waits with a permit."""
        return self.in_use == self.slots.reserved

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, nothing waits and no slot is out."""
        return not self.in_use and not self.waiting and not len(self._lanes) and not self._parked

    @property
    def newest_epoch(self) -> int:
        """The newest epoch of an owner that was heard of."""
        return self._ownership.newest

    def _limits_changed(self, event: LimitsChanged, _now: float) -> None:
        self.max_ongoing, self.prefetch = event.max_ongoing, event.prefetch
        for batcher in self._batchers.values():
            batcher.gathered.limit(event.max_ongoing)

    def _partitions_revoked(self, event: PartitionsRevoked, _now: float) -> None:
        endpoint, epochs = event.endpoint, event.epochs
        self._unpark_all()
        self._ownership.revoke(endpoint, epochs)
        for lane in self._lanes.of(endpoint, epochs):
            self._hand_back(lane, verdicts.STALE, through_epoch=epochs[lane.partition])
        self._lanes.forget_empty()
        self._lanes.leave(endpoint, epochs)

    def is_emptied(self, endpoint: str, partition: int) -> bool:
        """Whether nothing of a partition that was revoked runs or waits."""
        return not self._lanes.is_left(endpoint, partition)

    def _epoch_fenced(self, event: EpochFenced, _now: float) -> None:
        self._unpark_all()
        self._ownership.fence(event.epoch)
        for lane in self._lanes.all():
            self._hand_back(lane, verdicts.STALE, through_epoch=event.epoch)
        self._lanes.forget_empty()

    def busy(self) -> dict[str, set[int]]:
        """The partitions, by endpoint, of which something runs or waits."""
        busy: dict[str, set[int]] = {}
        for lane in self._lanes.all():
            busy.setdefault(lane.key[0], set()).add(lane.partition)
        return busy

    def turns_of(self, runs: Iterable[Run]) -> list[StartTurn]:
        """The turns under way in which calls of these runs are."""
        return [run.lane.turn for run in runs if run.lane is not None and run.lane.turn and run.lane.turn.run is run]

    def in_batches(self) -> list[Part]:
        """The calls in batches that run."""
        return [part for batcher in self._batchers.values() for batch in batcher.running for part in batch.parts]
