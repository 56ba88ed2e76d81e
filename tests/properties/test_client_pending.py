"""The client's pending calls against a dictionary of ids, under answers and second thoughts in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.stream.pending_calls import PendingCalls
from tests.support.examples import examples
from tests.unit.client.parts import Sink, make_map_part, make_part

sizes = st.lists(st.integers(0, 100), min_size=1, max_size=12)


class PendingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pending = PendingCalls()
        self.model: dict[int, tuple[SentPart, int]] = {}
        """Unanswered: id -> its part, its payload bytes."""
        self.next_id = 1
        self.sinks: dict[int, Sink] = {}
        """Who waits for each call ever sent."""
        self.boundaries = [1]
        """What `next_id` has been."""
        self.taken_back: set[int] = set()

    @rule(sizes=sizes, is_map=st.booleans())
    def send(self, sizes: list[int], is_map: bool) -> None:
        if is_map:
            sink = Sink()
            part = make_map_part(*sizes, sink=sink)
            self.sinks |= dict.fromkeys(range(self.next_id, self.next_id + len(sizes)), sink)
        else:
            part = make_part(*sizes)
            self.sinks |= dict(enumerate(part.sinks, self.next_id))
        self.pending.add(part)
        self.boundaries.append(self.pending.next_id)
        assert part.first == self.next_id
        for size in sizes:
            self.model[self.next_id] = (part, size)
            self.next_id += 1

    @rule(data=st.data(), strangers=st.lists(st.integers(-5, 200), max_size=3))
    def answer_in_any_order(self, data: st.DataObject, strangers: list[int]) -> None:
        known = data.draw(st.lists(st.sampled_from(sorted(self.model)), max_size=20)) if self.model else []
        self.answer(data.draw(st.permutations([*known, *strangers])))

    @rule(data=st.data())
    def answer_neighbours(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(1, self.next_id))
        last = data.draw(st.integers(first, self.next_id + 3))
        self.answer(list(range(first, last + 1)))

    @rule(data=st.data())
    def answer_stretches(self, data: st.DataObject) -> None:
        """What a router's frames look like: stretches of neighbours, with gaps, in no order."""
        stretches = data.draw(
            st.lists(st.tuples(st.integers(1, self.next_id), st.integers(1, 10)), min_size=1, max_size=4)
        )
        self.answer([first + offset for first, count in stretches for offset in range(count)])

    @rule(data=st.data())
    def think_better_of_it(self, data: st.DataObject) -> None:
        if self.model:
            self.sinks[data.draw(st.sampled_from(sorted(self.model)))].cancelled = True

    @rule(data=st.data())
    def take_back_what_nobody_waits_for(self, data: st.DataObject) -> None:
        before = data.draw(st.sampled_from(self.boundaries))
        ranges = self.pending.take_unwanted(before)
        told = [call_id for first, last in ranges for call_id in range(first, last + 1)]
        assert told == [
            call_id
            for call_id in sorted(self.model)
            if call_id < before and self.sinks[call_id].cancelled and call_id not in self.taken_back
        ]
        assert all(ranges[at][1] + 1 < ranges[at + 1][0] for at in range(len(ranges) - 1)), "neighbours are one range"
        self.taken_back.update(told)

    @rule()
    def lose_the_stream(self) -> None:
        left = [part.first + at + i for part, at, _, count in self.pending.drain() for i in range(count)]
        assert left == sorted(self.model)
        self.model.clear()

    def answer(self, ids: list[int]) -> None:
        strays = self.pending.strays
        heard: dict[int, tuple[SentPart, int]] = {}
        for part, at, start, count in self.pending.settle(ids):
            assert count > 0
            for offset in range(count):
                call_id = ids[start + offset]
                assert call_id == part.first + at + offset
                assert call_id not in heard, "settled twice"
                heard[call_id] = self.model.pop(call_id)
                assert heard[call_id][0] is part
        assert set(heard) == set(ids) & (set(heard) | set(self.model)), "an unanswered call was passed over"
        assert not set(ids) & set(self.model)
        assert self.pending.strays - strays == len(ids) - len(heard)

    @invariant()
    def counts_what_is_unanswered(self) -> None:
        assert self.pending.calls == len(self.model)
        assert self.pending.nbytes == sum(size for _, size in self.model.values())
        assert self.pending.next_id == self.next_id


TestPending = PendingMachine.TestCase
TestPending.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
