"""The batcher against a naive model with a fake clock: which calls make which batch, when, and in which order.

The model is a list of calls that it looks through from the start each time. It is exact: the core must decide the same
at each event. Calls have no ordering keys and no deadlines here; those are in `test_replica_scheduler.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.call_metadata import ReplicaCallOptions, Weighed
from replica_service.core.events import (
    BatchEnded,
    Fail,
    LimitsChanged,
    ReplicaCommand,
    ReplicaTimePassed,
    RunsCancelled,
    RunsReceived,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartBatch
from slotmesh.errors import Failure, Reason
from slotmesh.handlers import BatchControl, BatchSettings
from tests.support.examples import examples

PREFETCH = 100_000
"""Nothing is refused."""

UNWEIGHABLE = Failure(reason=Reason.HANDLER_ERROR, message="batch_size_fn raised")

# Sums and differences of these are exact.
WEIGHTS = st.sampled_from((0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 5.0, 9.0, None))
"""None: it cannot be weighed."""
SIZES = st.integers(1, 8)
WAITS_S = st.sampled_from((0.0, 0.125, 0.5, 1.0))
CONCURRENCY = st.integers(1, 3)


@dataclass(eq=False)
class Call:
    """What the model knows of one call."""

    run_id: int
    arrived: float
    weight: float | None
    outcomes: int = 0

    def is_fit(self, limit: int) -> bool:
        return self.weight is not None and self.weight <= limit

    @property
    def load(self) -> float:
        return self.weight or 0.0


class Model:
    """What should happen. `told` is what has happened since it was last read."""

    def __init__(self, control: BatchControl, max_ongoing: int, *, is_weighed: bool) -> None:
        self.control = control
        self.max_ongoing = max_ongoing
        self.is_weighed = is_weighed
        self.waiting: list[Call] = []
        """Without a permit."""
        self.gathered: list[Call] = []
        self.running: list[list[Call]] = []
        self.told: list[list[int] | int] = []
        """A batch as its calls, a failure as its call."""

    @property
    def is_free(self) -> bool:
        return len(self.running) < self.control.max_concurrent_batches

    @property
    def is_full(self) -> bool:
        limit = self.control.max_batch_size
        if self.is_weighed:
            return len(self.gathered) >= self.max_ongoing or sum(call.load for call in self.gathered) >= limit
        return len(self.gathered) >= min(limit, self.max_ongoing)

    @property
    def due_at(self) -> float:
        if not self.gathered or not self.is_free:
            return inf
        return self.gathered[0].arrived + self.control.batch_wait_timeout_s

    def settle(self, now: float) -> None:
        while True:
            self.give_permits()
            if not self.is_due(now):
                return
            while self.is_due(now):
                self.cut()

    def is_due(self, now: float) -> bool:
        return bool(self.gathered) and self.is_free and (self.is_full or self.due_at <= now)

    def give_permits(self) -> None:
        """In rounds, as many as are free: those that fail at once make room for as many again."""
        while self.waiting and (free := self.max_ongoing - self.permits) > 0:
            come, self.waiting = self.waiting[:free], self.waiting[free:]
            for call in come:
                if self.is_weighed and not call.is_fit(self.control.max_batch_size):
                    self.told.append(call.run_id)
                else:
                    self.gathered.append(call)

    @property
    def permits(self) -> int:
        return len(self.gathered) + sum(map(len, self.running))

    def cut(self) -> None:
        limit = self.control.max_batch_size
        batch: list[Call] = []
        failed: list[int] = []
        while self.gathered:
            call = self.gathered[0]
            if len(batch) >= (self.max_ongoing if self.is_weighed else min(limit, self.max_ongoing)):
                break
            if self.is_weighed and not call.is_fit(limit):  # the limit was lowered while it waited
                failed.append(self.gathered.pop(0).run_id)
                continue
            if self.is_weighed and sum(each.load for each in batch) + call.load > limit:
                break
            batch.append(self.gathered.pop(0))
        self.told += failed
        if batch:
            self.told.append([call.run_id for call in batch])
            self.running.append(batch)


class BatcherMachine(RuleBasedStateMachine):
    @initialize(
        size=SIZES,
        wait_s=WAITS_S,
        concurrency=CONCURRENCY,
        max_ongoing=st.sampled_from((1, 3, 8, 1000)),
        is_weighed=st.booleans(),
    )
    def start(self, size: int, wait_s: float, concurrency: int, max_ongoing: int, is_weighed: bool) -> None:
        self.now = 100.0
        control = BatchControl(
            BatchSettings(max_batch_size=size, batch_wait_timeout_s=wait_s, max_concurrent_batches=concurrency)
        )
        self.model = Model(control, max_ongoing, is_weighed=is_weighed)
        self.calls: dict[int, Call] = {}
        self.link = RouterPeer()
        self.batches: list[StartBatch] = []
        self.weighings: list[int] = []
        self.core = ReplicaScheduler(
            {"batch": control},
            max_ongoing=max_ongoing,
            prefetch=PREFETCH,
            weigh={"batch": self.weigh} if is_weighed else None,
        )

    def weigh(self, run: ReplicaRun, index: int) -> Weighed:
        run_id = run.first + index
        self.weighings.append(run_id)
        weight = self.calls[run_id].weight
        return Weighed(0.0, failure=UNWEIGHABLE) if weight is None else Weighed(weight)

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(weights=st.lists(WEIGHTS, min_size=1, max_size=12))
    def submit(self, weights: list[float | None]) -> None:
        first = len(self.calls) + 1
        for run_id, weight in enumerate(weights, first):
            call = self.calls[run_id] = Call(run_id, self.now, weight)
            self.model.waiting.append(call)
        run = ReplicaRun(self.link, first, [b""] * len(weights), ReplicaCallOptions(method="batch"), "e", self.now)
        self.carry_out(self.core.step(RunsReceived([run]), self.now))

    @rule(seconds=st.sampled_from((0.125, 0.25, 0.5, 1.0, 2.0)))
    def time_passes(self, seconds: float) -> None:
        """As it does in the engine: the core is asked when it wants to be, and never later."""
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            assert due > self.now, "it should have been cut"
            self.now = due
            self.carry_out(self.core.step(ReplicaTimePassed(), self.now))
        self.now = until
        self.carry_out(self.core.step(ReplicaTimePassed(), self.now))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def batch_ends(self, data: st.DataObject) -> None:
        self.end(data.draw(st.integers(0, len(self.batches) - 1)))

    def end(self, place: int) -> None:
        batch = self.batches.pop(place)
        for call in self.model.running.pop(place):
            call.outcomes += 1
        self.carry_out(self.core.step(BatchEnded(batch), self.now))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), count=st.integers(1, 6))
    def cancel(self, data: st.DataObject, count: int) -> None:
        """What waits is skipped; what runs goes on."""
        first = data.draw(st.integers(1, len(self.calls)))
        last = min(first + count - 1, len(self.calls))
        model = self.model
        cancelled = {call.run_id for call in [*model.waiting, *model.gathered] if first <= call.run_id <= last}
        model.waiting = [call for call in model.waiting if call.run_id not in cancelled]
        model.gathered = [call for call in model.gathered if call.run_id not in cancelled]
        commands = self.core.step(RunsCancelled(self.link, [(first, last)]), self.now)
        told = {id_ for each in commands if is_cancel(each) for id_ in ids_of(each)}
        assert told == cancelled
        for run_id in cancelled:
            self.calls[run_id].outcomes += 1
        self.carry_out([each for each in commands if not is_cancel(each)])

    @rule(size=SIZES)
    def set_max_batch_size(self, size: int) -> None:
        self.model.control.set_max_batch_size(size)
        self.carry_out(self.core.step(ReplicaTimePassed(), self.now))

    @rule(wait_s=WAITS_S)
    def set_batch_wait_timeout_s(self, wait_s: float) -> None:
        self.model.control.set_batch_wait_timeout_s(wait_s)
        self.carry_out(self.core.step(ReplicaTimePassed(), self.now))

    @rule(count=CONCURRENCY)
    def set_max_concurrent_batches(self, count: int) -> None:
        self.model.control.set_max_concurrent_batches(count)
        self.carry_out(self.core.step(ReplicaTimePassed(), self.now))

    @precondition(lambda self: self.batches)
    @rule(size=SIZES)
    def set_max_batch_size_in_a_batch(self, size: int) -> None:
        """Nobody tells the core before the batch has ended: the next one is cut accordingly."""
        self.model.control.set_max_batch_size(size)
        self.end(0)

    @rule(max_ongoing=st.sampled_from((1, 3, 8, 1000)))
    def configure(self, max_ongoing: int) -> None:
        self.model.max_ongoing = max_ongoing
        self.carry_out(self.core.step(LimitsChanged(max_ongoing=max_ongoing, prefetch=PREFETCH), self.now))

    # -- what follows ----------------------------------------------------------------------------------------------

    def carry_out(self, commands: list[ReplicaCommand]) -> None:
        """It is what the model says."""
        self.model.settle(self.now)
        expected, self.model.told = self.model.told, []
        told: list[list[int] | int] = []
        for command in commands:
            if isinstance(command, StartBatch):
                told.append(ids_of(command))
                assert command.count == len(ids_of(command))
                self.batches.append(command)
            else:
                assert isinstance(command, Fail), command
                told += ids_of(command)
                for run_id in ids_of(command):
                    self.calls[run_id].outcomes += 1
        assert told == expected

    @invariant()
    def batches_are_cut_when_they_are_due(self) -> None:
        due = self.core.next_deadline()
        assert (inf if due is None else due) == self.model.due_at

    @invariant()
    def nothing_is_weighed_twice(self) -> None:
        assert len(set(self.weighings)) == len(self.weighings)

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        assert all(call.outcomes <= 1 for call in self.calls.values())

    def teardown(self) -> None:
        """However it went: everything is answered once all batches end."""
        if not hasattr(self, "core"):
            return
        while self.batches or self.model.gathered:
            if self.batches:
                self.end(0)
            else:
                self.time_passes(1.0)
        assert [call.run_id for call in self.calls.values() if call.outcomes != 1] == []
        assert self.core.is_idle


def is_cancel(command: ReplicaCommand) -> bool:
    return isinstance(command, Fail) and command.failure.reason is Reason.CANCELLED


def ids_of(command: ReplicaCommand) -> list[int]:
    if isinstance(command, StartBatch):
        return [run.first + index for run, lo, hi in command.parts for index in range(lo, hi)]
    assert isinstance(command, Fail)
    return [*range(command.run.first + command.lo, command.run.first + command.hi)]


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
