"""The replica's scheduler against a naive model, under arbitrary interleavings.

The model remembers every call that was sent and what became of it; it knows nothing of queues, permits or batches.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from itertools import repeat
from math import inf
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.batch_weight import Weighed
from replica_service.core.call_options import CallOptions
from replica_service.core.calls import FRESH_S, Lane, Link, Run, StartTurn
from replica_service.core.commands import Command, Fail, Grant, Refuse, StartBatch, StartCalls, TellCapacity
from replica_service.core.gathering import Gathering
from replica_service.core.lanes import MAX_TURN_CALLS
from replica_service.core.scheduler import Scheduler
from replica_service.core.vacancies import CAPACITY_GAP_S
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import BatchControl, BatchSettings

BATCH = BatchSettings(max_batch_size=3, batch_wait_timeout_s=0.5, max_concurrent_batches=1)
WEIGHED = BatchSettings(max_batch_size=3, batch_wait_timeout_s=0.5, max_concurrent_batches=2, batch_size_fn=lambda _: 1)
SETTINGS = {"batch": BATCH, "weighed": WEIGHED}
METHODS = {"plain": None, **{name: BatchControl(each) for name, each in SETTINGS.items()}}
WEIGHTS = (1.0, 0.5, 2.0, 0.0, 3.0, 1.0, 3.5, 1.5)
"""By run id; 3.5 is too heavy, and one of each round has none."""
KEYED_WINDOW = 12
LONGEST_RUN = 5
KEYS = ("red", "green", "blue")

UNWEIGHABLE = Failure(reason=Reason.BAD_ARGUMENTS, message="args[0]")
SPOILED = Failure(reason=Reason.BAD_REQUEST, message="chunk")


def weigh(run: Run, index: int) -> Weighed:
    turn, place = divmod(run.first + index, len(WEIGHTS))
    if place == 0 and turn % 2:
        return Weighed(0.0, failure=UNWEIGHABLE)
    return Weighed(WEIGHTS[place])


CallId = tuple[int, int]
"""Link and run id."""


@dataclass
class Call:
    """What the model knows of one call."""

    run: Run
    key: str
    deadline: float
    arrived: float
    order: int
    """Position among all calls ever sent."""
    state: str = "waiting"
    """waiting, running, ended (by itself), failed or refused (before it started)."""
    reason: Reason | None = None


@dataclass
class Router:
    link: Link
    number: int
    next_id: int = 1
    closed: bool = False
    calls: dict[int, Call] = field(default_factory=dict)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        max_ongoing=st.integers(1, LONGEST_RUN),
        prefetch=st.integers(0, 3),
        troubles=st.sets(
            st.sampled_from(("cancel", "close", "revoke", "configure", "expiry", "stale", "uploads")), max_size=3
        ),
        is_silence_possible=st.booleans(),
        chances=st.randoms(use_true_random=False),
    )
    def start(
        self, max_ongoing: int, prefetch: int, troubles: set[str], is_silence_possible: bool, chances: Random
    ) -> None:
        """Few kinds of trouble at a time reach deeper than all at once."""
        self.troubles = troubles | {"silence"} if is_silence_possible else troubles
        self.now = 100.0
        self.max_ongoing = self.allowed = max_ongoing
        self.prefetch = prefetch
        secrets = map(str.encode, map(str, itertools.count()))
        self.core = Scheduler(
            METHODS,
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            keyed_window=KEYED_WINDOW,
            chance=chances.random,
            weigh={"weighed": weigh},
            new_secret=lambda: next(secrets),
        )
        self.order = 0
        self.routers: list[Router] = [Router(self.new_link(), 0), Router(self.new_link(), 1)]
        self.router_of = {router.link: router for router in self.routers}
        self.running_calls: list[Run] = []
        """One entry for each unkeyed call that runs."""
        self.turns: list[StartTurn] = []
        self.batches: list[StartBatch] = []
        self.last_started: dict[tuple[str, Link | None], int] = {}
        """By key, and by link where those that are silent let others overtake them."""
        self.epoch = 1
        self.revoked_through = -1
        self.floor: dict[str, int] = {}
        """Key -> lowest epoch that is still served."""
        self.told_full: set[Link] = set()
        self.told_at: dict[Link, float] = {}

    def new_link(self) -> Link:
        link = Link()
        if "silence" in self.troubles:
            link.fresh_until = self.now + FRESH_S
        return link

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(
        router=st.integers(0, 1),
        runs=st.lists(
            st.tuples(
                st.integers(1, LONGEST_RUN),
                st.sampled_from(("plain", "batch", "weighed")),
                st.sampled_from(("", "", *KEYS)),
                st.sampled_from((inf, inf, 0.0, 0.3, 2.0)),
                st.booleans(),
            ),
            min_size=1,
            max_size=4,
        ),
        are_neighbours=st.booleans(),
        is_large=st.booleans(),
    )
    def submit(
        self, router: int, runs: list[tuple[int, str, str, float, bool]], are_neighbours: bool, is_large: bool
    ) -> None:
        to = self.routers[router]
        sent = []
        first, payloads = to.next_id, [b"x"] * sum(count for count, *_ in runs)
        if are_neighbours:
            runs = [(count, *runs[0][1:2], key or KEYS[0], *runs[0][3:]) for count, _, key, _, _ in runs]
        for count, method, key, time_left, stale in runs:
            options = CallOptions(method=method, ordering_key=key)
            deadline = self.now + time_left if "expiry" in self.troubles else inf
            if are_neighbours:
                begin, end = to.next_id - first, to.next_id - first + count
                run = Run(to.link, first, payloads, options, "e", self.now, deadline, begin=begin, end=end)
            else:
                run = Run(to.link, to.next_id, [b"x"] * count, options, "e", self.now, deadline)
                run.awaits = is_large and count == 1 and "uploads" in self.troubles
            run.owner_epoch = self.epoch - 1 if stale and "stale" in self.troubles else self.epoch
            run.partition = len(key)
            for run_id in range(to.next_id, to.next_id + count):
                self.order += 1
                to.calls[run_id] = Call(run, key, run.deadline, self.now, self.order)
            to.next_id += count
            sent.append(run)
        before = self.core.in_use + self.core.waiting
        self.carry_out(self.core.submit(sent, self.now))
        if not any(run.options.ordering_key for run in sent):
            assert self.core.in_use + self.core.waiting <= max(before, self.max_ongoing + self.prefetch)
        self.check_fences(sent)

    def check_fences(self, sent: list[Run]) -> None:
        is_past_window = False
        for run in sent:
            if not (key := run.options.ordering_key):
                continue
            states = {(call.state, call.reason) for call in map(self.call, repeat(run), range(run.begin, run.end))}
            if run.owner_epoch < self.floor.get(key, 0):
                assert states == {("refused", Reason.STALE_TABLE)}
                continue
            assert ("refused", Reason.STALE_TABLE) not in states
            self.floor[key] = run.owner_epoch
            is_past_window |= ("refused", Reason.QUEUE_FULL) in states
            assert not is_past_window or states == {("refused", Reason.QUEUE_FULL)}, "a run overtook a refused one"

    @precondition(lambda self: "cancel" in self.troubles)
    @rule(router=st.integers(0, 1), data=st.data())
    def cancel(self, router: int, data: st.DataObject) -> None:
        to = self.routers[router]
        if to.next_id == 1:
            return
        if data.draw(st.booleans()):
            run = to.calls[data.draw(st.integers(1, to.next_id - 1))].run
            first, last = run.first, run.first + len(run.payloads) - 1
        else:
            first = data.draw(st.integers(1, to.next_id - 1))
            last = data.draw(st.integers(first, min(to.next_id + 1, first + 6)))
        self.carry_out(self.core.cancel(to.link, [(first, last)], self.now))
        for run_id in range(first, min(last + 1, to.next_id)):
            call = to.calls[run_id]
            assert call.state != "waiting", "it was taken back and still waits"
            if call.state == "held":
                assert any(
                    is_withdrawn(turn.run, run_id - turn.run.first) for turn in self.turns if turn.run.link is to.link
                )

    @rule(seconds=st.sampled_from((0.02, 0.1, 0.25, 0.5, 1.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.core.passed(self.now))

    @precondition(lambda self: self.uploading())
    @rule(data=st.data(), is_spoiled=st.booleans())
    def upload_ends(self, data: st.DataObject, is_spoiled: bool) -> None:
        run = data.draw(st.sampled_from(self.uploading()))
        if not is_spoiled:
            self.carry_out(self.core.complete(run, self.now))
            assert not run.awaits
            return
        self.carry_out(self.core.spoil(run, SPOILED, self.now))
        assert self.call(run, 0).reason is SPOILED.reason

    def uploading(self) -> list[Run]:
        return [run for router in self.router_of.values() for run in router.link.waiting.values() if run.awaits]

    @precondition(lambda self: self.running_calls)
    @rule(data=st.data())
    def calls_end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.running_calls))
        running = [
            call
            for call in self.router_of[run.link].calls.values()
            if call.run.payloads is run.payloads and call.state == "running"
        ]
        count = data.draw(st.integers(1, len(running)))
        for call in running[:count]:
            call.state = "ended"
            self.leaves(run)
        self.carry_out(self.core.calls_ended(run, count, self.now))

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def turn_ends(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        reached = data.draw(st.integers(turn.lo + self.is_fresh(turn.run), turn.hi))
        self.turns.remove(turn)
        for index in range(turn.lo, turn.hi):
            call = self.call(turn.run, index)
            if index >= reached:
                call.state = "waiting"
            elif is_withdrawn(turn.run, index):
                call.state, call.reason = "failed", Reason.CANCELLED
            else:
                self.begins(turn.run, index)
                call.state = "ended"
        self.carry_out(self.core.turn_ended(turn, reached, self.now))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def batch_ends(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        self.batches.remove(batch)
        for run, lo, hi in batch.parts:
            for index in range(lo, hi):
                self.call(run, index).state = "ended"
        self.carry_out(self.core.batch_ended(batch, self.now))

    @precondition(lambda self: "close" in self.troubles)
    @rule(router=st.integers(0, 1))
    def router_goes(self, router: int) -> None:
        old = self.routers[router]
        old.closed = True
        self.told_full.discard(old.link)
        self.carry_out(self.core.close(old.link, self.now))
        assert not any(call.state == "waiting" and not self.is_held(call) for call in old.calls.values())
        self.routers[router] = new = Router(self.new_link(), router)
        self.router_of[new.link] = new

    @rule(router=st.integers(0, 1))
    def capacity_is_told(self, router: int) -> None:
        link = self.routers[router].link
        capacity = self.core.capacity(link)
        parked = sum(run.hi - run.lo for run in link.parked if run.lane is None and run.slot is None)
        assert capacity.others + link.unkeyed - link.in_slots - parked == capacity.ongoing + capacity.waiting
        full = capacity.others and capacity.ongoing + capacity.waiting >= capacity.max_ongoing + capacity.prefetch
        if full:
            self.told_full.add(link)
        else:
            self.told_full.discard(link)

    @precondition(lambda self: "silence" in self.troubles)
    @rule(router=st.integers(0, 1))
    def router_falls_silent(self, router: int) -> None:
        self.routers[router].link.fresh_until = self.now

    @precondition(lambda self: "silence" in self.troubles)
    @rule(router=st.integers(0, 1), age=st.sampled_from((0.0, 1.0, FRESH_S, FRESH_S + 1)))
    def router_echoes(self, router: int, age: float) -> None:
        link = self.routers[router].link
        self.carry_out(self.core.echoed(link, self.now - age, self.now))
        assert link.fresh_until >= self.now - age + FRESH_S

    @precondition(lambda self: any(not self.is_fresh(run) for run in self.running_calls))
    @rule(data=st.data())
    def calls_come_back(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from([run for run in self.running_calls if not self.is_fresh(run)]))
        running = [index for index in range(len(run.payloads)) if self.is_running(run, index)]
        lo = data.draw(st.sampled_from(running))
        hi = lo + 1
        while hi in running:
            hi += 1
        for index in range(lo, hi):
            self.call(run, index).state = "waiting"
            self.leaves(run)
        self.carry_out(self.core.returned(StartCalls(run, lo, hi), self.now))

    @precondition(lambda self: any(self.is_stale(batch) for batch in self.batches))
    @rule()
    def a_batch_comes_back(self) -> None:
        batch = next(batch for batch in self.batches if self.is_stale(batch))
        self.batches.remove(batch)
        for run, lo, hi in reversed(batch.parts):
            for index in range(lo, hi):
                call = self.call(run, index)
                call.state = "waiting"
                if call.key:
                    key = self.lane_of(call)
                    self.last_started[key] = min(self.last_started[key], call.order - 1)
        self.carry_out(self.core.returned(batch, self.now))

    def leaves(self, run: Run) -> None:
        """One call less of the run runs, whichever part of it was started."""
        at = next(at for at, each in enumerate(self.running_calls) if each.payloads is run.payloads)
        del self.running_calls[at]

    def is_fresh(self, run: Run) -> bool:
        return self.now < run.link.fresh_until

    def is_stale(self, batch: StartBatch) -> bool:
        return not all(self.is_fresh(run) for run, _, _ in batch.parts)

    def is_running(self, run: Run, index: int) -> bool:
        call = self.router_of[run.link].calls.get(run.first + index)
        return call is not None and call.run.payloads is run.payloads and call.state == "running"

    @precondition(lambda self: "configure" in self.troubles)
    @rule(max_ongoing=st.integers(1, 5))
    def configured(self, max_ongoing: int) -> None:
        self.max_ongoing = max_ongoing
        self.allowed = max(max_ongoing, self.core.in_use)
        self.carry_out(self.core.configure(max_ongoing=max_ongoing, prefetch=self.prefetch, now=self.now))

    @precondition(lambda self: "stale" in self.troubles)
    @rule()
    def ownership_comes_again(self) -> None:
        self.epoch += 1

    @precondition(lambda self: "revoke" in self.troubles)
    @rule(fenced=st.booleans())
    def ownership_goes(self, fenced: bool) -> None:
        if fenced:
            self.carry_out(self.core.fence(self.epoch, self.now))
            assert self.core.busy().get("e", set()) == {len(call.key) for call in self.keyed_here()}
        self.carry_out(self.core.revoke("e", {len(key): self.epoch for key in KEYS}, self.now))
        self.revoked_through = self.epoch
        for router in self.router_of.values():
            assert not any(
                call.key and call.state == "waiting" and not self.is_held(call) for call in router.calls.values()
            )
        self.epoch += 1
        self.floor = dict.fromkeys(KEYS, self.epoch)

    def keyed_here(self) -> list[Call]:
        return [
            call
            for router in self.router_of.values()
            for call in router.calls.values()
            if call.key and call.state in {"waiting", "held", "running"}
        ]

    # -- what the scheduler does with them -------------------------------------------------------------------------

    def carry_out(self, commands: list[Command]) -> None:
        self.some_expired = any(
            isinstance(command, Fail) and command.failure.reason is Reason.DEADLINE_IN_QUEUE for command in commands
        )
        for command in commands:
            match command:
                case StartCalls(run=run):
                    assert self.is_fresh(run)
                    assert not run.awaits
                    assert not run.options.ordering_key
                    assert run.options.method == "plain"
                    for index in range(command.lo, command.hi):
                        self.begins(run, index)
                        self.call(run, index).state = "running"
                        self.running_calls.append(run)
                case StartTurn(run=run):
                    assert self.is_fresh(run)
                    assert not run.awaits
                    assert run.options.method == "plain"
                    assert 0 < command.hi - command.lo <= MAX_TURN_CALLS
                    assert not any(turn.lane is command.lane for turn in self.turns)
                    assert not any(command.lane in batch.lanes for batch in self.batches)
                    for index in range(command.lo, command.hi):
                        assert self.call(run, index).state == "waiting"
                        self.call(run, index).state = "held"
                    self.turns.append(command)
                case StartBatch():
                    self.batch_begins(command)
                case Refuse(run=run, failure=failure) | Fail(run=run, failure=failure):
                    assert failure.executed is Executed.NO
                    for index in range(command.lo, command.hi):
                        call = self.call(run, index)
                        assert call.state == "waiting", (call.state, failure)
                        call.state = "failed" if isinstance(command, Fail) else "refused"
                        call.reason = failure.reason
                        if failure.reason is Reason.DEADLINE_IN_QUEUE:
                            assert call.deadline <= self.now
                case Grant():
                    pass  # only where there are slots: see `test_replica_slots.py`
                case TellCapacity(link=link):
                    assert not link.closed
                    assert self.core.in_use + self.core.waiting < self.max_ongoing + self.prefetch
                    self.told_full.remove(link)
                    assert self.now >= self.told_at.get(link, -inf) + CAPACITY_GAP_S / 2
                    self.told_at[link] = self.now

    def batch_begins(self, batch: StartBatch) -> None:
        method = batch.batcher.method
        limits = SETTINGS[method]
        assert not self.is_stale(batch)
        assert batch.count == sum(hi - lo for _, lo, hi in batch.parts)
        assert batch.count >= 1
        assert sum(each.batcher is batch.batcher for each in self.batches) < limits.max_concurrent_batches
        arrived = min(run.arrived for run, _, _ in batch.parts)
        if method == "batch":
            most_calls = min(limits.max_batch_size, self.max_ongoing)
        else:  # what does not fit any more is seen in `test_replica_batches.py`
            most_calls = self.max_ongoing
            each = [weigh(run, index) for run, lo, hi in batch.parts for index in range(lo, hi)]
            assert all(one.failure is None for one in each)
            assert sum(one.weight for one in each) <= limits.max_batch_size
        is_full = batch.count == most_calls or method == "weighed"
        assert batch.count <= max(most_calls, self.core.in_use)
        # Calls found expired while it is cut make it smaller.
        assert (
            is_full
            or self.some_expired
            or "silence" in self.troubles
            or self.now >= arrived + limits.batch_wait_timeout_s
        )
        for run, lo, hi in batch.parts:
            assert not run.awaits
            for index in range(lo, hi):
                self.begins(run, index)
                self.call(run, index).state = "running"
        assert len(set(batch.lanes)) == len(batch.lanes)
        for lane in batch.lanes:
            assert not any(turn.lane is lane for turn in self.turns)
            assert not any(lane in other.lanes for other in self.batches)
        self.batches.append(batch)

    def begins(self, run: Run, index: int) -> None:
        call = self.call(run, index)
        assert call.state in {"waiting", "held"}, call.state
        if call.state == "waiting":
            assert self.now < call.deadline
        call.state = "waiting"
        if call.key:
            key = self.lane_of(call)
            assert call.order > self.last_started.get(key, 0), "a call of a key was overtaken"
            self.last_started[key] = call.order

    def lane_of(self, call: Call) -> tuple[str, Link | None]:
        return call.key, call.run.link if "silence" in self.troubles else None

    def call(self, run: Run, index: int) -> Call:
        return self.router_of[run.link].calls[run.first + index]

    def is_held(self, call: Call) -> bool:
        return call.state == "held"

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def permits_are_kept_to(self) -> None:
        self.allowed = max(self.max_ongoing, min(self.allowed, self.core.in_use))
        assert 0 <= self.core.in_use <= self.allowed
        in_batches = sum(hi - lo for batch in self.batches for run, lo, hi in batch.parts if run.lane is None)
        lanes = len(self.turns) + sum(len(batch.lanes) for batch in self.batches)
        assert len(self.running_calls) + in_batches + lanes <= self.core.in_use

    @invariant()
    def no_permit_is_idle(self) -> None:
        if self.core.in_use < self.max_ongoing:
            assert self.core.waiting == sum(not run.options.ordering_key for run in self.uploading())
            assert not self.core._lanes.ready

    @invariant()
    def nothing_is_parked_without_need(self) -> None:
        for router in self.routers:
            assert not router.link.parked or router.link.fresh_until <= self.now

    @invariant()
    def no_lane_is_blocked_without_need(self) -> None:
        for lane in self.core._lanes.all():
            head = lane.head()
            assert not lane.is_blocked or (head is not None and head.awaits)

    @invariant()
    def what_is_late_does_not_wait_for_its_payload(self) -> None:
        deadline = self.core.next_deadline()
        for run in self.uploading():
            assert deadline is not None or run.deadline == inf
            assert deadline is None or deadline <= run.deadline

    @invariant()
    def room_is_told_before_long(self) -> None:
        deadline = self.core.next_deadline()
        if self.told_full and self.core.in_use + self.core.waiting < self.max_ongoing + self.prefetch:
            assert deadline is not None
            assert deadline <= self.now + CAPACITY_GAP_S

    @invariant()
    def revoked_partitions_are_empty_when_nothing_of_them_is_here(self) -> None:
        here = self.keyed_here()
        for key in KEYS:
            calls = [call for call in here if call.key == key]
            if not calls:
                assert self.core.is_emptied("e", len(key))
            elif any(call.run.owner_epoch <= self.revoked_through for call in calls):
                assert not self.core.is_emptied("e", len(key))

    @invariant()
    def no_batch_is_late(self) -> None:
        deadline = self.core.next_deadline()
        assert deadline is None or deadline > self.now
        for name, batcher in self.core.batchers.items():
            gathered = batcher.gathered
            assert (gathered.waiting, gathered.load) == weighed_anew(gathered)
            running = sum(each.batcher is batcher for each in self.batches)
            if gathered.queue and running < SETTINGS[name].max_concurrent_batches:
                assert deadline is not None
                assert gathered.waiting < self.max_ongoing
                assert (gathered.load if name == "weighed" else gathered.waiting) < SETTINGS[name].max_batch_size

    @invariant()
    def routers_are_charged_for_what_is_here(self) -> None:
        for router in self.router_of.values():
            here = [call for call in router.calls.values() if call.state in {"waiting", "held", "running"}]
            assert router.link.unkeyed == sum(not call.key for call in here)
            assert router.link.keyed == sum(bool(call.key) for call in here)
            assert 0 <= router.link.handed <= router.link.keyed <= KEYED_WINDOW + LONGEST_RUN * len(KEYS)
            can_be_taken_back = {run_id for run in router.link.waiting.values() for run_id in open_ids(run)}
            waiting = {run_id for run_id, call in router.calls.items() if call.state == "waiting"}
            assert waiting <= can_be_taken_back

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core_drains()
        assert self.core.is_idle
        assert self.core.in_use == self.core.waiting == self.core.keyed == 0
        for router in self.router_of.values():
            assert not router.link.waiting
            for call in router.calls.values():
                assert call.state in {"ended", "failed", "refused"}, call.state

    def core_drains(self) -> None:
        self.carry_out(self.core.drain(self.now))
        for router in self.router_of.values():
            assert not any(call.state == "waiting" and call.run.slot is None for call in router.calls.values())
        for turn in list(self.turns):
            self.turns.remove(turn)
            self.begins(turn.run, turn.lo)
            self.call(turn.run, turn.lo).state = "failed" if is_withdrawn(turn.run, turn.lo) else "ended"
            for index in range(turn.lo + 1, turn.hi):
                self.call(turn.run, index).state = "waiting"
            self.carry_out(self.core.turn_ended(turn, turn.lo + 1, self.now))
        while self.batches:
            batch = self.batches.pop()
            for run, lo, hi in batch.parts:
                for index in range(lo, hi):
                    self.call(run, index).state = "ended"
            self.carry_out(self.core.batch_ended(batch, self.now))
        while self.running_calls:
            self.carry_out(self.core.calls_ended(self.running_calls.pop(), 1, self.now))
        for router in self.router_of.values():
            for call in router.calls.values():
                if call.state == "running":
                    call.state = "ended"


def is_withdrawn(run: Run, index: int) -> bool:
    return run.withdrawn is not None and index in run.withdrawn


def weighed_anew(gathered: Gathering) -> tuple[int, float]:
    """Counted and weighed anew: calls in pieces, and of each lane those that fill a batch.

    Where nothing is weighed, runs count as a whole.
    """
    is_weighed = gathered.method == "weighed"
    total, load = 0, 0.0
    for entry in gathered.queue:
        if not isinstance(entry, Lane):
            total += entry.hi - entry.lo
            load += sum(weigh(entry.run, index).weight for index in range(entry.lo, entry.hi)) if is_weighed else 0
            continue
        offered, weight = 0, 0.0
        for run in entry.runs:
            if run.options.method != gathered.method or run.awaits:
                break
            for index in range(run.lo, run.hi):
                if (is_weighed or index == run.lo) and (offered >= gathered.size or weight >= WEIGHED.max_batch_size):
                    break
                offered += 1
                weight += weigh(run, index).weight if is_weighed else 0
        assert offered, "it holds a permit for nothing"
        total += offered
        load += weight
    return total, load


def open_ids(run: Run) -> range:
    return range(run.first + run.begin, run.first + run.end)


TestScheduler = pytest.mark.timeout(120)(SchedulerMachine.TestCase)
TestScheduler.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
