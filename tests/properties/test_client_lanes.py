"""Lanes that share columns, and lanes that stop at failures, against one list a lane.

The machine makes calls, takes them back, writes frames, and lets calls fail. It proves that no call overtakes another
one of its lane whichever way both travel, that queues are idle exactly when nothing is open, and that behind a failure
or a call whose timeout has passed nothing leaves until the lane's next generation.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.outbox import CallOutbox, LargeCalls
from slotmesh.client.calls.queues import CallQueue, LaneGroups, StopGenerations
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.calls.waiting_runs import WaitingRunQueue
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.errors import Failure, Reason
from tests.support.examples import examples
from tests.unit.client.parts import Sink, make_call, make_spec

LANES = 4
STOPPING = 2
"""The first ones stop at failures."""
METHODS = ("add", "get", "hurry")
TIMEOUT_S = 1.0
"""Of the last one; the others have none."""
FAILURE = Failure(reason=Reason.HANDLER_ERROR, message="no")


class LanesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = CallOutbox()
        self.pending = PendingCalls()
        self.stops = StopGenerations(self.on_failure)
        groups = LaneGroups()
        self.queues: list[WaitingRunQueue] = [CallQueue(groups) for _ in range(LANES)]
        for lane in range(STOPPING):
            self.stops.stop_of(self.queues[lane], f"key-{lane}")
        self.specs: list[dict[str, CallSpec]] = [{} for _ in range(LANES)]
        for lane in range(LANES):
            self.make_specs(lane)
        self.waiting: list[list[Sink]] = [[] for _ in range(LANES)]
        self.generations: dict[int, int] = {}
        """Of each sink, by identity."""
        self.sent: dict[int, tuple[int, Sink]] = {}
        """Unanswered: id -> lane, sink."""
        self.failed = [0] * LANES
        """Newest generation of which a call that was sent has failed."""
        self.sinks: list[Sink] = []
        self.now = 0.0
        self.hurried: set[int] = set()
        """Sinks of calls with a timeout, by identity."""
        self.sealed_at: dict[int, float] = {}
        """When the outbox was told the time first while a call with a timeout waited, by its sink's identity."""

    def make_specs(self, lane: int) -> None:
        stops = "stop" if lane < STOPPING else "continue"
        self.specs[lane] = {
            method: make_spec(
                method,
                self.queues[lane],
                ordering_key=f"key-{lane}",
                after_failure=stops,
                timeout_s=TIMEOUT_S if method == "hurry" else None,
            )
            for method in METHODS
        }

    def on_failure(self, queue: WaitingRunQueue, generation: int) -> None:
        self.refuse(self.outbox.take_stopped(queue, generation))

    def refuse(self, parts: list[SentPart]) -> None:
        waiting = [list(lane) for lane in self.waiting]
        for part in parts:
            lane = self.queues.index(part.spec.queue)
            stop = part.spec.queue.stop
            assert stop is not None
            for sink in part.sinks:
                was_behind = any(each.cancelled for each in waiting[lane][: waiting[lane].index(sink) + 1])
                assert self.generations[id(sink)] <= stop.failed
                assert was_behind or self.generations[id(sink)] <= self.failed[lane], "refused without a failure"
            gone = set(map(id, part.sinks))
            self.waiting[lane] = [sink for sink in self.waiting[lane] if id(sink) not in gone]
            part.settled(0, part.count)

    @rule(lane=st.integers(0, LANES - 1), method=st.sampled_from(METHODS), count=st.integers(1, 12))
    def call(self, lane: int, method: str, count: int) -> None:
        spec, stop = self.specs[lane][method], self.queues[lane].stop
        for _ in range(count):
            if stop is not None and spec.stop_generation <= stop.failed:
                return  # refused where it is made
            sink = make_call(self.outbox, spec, b"x" * (len(self.sinks) % 5))
            self.generations[id(sink)] = spec.stop_generation
            self.sinks.append(sink)
            if method == "hurry":
                self.hurried.add(id(sink))
            self.waiting[lane].append(sink)

    @rule(data=st.data(), lane=st.integers(0, LANES - 1))
    def take_back(self, data: st.DataObject, lane: int) -> None:
        if self.waiting[lane]:
            data.draw(st.sampled_from(self.waiting[lane])).cancelled = True

    @rule(seconds=st.sampled_from((0.1, 0.6, 2.0)), times=st.integers(1, 2))
    def time_passes(self, seconds: float, times: int) -> None:
        for _ in range(times):
            self.now += seconds
            self.look_for_timeouts()

    def look_for_timeouts(self) -> None:
        overdue, behind = self.outbox.take_overdue(self.now)
        late = {id(sink) for part in overdue for sink in part.sinks}
        stopped = {id(sink) for part in behind for sink in part.sinks}
        for lane, sinks in enumerate(self.waiting):
            failed = 0
            for sink in sinks:
                generation = self.generations[id(sink)] if lane < STOPPING else 0
                is_late = self.sealed_at.get(id(sink), self.now) + TIMEOUT_S <= self.now
                is_behind = not is_late and 0 < generation <= failed
                if sink.cancelled:  # it may have been dropped before
                    is_late = id(sink) in late
                else:
                    assert (id(sink) in late, id(sink) in stopped) == (is_late, is_behind)
                failed = max(failed, generation) if is_late else failed
            self.waiting[lane] = [sink for sink in sinks if id(sink) not in late | stopped]
            if (stop := self.queues[lane].stop) is not None and failed:
                stop.fail(self.queues[lane], failed, 0, FAILURE)
        for part in overdue + behind:
            part.settled(0, part.count)
        self.outbox.seal(self.now)
        for sink in (sink for lane in self.waiting for sink in lane if id(sink) in self.hurried):
            self.sealed_at.setdefault(id(sink), self.now)

    @rule(calls=st.integers(0, 30), nbytes=st.integers(0, 60))
    def write_a_frame(self, calls: int, nbytes: int) -> None:
        parts = self.outbox.take(calls, nbytes, LargeCalls(nbytes, is_free=not self.pending.calls))
        self.refuse(self.outbox.take_refused())
        for part in parts:
            self.pending.add(part)
            for at, sink in enumerate(part.sinks):
                spec = part.spec if part.specs is None else part.specs[at]
                lane = self.queues.index(spec.queue)
                assert not sink.cancelled
                while self.waiting[lane][0].cancelled:
                    gone = self.waiting[lane].pop(0)
                    is_older = self.generations[id(gone)] < spec.stop_generation
                    assert lane >= STOPPING or is_older, "left behind a call that was taken back"
                assert self.waiting[lane].pop(0) is sink, "overtaken"
                assert lane >= STOPPING or spec.stop_generation > self.failed[lane], "left behind a failure"
                self.sent[part.first + at] = lane, sink

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.sent)), unique=True)) if self.sent else []
        if data.draw(st.booleans()):
            ids.sort()
            for part, places, start in self.pending.settle_scattered(ids):
                assert [part.first + at for at in places] == ids[start : start + len(places)]
                part.settled_places(places)
        else:
            for part, at, _, count in self.pending.settle(ids):
                part.settled(at, count)
        for call_id in ids:
            del self.sent[call_id]

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if not self.sent:
            return
        call_id = data.draw(st.sampled_from(sorted(self.sent)))
        lane, sink = self.sent.pop(call_id)
        stop, generation = self.queues[lane].stop, self.generations[id(sink)]
        if stop is not None:
            self.failed[lane] = max(self.failed[lane], generation)
            stop.fail(self.queues[lane], generation, call_id, FAILURE)
            assert not [
                each for each in self.waiting[lane] if self.generations[id(each)] <= generation == self.failed[lane]
            ], "waits behind a failure"
        for part, at, _, count in self.pending.settle([call_id]):
            part.settled(at, count)

    @rule(lane=st.integers(0, STOPPING - 1))
    def reset(self, lane: int) -> None:
        stop = self.queues[lane].stop
        if stop is not None:
            stop.reset()
            assert stop.generation > self.failed[lane]
            self.make_specs(lane)

    @rule()
    def everything_leaves_in_the_end(self) -> None:
        while self.outbox:
            self.write_a_frame(10**6, 10**6)
        assert not [sink for lane in self.waiting for sink in lane if not sink.cancelled]
        self.waiting = [[] for _ in range(LANES)]

    @invariant()
    def what_waits_is_counted(self) -> None:
        waiting = sum(map(len, self.waiting))
        wanted = sum(not sink.cancelled for lane in self.waiting for sink in lane)
        counted = self.outbox.count(10**6)
        assert wanted <= counted <= waiting
        assert min(self.outbox.count(5), 5) == min(counted, 5)

    @invariant()
    def queues_are_idle_exactly_when_nothing_is_open(self) -> None:
        for lane, queue in enumerate(self.queues):
            is_unanswered = any(owner == lane for owner, _ in self.sent.values())
            if is_unanswered or any(not sink.cancelled for sink in self.waiting[lane]):
                assert not queue.idle
            elif not self.waiting[lane]:
                assert queue.idle


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
