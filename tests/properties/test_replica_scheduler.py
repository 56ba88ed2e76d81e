"""The replica's scheduler against a naive model, under arbitrary interleavings.

The model remembers every call that was sent and what became of it; it knows nothing of queues, permits or batches.
"""

from __future__ import annotations

from itertools import repeat
from math import inf
from random import Random
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.call_states import CallState
from replica_service.core.events import (
    BatchEnded,
    CallsEnded,
    EpochFenced,
    LimitsChanged,
    LinkClosed,
    PartitionsRevoked,
    PayloadFailed,
    PayloadReceived,
    ReplicaTimePassed,
    RunsCancelled,
    RunsReceived,
    StampEchoed,
    TurnEnded,
    WorkReturned,
)
from replica_service.core.runs import FRESH_S, ReplicaRun
from replica_service.core.work import StartCalls
from slotmesh.errors import Reason
from tests.properties.replica_invariants import ALWAYS, nothing_is_left
from tests.properties.replica_model import (
    KEYS,
    LONGEST_RUN,
    SPOILED,
    Call,
    ReplicaModel,
    Router,
    is_withdrawn,
)
from tests.support.examples import examples


class SchedulerMachine(RuleBasedStateMachine):
    model: ReplicaModel
    model_class: ClassVar[type[ReplicaModel]] = ReplicaModel

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
        if is_silence_possible:
            troubles = troubles | {"silence"}
        self.model = self.model_class(max_ongoing, prefetch, troubles, chances)

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
        to = self.model.routers[router]
        sent = []
        first, payloads = to.next_id, [b"x"] * sum(count for count, *_ in runs)
        if are_neighbours:
            runs = [(count, *runs[0][1:2], key or KEYS[0], *runs[0][3:]) for count, _, key, _, _ in runs]
        for count, method, key, time_left, stale in runs:
            options = ReplicaCallOptions(method=method, ordering_key=key)
            deadline = self.model.now + time_left if "expiry" in self.model.troubles else inf
            if are_neighbours:
                begin, end = to.next_id - first, to.next_id - first + count
                run = ReplicaRun(to.link, first, payloads, options, "e", self.model.now, deadline, begin=begin, end=end)
            else:
                run = ReplicaRun(to.link, to.next_id, [b"x"] * count, options, "e", self.model.now, deadline)
                if is_large and count == 1 and "uploads" in self.model.troubles:
                    run.state = CallState.UPLOADING
            run.owner_epoch = self.model.epoch - 1 if stale and "stale" in self.model.troubles else self.model.epoch
            run.partition = len(key)
            for run_id in range(to.next_id, to.next_id + count):
                self.model.order += 1
                to.calls[run_id] = Call(run, key, run.deadline, self.model.now, self.model.order)
            to.next_id += count
            sent.append(run)
        before, room = self.model.core.in_use + self.model.core.waiting, self.model.room
        self.model.carry_out(self.model.core.step(RunsReceived(sent), self.model.now))
        if not any(run.options.ordering_key for run in sent):
            assert self.model.core.in_use + self.model.core.waiting <= max(before, room)
        self.check_fences(sent)

    def check_fences(self, sent: list[ReplicaRun]) -> None:
        is_past_window = False
        for run in sent:
            if not (key := run.options.ordering_key):
                continue
            states = {
                (call.state, call.reason) for call in map(self.model.call, repeat(run), range(run.begin, run.end))
            }
            if run.owner_epoch < self.model.floor.get(key, 0):
                assert states == {("refused", Reason.STALE_TABLE)}
                continue
            assert ("refused", Reason.STALE_TABLE) not in states
            self.model.floor[key] = run.owner_epoch
            is_past_window |= ("refused", Reason.QUEUE_FULL) in states
            assert not is_past_window or states == {("refused", Reason.QUEUE_FULL)}, "a run overtook a refused one"

    @precondition(lambda self: "cancel" in self.model.troubles)
    @rule(router=st.integers(0, 1), data=st.data())
    def cancel(self, router: int, data: st.DataObject) -> None:
        to = self.model.routers[router]
        if to.next_id == 1:
            return
        if data.draw(st.booleans()):
            run = to.calls[data.draw(st.integers(1, to.next_id - 1))].run
            first, last = run.first, run.first + run.end - 1
        else:
            first = data.draw(st.integers(1, to.next_id - 1))
            last = data.draw(st.integers(first, min(to.next_id + 1, first + 6)))
        self.model.carry_out(self.model.core.step(RunsCancelled(to.link, [(first, last)]), self.model.now))
        for run_id in range(first, min(last + 1, to.next_id)):
            call = to.calls[run_id]
            assert call.state != "waiting", "it was taken back and still waits"
            if call.state == "held":
                assert any(
                    is_withdrawn(turn.run, run_id - turn.run.first)
                    for turn in self.model.turns
                    if turn.run.link is to.link
                )

    @rule(seconds=st.sampled_from((0.02, 0.1, 0.25, 0.5, 1.0)))
    def time_passes(self, seconds: float) -> None:
        self.model.now += seconds
        self.model.carry_out(self.model.core.step(ReplicaTimePassed(), self.model.now))

    @precondition(lambda self: self.model.uploading())
    @rule(data=st.data(), is_spoiled=st.booleans())
    def upload_ends(self, data: st.DataObject, is_spoiled: bool) -> None:
        run = data.draw(st.sampled_from(self.model.uploading()))
        if not is_spoiled:
            self.model.carry_out(self.model.core.step(PayloadReceived(run, b"late"), self.model.now))
            assert run.state is not CallState.UPLOADING
            return
        self.model.carry_out(self.model.core.step(PayloadFailed(run, SPOILED), self.model.now))
        assert self.model.call(run, 0).reason is SPOILED.reason

    @precondition(lambda self: self.model.running_calls)
    @rule(data=st.data())
    def calls_end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.model.running_calls))
        running = [
            call
            for call in self.model.router_of[run.link].calls.values()
            if call.started is run and call.state == "running"
        ]
        count = data.draw(st.integers(1, len(running)))
        for call in running[:count]:
            call.state = "ended"
            self.model.leaves(run)
        self.model.carry_out(self.model.core.step(CallsEnded(run, count), self.model.now))

    @precondition(lambda self: self.model.turns)
    @rule(data=st.data())
    def turn_ends(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.model.turns))
        reached = data.draw(st.integers(turn.lo + self.model.is_fresh(turn.run), turn.hi))
        self.model.turns.remove(turn)
        for index in range(turn.lo, turn.hi):
            call = self.model.call(turn.run, index)
            if index >= reached:
                call.state = "waiting"
            elif is_withdrawn(turn.run, index):
                call.state, call.reason = "failed", Reason.CANCELLED
            else:
                self.model.begins(turn.run, index)
                call.state = "ended"
        self.model.carry_out(self.model.core.step(TurnEnded(turn, reached), self.model.now))

    @precondition(lambda self: self.model.batches)
    @rule(data=st.data())
    def batch_ends(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.model.batches))
        self.model.batches.remove(batch)
        for run, lo, hi in batch.parts:
            for index in range(lo, hi):
                self.model.call(run, index).state = "ended"
        self.model.carry_out(self.model.core.step(BatchEnded(batch), self.model.now))

    @precondition(lambda self: "close" in self.model.troubles)
    @rule(router=st.integers(0, 1))
    def router_goes(self, router: int) -> None:
        old = self.model.routers[router]
        old.closed = True
        self.model.told_full.discard(old.link)
        self.model.carry_out(self.model.core.step(LinkClosed(old.link), self.model.now))
        assert not any(call.state == "waiting" and not self.model.is_held(call) for call in old.calls.values())
        self.model.routers[router] = new = Router(self.model.new_link(), router)
        self.model.router_of[new.link] = new

    @rule(router=st.integers(0, 1))
    def capacity_is_told(self, router: int) -> None:
        link = self.model.routers[router].link
        capacity = self.model.core.capacity(link)
        parked = sum(run.hi - run.lo for run in link.parked if run.lane is None and run.slot is None)
        taken = self.model.core.in_use + self.model.core.waiting
        assert capacity.others + link.unkeyed - link.in_slots - parked == taken
        assert capacity.max_ongoing + capacity.prefetch == self.model.room
        full = capacity.others and taken >= self.model.room
        if full:
            self.model.told_full.add(link)
        else:
            self.model.told_full.discard(link)

    @precondition(lambda self: "silence" in self.model.troubles)
    @rule(router=st.integers(0, 1))
    def router_falls_silent(self, router: int) -> None:
        self.model.routers[router].link.fresh_until = self.model.now

    @precondition(lambda self: "silence" in self.model.troubles)
    @rule(router=st.integers(0, 1), age=st.sampled_from((0.0, 1.0, FRESH_S, FRESH_S + 1)))
    def router_echoes(self, router: int, age: float) -> None:
        link = self.model.routers[router].link
        self.model.carry_out(self.model.core.step(StampEchoed(link, self.model.now - age), self.model.now))
        assert link.fresh_until >= self.model.now - age + FRESH_S

    @precondition(lambda self: any(not self.model.is_fresh(run) for run in self.model.running_calls))
    @rule(data=st.data())
    def calls_come_back(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from([run for run in self.model.running_calls if not self.model.is_fresh(run)]))
        running = [index for index in range(run.end) if self.model.is_running(run, index)]
        lo = data.draw(st.sampled_from(running))
        hi = lo + 1
        while hi in running:
            hi += 1
        for index in range(lo, hi):
            self.model.call(run, index).state = "waiting"
            self.model.leaves(run)
        self.model.carry_out(self.model.core.step(WorkReturned(StartCalls(run, lo, hi)), self.model.now))

    @precondition(lambda self: any(self.model.is_stale(batch) for batch in self.model.batches))
    @rule()
    def a_batch_comes_back(self) -> None:
        batch = next(batch for batch in self.model.batches if self.model.is_stale(batch))
        self.model.batches.remove(batch)
        for run, lo, hi in reversed(batch.parts):
            for index in range(lo, hi):
                call = self.model.call(run, index)
                call.state = "waiting"
                if call.key:
                    key = self.model.lane_of(call)
                    self.model.last_started[key] = min(self.model.last_started[key], call.order - 1)
        self.model.carry_out(self.model.core.step(WorkReturned(batch), self.model.now))

    @precondition(lambda self: "configure" in self.model.troubles)
    @rule(max_ongoing=st.integers(1, 5))
    def configured(self, max_ongoing: int) -> None:
        self.model.max_ongoing = max_ongoing
        self.model.allowed = max(max_ongoing, self.model.core.in_use)
        self.model.carry_out(
            self.model.core.step(LimitsChanged(max_ongoing=max_ongoing, prefetch=self.model.prefetch), self.model.now)
        )

    @precondition(lambda self: "stale" in self.model.troubles)
    @rule()
    def ownership_comes_again(self) -> None:
        self.model.epoch += 1

    @precondition(lambda self: "revoke" in self.model.troubles)
    @rule(fenced=st.booleans())
    def ownership_goes(self, fenced: bool) -> None:
        if fenced:
            self.model.carry_out(self.model.core.step(EpochFenced(self.model.epoch), self.model.now))
            assert self.model.core.busy().get("e", set()) == {len(call.key) for call in self.model.keyed_here()}
        self.model.carry_out(
            self.model.core.step(PartitionsRevoked({"e": {len(key): self.model.epoch for key in KEYS}}), self.model.now)
        )
        self.model.revoked_through = self.model.epoch
        for router in self.model.router_of.values():
            assert not any(
                call.key and call.state == "waiting" and not self.model.is_held(call) for call in router.calls.values()
            )
        self.model.epoch += 1
        self.model.floor = dict.fromkeys(KEYS, self.model.epoch)

    @invariant()
    def what_always_holds(self) -> None:
        for holds in ALWAYS:
            holds(self.model)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            nothing_is_left(self.model)


TestScheduler = pytest.mark.timeout(120)(SchedulerMachine.TestCase)
TestScheduler.settings = settings(
    max_examples=examples(300),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
