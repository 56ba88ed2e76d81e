"""The deadline heap against a dictionary that is searched each time."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slotmesh.calls.deadline_heap import DeadlineHeap
from tests.support.examples import examples

MOMENTS = st.one_of(st.integers(0, 20).map(float), st.just(inf))


class Item:
    def __init__(self, name: int) -> None:
        self.name = name
        self.alarm = inf


class HeapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap: DeadlineHeap[Item] = DeadlineHeap(sweep_from=8)
        self.items: dict[int, Item] = {}
        """Those that somebody holds."""
        self.moments: dict[int, tuple[float, int]] = {}
        """By name of the item that is watched: when, and which entry that was."""
        self.entries = self.names = self.most = 0

    @rule(when=MOMENTS)
    def watch_another(self, when: float) -> None:
        self.names += 1
        self.items[self.names] = Item(self.names)
        self.watch(self.names, when)

    @precondition(lambda self: self.items)
    @rule(data=st.data(), when=MOMENTS)
    def watch_again(self, data: st.DataObject, when: float) -> None:
        self.watch(data.draw(st.sampled_from(sorted(self.items))), when)

    @precondition(lambda self: self.items)
    @rule(data=st.data(), when=MOMENTS)
    def put_off(self, data: st.DataObject, when: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.items)))
        self.heap.put_off(when, self.items[name])
        self.moments.pop(name, None)
        self.note(name, when)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def end_the_watch(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.items)))
        self.items[name].alarm = inf
        self.moments.pop(name, None)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.items)))
        del self.items[name]
        self.moments.pop(name, None)

    @rule(now=st.integers(0, 20).map(float))
    def time_passes(self, now: float) -> None:
        due = sorted((moment, name) for name, moment in self.moments.items() if moment[0] <= now)
        assert [each.name for each in self.heap.pop_due(now)] == [name for _, name in due]
        for _, name in due:
            del self.moments[name]

    def watch(self, name: int, when: float) -> None:
        self.heap.watch(when, self.items[name])
        if when < self.moments.get(name, (inf, 0))[0]:
            self.note(name, when)

    def note(self, name: int, when: float) -> None:
        if when < inf:
            self.entries += 1
            self.moments[name] = when, self.entries

    @invariant()
    def wakes_exactly_in_time(self) -> None:
        assert self.heap.next_deadline() == min((when for when, _ in self.moments.values()), default=None)

    @invariant()
    def each_item_knows_its_moment(self) -> None:
        assert {name: each.alarm for name, each in self.items.items()} == {
            name: self.moments.get(name, (inf, 0))[0] for name in self.items
        }

    @invariant()
    def keeps_little_of_what_is_over(self) -> None:
        self.most = max(self.most, len(self.moments))
        assert len(self.heap) <= max(8, 2 * self.most)


TestHeap = HeapMachine.TestCase
TestHeap.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
