"""The ledger of what was sent against a dictionary with an entry for each id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slotmesh.calls.id_ranges import Ledger
from tests.support.examples import examples


@dataclass(eq=False)
class Calls:
    """A slice of so many calls."""

    count: int
    first: int = 0


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger: Ledger[Calls] = Ledger()
        self.known: dict[int, tuple[Calls, int]] = {}
        """Id -> its slice, and its place there."""
        self.next_id = 1
        self.most = 0
        """Slices that were here at once."""

    @rule(count=st.integers(1, 12))
    def number(self, count: int) -> None:
        each = Calls(count)
        assert self.ledger.number(each) == each.first == self.next_id
        self.known |= {self.next_id + place: (each, place) for place in range(count)}
        self.next_id += count

    @rule(counts=st.lists(st.just(1), min_size=30, max_size=60))
    def number_many(self, counts: list[int]) -> None:
        for count in counts:
            self.number(count)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.forget(self.known[data.draw(st.sampled_from(sorted(self.known)))][0])

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def drop_all_but_one(self, data: st.DataObject) -> None:
        stays = self.known[data.draw(st.sampled_from(sorted(self.known)))][0]
        for each in list(self.ledger.values()):
            if each is not stays:
                self.forget(each)

    @rule()
    def reset(self) -> None:
        self.ledger.reset()
        self.known.clear()
        self.next_id = 1

    @rule(data=st.data())
    def move_some_to_another(self, data: st.DataObject) -> None:
        """What stays is lost: whoever hands over looks after that."""
        moving = [each for each in self.ledger.values() if data.draw(st.booleans())]
        self.ledger = Ledger(self.next_id)
        for each in moving:
            self.ledger.take_over(each)
        self.known = {at: found for at, found in self.known.items() if found[0] in moving}

    @rule(data=st.data(), drops=st.booleans())
    def ids_come_back(self, data: st.DataObject, drops: bool) -> None:
        """Stretches of ids, in any order, some of them unknown, or twice."""
        stretches = data.draw(st.lists(st.tuples(st.integers(-3, self.next_id + 3), st.integers(1, 15)), max_size=5))
        ids = [first + offset for first, count in stretches for offset in range(count)]
        ids = data.draw(st.permutations(ids)) if len(ids) < 12 and data.draw(st.booleans()) else ids
        self.come_back(ids, drops=drops)

    @rule(first=st.integers(-3, 40), count=st.integers(0, 30), drops=st.booleans())
    def a_range_comes_back(self, first: int, count: int, drops: bool) -> None:
        """Some of it may be unknown."""
        self.come_back(range(first, first + count), drops=drops)

    def come_back(self, ids: Sequence[int], *, drops: bool) -> None:
        reached = 0
        for each, place, at, count in self.ledger.slices(ids):
            assert not any(one in self.known for one in ids[reached:at]), "a known id was passed over"
            assert [self.known[one] for one in ids[at : at + count]] == [(each, place + i) for i in range(count)]
            after = ids[at + count] if at + count < len(ids) else None
            assert after != ids[at] + count or self.known.get(after, (None, 0))[0] is not each, "a slice was cut short"
            reached = at + count
            if drops:
                self.forget(each)
        assert not any(one in self.known for one in ids[reached:])

    @rule(data=st.data())
    def look_for_one(self, data: st.DataObject) -> None:
        each = data.draw(st.integers(-3, self.next_id + 3))
        assert self.ledger.covering(each) is self.known.get(each, (None, 0))[0]

    @rule(data=st.data(), more=st.integers(0, 30))
    def look_for_a_range(self, data: st.DataObject, more: int) -> None:
        first = data.draw(st.integers(-3, self.next_id + 3))
        expected = dict.fromkeys(self.known[at][0] for at in range(first, first + more + 1) if at in self.known)
        assert list(self.ledger.within(first, first + more)) == list(expected)

    def forget(self, each: Calls) -> None:
        self.ledger.drop(each)
        for place in range(each.count):
            del self.known[each.first + place]

    @invariant()
    def holds_what_is_here_in_order(self) -> None:
        slices = dict.fromkeys(each for _, (each, _) in sorted(self.known.items()))
        assert list(self.ledger.items()) == [(each.first, each) for each in slices]
        assert self.ledger.next_id == self.next_id

    @invariant()
    def keeps_little_of_what_has_left(self) -> None:
        self.most = max(self.most, len(self.ledger))
        assert len(self.ledger._firsts) <= 64 + 2 * len(self.ledger) + self.most


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_range_that_never_ends_costs_what_is_here() -> None:
    ledger: Ledger[Calls] = Ledger()
    only = Calls(3)
    ledger.number(only)
    assert list(ledger.within(2, 2**62)) == [only]


def test_long_lived_slices_keep_nothing_of_those_that_have_left() -> None:
    ledger: Ledger[Calls] = Ledger()
    stays = Calls(2)
    ledger.number(stays)
    for _ in range(10_000):
        each = Calls(1)
        ledger.number(each)
        ledger.drop(each)
    assert len(ledger._firsts) < 100
    assert ledger.covering(2) is stays
