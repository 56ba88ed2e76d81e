"""Who runs next: permits, lanes, batches, drain. The replica's decisions, `(event, now) -> commands`.

Purpose: the core that the engine feeds with what routers send and what executors finish.
Invariants: `in_use <= max_ongoing` unless `max_ongoing` was lowered meanwhile, then nothing starts until it holds
again; an unkeyed call holds one permit from its start, or its way into a batcher, to its end, a lane one for its turn,
a slot one from its grant to its end, or that of the call in it; no permit is free while something waits for one; each
call of a run is started at most once and answered or refused exactly once; nothing starts whose link is not fresh. Cost
is per run, never per call.
One class in four files, by inheritance (`waiting`, `starting`, `dispatching`): each event ends in the same step, which
reads permits, lanes and queue together, so parts would cost a call more for each run.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from replica_service.core import verdicts
from replica_service.core.calls import FRESH_S, Lane, Link, Run, StartTurn
from replica_service.core.capacity import Capacity
from replica_service.core.commands import Command, Fail, Part, Refuse, StartBatch, StartCalls
from replica_service.core.dispatching import Dispatching
from replica_service.core.lane_history import note_failure, note_progress
from slotmesh.errors import Failure
from slotmesh.wire.ranges import Range, common, merged


class Scheduler(Dispatching):
    """All decisions about the calls of one replica."""

    # -- routers ---------------------------------------------------------------------------------------------------

    def submit(self, runs: Sequence[Run], now: float) -> list[Command]:
        """A router sent runs, in this order."""
        methods = self._methods
        for run in runs:
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
        return self._settle(now)

    def cancel(self, link: Link, ranges: Iterable[tuple[int, int]], now: float) -> list[Command]:
        """A router takes calls back, by run ids, both ends included. What has not started never does."""
        self._unpark(link)
        others: list[Range] = []
        for first, last in ranges:
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
        return self._settle(now)

    def complete(self, run: Run, now: float) -> list[Command]:
        """The payload of a run is there. One that was answered meanwhile stays as it is."""
        if run.awaits:
            run.awaits = False
            del self._uploading[run]
            if (lane := run.lane) is None:
                self._queue.append(run)
            else:
                self._lanes.unblock(lane)
                if (batcher := lane.batcher) is not None:
                    batcher.recount(lane)
        return self._settle(now)

    def spoil(self, run: Run, failure: Failure, now: float) -> list[Command]:
        """The payload of a run will not be there. One that was answered meanwhile stays as it is."""
        if run.awaits:
            self._take_back_waiting(run, run.lo, run.hi, failure)
        return self._settle(now)

    def close(self, link: Link, now: float) -> list[Command]:
        """A router's stream has ended: nothing of it that has not started will. Nobody reads the answers."""
        link.closed = True
        link.fresh_until = -inf
        self._vacancies.told(link, is_full=False)
        self._unpark(link)
        for run in list(link.waiting.values()):
            self._take_back(run, run.begin, run.end, verdicts.CANCELLED)
        self._lanes.forget_those_that_left()
        return self._settle(now)

    def echoed(self, link: Link, stamp_s: float, now: float) -> list[Command]:
        """A router has echoed a stamp, monotonic seconds, of this replica: until `FRESH_S` after it, its runs start."""
        if not link.closed:
            link.fresh_until = max(link.fresh_until, min(stamp_s, now) + FRESH_S)
            if link.fresh_until > now:
                self._unpark(link)
        return self._settle(now)

    def hand_back(self, runs: Iterable[Run], failure: Failure, now: float) -> list[Command]:
        """What of these runs has not started is handed back."""
        for run in runs:
            if run.link.waiting.get(run.key) is run:
                self._unpark(run.link)
                self._take_back(run, run.begin, run.end, failure)
        self._lanes.forget_those_that_left()
        return self._settle(now)

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

    # -- executors -------------------------------------------------------------------------------------------------

    def calls_ended(self, run: Run, count: int, now: float, *, waited: bool = False) -> list[Command]:
        """Calls of a StartCalls have ended, however. `waited`: others could run meanwhile."""
        if waited:
            self.service_times.took(run.options.method, count, (now - run.started_at) * count)
        else:
            self.service_times.ended(run.options.method, count, run.started_at, now)
        if not self._has_room:
            self._vacancies.freed(run.link, now)
        self.in_use -= count
        run.link.unkeyed -= count
        if run.slot is not None:
            self._vacate(run.slot, run.link)
        return self._settle(now)

    def turn_ended(self, turn: StartTurn, reached: int, now: float) -> list[Command]:
        """The turn's calls before index `reached` have ended, however; those from there on have not started."""
        run, lane = turn.run, turn.lane
        lane.turn = None
        ended = reached - turn.lo
        self.service_times.took(run.options.method, ended, now - turn.started_at)
        if ended:
            note_progress(run, reached - 1)
        if reached < turn.hi:
            rest = run.split(reached, turn.hi)
            lane.runs.appendleft(rest)
            if run.withdrawn is not None and (run.record is None or not run.record.is_fenced):
                self._take_back_withdrawn(run, rest, reached, turn.hi)
            if failure := self._verdict_on(rest):
                for part in [each for each in lane.runs if each.key < 0 and each.is_part_of(run)]:
                    self._take_back_waiting(part, part.lo, part.hi, failure)
        self._close(run, ended)
        run.link.handed -= turn.hi - turn.lo
        self._keyed_gone(run.link, ended)
        self.in_use -= 1
        self._lanes.give_back(lane)
        return self._settle(now)

    def turns_ended(self, turns: Sequence[StartTurn], now: float) -> list[Command]:
        """All calls of these turns, which went on one after another, have ended, however."""
        first = turns[0]
        calls = sum(turn.hi - turn.lo for turn in turns)
        self.service_times.ended(first.run.options.method, calls, first.started_at, now)
        for turn in turns:
            run, lane = turn.run, turn.lane
            lane.turn = None
            count = turn.hi - turn.lo
            self._close(run, count)
            run.link.handed -= count
            self._keyed_gone(run.link, count)
            note_progress(run, turn.hi - 1)
            self._lanes.give_back(lane)
        self.in_use -= len(turns)
        return self._settle(now)

    def batch_ended(self, batch: StartBatch, now: float) -> list[Command]:
        """All calls of the batch have ended, however."""
        self.service_times.ended(batch.batcher.method, batch.count, batch.started_at, now)
        batch.batcher.ended(batch)
        had_room = self._has_room
        for run, lo, hi in batch.parts:
            if run.lane is None:
                if not had_room:
                    self._vacancies.freed(run.link, now)
                self.in_use -= hi - lo
                run.link.unkeyed -= hi - lo
                if run.slot is not None:
                    self._vacate(run.slot, run.link)
            else:
                run.link.handed -= hi - lo
                self._keyed_gone(run.link, hi - lo)
                note_progress(run, hi - 1)
        self._release(batch.lanes)
        return self._settle(now)

    def returned(self, work: StartCalls | StartBatch, now: float) -> list[Command]:
        """The calls of this work have not started: their links were not fresh, or they were recalled.

        Those that were withdrawn meanwhile never will.
        """
        if isinstance(work, StartCalls):
            parts: Sequence[Part] = ((work.run, work.lo, work.hi),)
        else:
            work.batcher.ended(work)
            parts = work.parts
        for run, lo, hi in reversed(parts):
            part = run.reopen(lo, hi)
            if run.slot is not None:
                self._enter(part)
            elif run.lane is None:
                self.in_use -= hi - lo
                self.waiting += hi - lo
                self._queue.appendleft(part)
            else:
                run.link.handed -= hi - lo
                run.lane.runs.appendleft(part)
            if failure := self._verdict_on(part):
                self._take_back_waiting(part, lo, hi, failure)
            elif run.withdrawn is not None:
                self._take_back_withdrawn(run, part, lo, hi)
        if isinstance(work, StartBatch):
            self._release(work.lanes)
        return self._settle(now)

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

    def passed(self, now: float) -> list[Command]:
        """Time has passed."""
        return self._settle(now)

    # -- the replica -----------------------------------------------------------------------------------------------

    def drain(self, now: float) -> list[Command]:
        """Takes nothing new from now on, and hands back what has not started. Slots that were given are honoured."""
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
        return self._settle(now)

    def end(self, now: float) -> list[Command]:
        """Drains, and honours slots no longer: a call in one is handed back, if it has not started."""
        self.ended = True
        self._unpark_all()
        for run in list(self._entered):
            self._take_back_waiting(run, run.lo, run.hi, verdicts.DRAINING)
        for batcher in self._gathering:
            for entry in list(batcher.gathered.queue):
                if not isinstance(entry, Lane):
                    self._take_back(entry.run, entry.run.begin, entry.run.end, verdicts.DRAINING)
        return self.drain(now)

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

    def configure(self, *, max_ongoing: int, prefetch: int, now: float) -> list[Command]:
        """New settings. What runs goes on; where there are fewer permits than that, nothing starts until there are."""
        self.max_ongoing, self.prefetch = max_ongoing, prefetch
        for batcher in self._batchers.values():
            batcher.gathered.limit(max_ongoing)
        return self._settle(now)

    def revoke(self, endpoint: str, epochs: Mapping[int, int], now: float) -> list[Command]:
        """Partitions move away: nothing of them that was sent at these epochs or older ones starts from now on."""
        self._unpark_all()
        self._ownership.revoke(endpoint, epochs)
        for lane in self._lanes.of(endpoint, epochs):
            self._hand_back(lane, verdicts.STALE, through_epoch=epochs[lane.partition])
        self._lanes.forget_empty()
        self._lanes.leave(endpoint, epochs)
        return self._settle(now)

    def is_emptied(self, endpoint: str, partition: int) -> bool:
        """Whether nothing of a partition that was revoked runs or waits."""
        return not self._lanes.is_left(endpoint, partition)

    def fence(self, epoch: int, now: float) -> list[Command]:
        """All partitions move away: nothing that was sent at this epoch or an older one starts from now on."""
        self._unpark_all()
        self._ownership.fence(epoch)
        for lane in self._lanes.all():
            self._hand_back(lane, verdicts.STALE, through_epoch=epoch)
        self._lanes.forget_empty()
        return self._settle(now)

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
