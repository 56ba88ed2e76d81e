"""A session's book-keeping over any number of streams, under calls, answers, losses and breaks in any order.

The machine plays client and router: it sends frames as a `RouterLink` does, and keeps one dictionary of what is
unanswered. It proves that each call has exactly one outcome, and that after a break exactly the unanswered ones leave
again, with their payloads, in the order of their ids, before new ones, within the window.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotmesh.client.calls.outbox import CallOutbox, LargeCalls
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.resends import Resends
from tests.support.examples import examples
from tests.unit.client.parts import Sink, make_call, make_spec

QUEUES = 3


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = CallOutbox()
        self.pending = PendingCalls()
        self.resends = Resends()
        self.specs = [make_spec(queue=CallQueue()) for _ in range(QUEUES)]
        self.sinks: list[Sink] = []
        """Of all calls ever made; each knows its payload."""
        self.unanswered: dict[int, Sink] = {}
        """Sent, on whichever stream."""
        self.here: dict[int, Sink] = {}
        """Those of them that this stream's router has."""
        self.outcomes: set[int] = set()
        """Ids that had theirs."""
        self.last_id = 0
        self.window = (5, 200)

    @rule(queue=st.integers(0, QUEUES - 1), sizes=st.lists(st.integers(0, 120), min_size=1, max_size=6))
    def call(self, queue: int, sizes: list[int]) -> None:
        for size in sizes:
            payload = b"%d." % len(self.sinks)
            self.sinks.append(make_call(self.outbox, self.specs[queue], payload.ljust(size, b"x")))

    @rule(data=st.data())
    def think_better_of_it(self, data: st.DataObject) -> None:
        if self.unanswered:
            self.unanswered[data.draw(st.sampled_from(sorted(self.unanswered)))].cancelled = True

    @rule()
    def write_a_frame(self) -> None:
        calls, nbytes = self.window
        sizes = [len(sink.name) for sink in self.here.values()]
        beside = max((size for size in sizes if size > nbytes), default=0)
        room = calls - len(self.here), nbytes - sum(sizes) + beside
        large = LargeCalls(nbytes, is_free=not beside)
        assert self.pending.calls - self.resends.calls == len(self.here)
        if self.resends:
            taken = self.resends.take(*room, large)
            sent = [pair for each in taken for pair in zip(each.ids, each.payloads, strict=True)]
            assert sent or room[0] <= 0 or self.here, "calls wait for no reason"
            for call_id, payload in sent:
                assert self.unanswered[call_id].name == payload, "another call under the same id"
            left = [call_id for call_id in self.unanswered if call_id not in self.here]
            assert [call_id for call_id, _ in sent] == left[: len(sent)], "passed over, or sent twice"
            assert all(len(each.ids) == 1 for each in taken if len(each.payloads[0]) > nbytes), "not by itself"
            if left[len(sent) :] and len(sent) < room[0] and large.is_free and not self.large_of(sent, nbytes):
                assert len(self.unanswered[left[len(sent)]].name) <= nbytes, "a large call waits for no reason"
        else:
            parts = self.outbox.take(*room, large)
            for part in parts:
                self.pending.add(part)
            sent = [pair for part in parts for pair in enumerate(part.payloads, part.first)]
            self.unanswered |= {part.first + at: sink for part in parts for at, sink in enumerate(part.sinks)}
        for call_id, _ in sent:
            assert call_id > self.last_id
            self.last_id = call_id
            self.here[call_id] = self.unanswered[call_id]
        assert len(sent) <= max(room[0], 0)
        if large.is_free and (beside_now := self.large_of(sent, nbytes)):
            assert len(beside_now) == 1, "one large call, not two"
            sent = [pair for pair in sent if pair not in beside_now]
        assert sum(len(payload) for _, payload in sent) <= max(room[1], 0)

    @staticmethod
    def large_of(sent: list[tuple[int, bytes]], nbytes: int) -> list[tuple[int, bytes]]:
        return [(call_id, payload) for call_id, payload in sent if len(payload) > nbytes]

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.here)), unique=True)) if self.here else []
        self.settle(ids)

    @rule(first=st.integers(-3, 200), count=st.integers(0, 50))
    def answer_a_range(self, first: int, count: int) -> None:
        """As a `done` range does, which may name any ids."""
        ids = self.pending.ids_within(first, first + count - 1)
        open_ids = [call_id for call_id in self.unanswered if first <= call_id < first + count]
        assert set(open_ids) <= set(ids)
        self.settle([call_id for call_id in ids if call_id in self.here])

    @rule(calls=st.integers(1, 8), nbytes=st.integers(1, 300))
    def break_the_stream(self, calls: int, nbytes: int) -> None:
        """Results that were under way are lost with it."""
        for part, at, _, count in self.pending.drain_unwanted():
            part.spec.queue.settled(count)
            for call_id in range(part.first + at, part.first + at + count):
                assert self.unanswered.pop(call_id).cancelled
                self.count_outcome(call_id)
        assert not any(sink.cancelled for sink in self.unanswered.values())
        told = [call_id for first, last in self.pending.unanswered() for call_id in range(first, last + 1)]
        assert told == list(self.unanswered)
        assert all(earlier[1] + 1 < later[0] for earlier, later in pairwise(self.pending.unanswered()))
        self.resends = Resends(self.pending.parts())
        assert (self.resends.calls, self.resends.nbytes) == (self.pending.calls, self.pending.nbytes)
        self.here, self.last_id, self.window = {}, 0, (calls, nbytes)

    @rule()
    def everything_ends(self) -> None:
        self.window = (10**6, 10**9)
        while self.resends or self.outbox:
            self.write_a_frame()
        self.settle(list(self.here))
        assert not self.unanswered
        assert all(spec.queue.idle for spec in self.specs)

    def settle(self, ids: list[int]) -> None:
        for part, at, _, count in self.pending.settle(ids):
            part.spec.queue.settled(count)
            for call_id in range(part.first + at, part.first + at + count):
                self.count_outcome(call_id)
        for call_id in ids:
            del self.unanswered[call_id], self.here[call_id]

    def count_outcome(self, call_id: int) -> None:
        assert call_id not in self.outcomes, "two outcomes"
        self.outcomes.add(call_id)

    @invariant()
    def knows_what_is_unanswered(self) -> None:
        assert self.pending.calls == len(self.unanswered)
        assert self.pending.nbytes == sum(len(sink.name) for sink in self.unanswered.values())


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
