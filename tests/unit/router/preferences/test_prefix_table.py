"""Blocks by replica: a naive model of who holds what, and which replica a prompt goes to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router_service.core.preferences import prefix_table
from router_service.core.preferences.prefix_table import MAX_GONE, PrefixTable
from router_service.core.replicas.replica import RoutedReplica
from tests.support.examples import examples
from tests.unit.router.parts import replica


def table_of(*replicas: RoutedReplica, most: int = 10_000) -> PrefixTable[RoutedReplica]:
    table = PrefixTable[RoutedReplica](most)
    for each in replicas:
        table.changed(each)
    return table


def load(table: PrefixTable[RoutedReplica], each: RoutedReplica, calls: int) -> None:
    each.own = calls
    table.changed(each)


def named(picked: tuple[RoutedReplica, int] | None) -> str:
    return "" if picked is None else picked[0].replica_id


def prompt(conversation: int, blocks: int, shared: int = 0) -> list[int]:
    """A conversation of its own behind some blocks that all have."""
    return [*range(shared), *range(1_000 * conversation + shared, 1_000 * conversation + blocks)]


def test_the_longest_known_prefix_decides() -> None:
    a, b, c = (replica(name) for name in "abc")
    table = table_of(a, b, c)
    table.sent(prompt(1, 10), a)
    table.sent(prompt(1, 20), b)
    load(table, b, 3)
    assert named(table.pick(prompt(1, 24), 1)) == "b"
    assert named(table.pick([*prompt(1, 12), 7, 7], 1)) == "b"
    assert named(table.pick(prompt(1, 10), 1)) == "a", "both hold all of it"


def test_an_overloaded_replica_leaves_its_prompts_to_the_next_longest_prefix() -> None:
    a, b, c = (replica(name) for name in "abc")
    table = table_of(a, b, c)
    table.sent(prompt(1, 20), a)
    table.sent(prompt(1, 19), b)
    load(table, a, 5)
    assert named(table.pick(prompt(1, 20), 1)) == "b", "half of its permits, and more than its share of the load"
    load(table, b, 5)
    assert named(table.pick(prompt(1, 20), 1)) == "c"
    load(table, c, 5)
    assert named(table.pick(prompt(1, 20), 1)) == "a", "16 calls at 3 replicas: 7 are a quarter more than the mean"
    load(table, a, 8)
    assert named(table.pick(prompt(1, 20), 1)) == "b"


def test_the_room_of_a_replica_is_what_its_bound_leaves() -> None:
    a, b = replica("a"), replica("b")
    table = table_of(a, b)
    table.sent([1, 2], a)
    assert table.pick([1, 2], 3) == (a, 3)
    assert table.pick([1, 2], 100) == (a, 10)
    load(table, a, 4)
    assert table.pick([1, 2], 3) == (a, 1)


def test_no_replica_with_room_no_pick() -> None:
    a, b = replica("a", 1), replica("b", 1)
    table = table_of(a, b)
    table.sent([1, 2], a)
    load(table, a, 1)
    assert named(table.pick([1, 2], 1)) == "b"
    load(table, b, 1)
    assert table.pick([1, 2], 1) is None
    assert table_of().pick([1], 1) is None


def test_unknown_prompts_go_where_the_load_is_least_then_where_the_fewest_blocks_are() -> None:
    replicas = [replica(f"r{number}") for number in range(4)]
    table = table_of(*replicas)
    placed: Counter[str] = Counter()
    for conversation in range(1, 41):
        picked = table.pick(prompt(conversation, 10), 1)
        assert picked is not None
        table.sent(prompt(conversation, 10), picked[0])
        placed[picked[0].replica_id] += 1
    assert set(placed.values()) == {10}
    load(table, replicas[2], 1)
    assert named(table.pick(prompt(99, 10), 1)) != "r2"
    assert table.pick(prompt(99, 10), 1, is_known_only=True) is None


def test_conversations_that_share_their_beginning_spread() -> None:
    replicas = [replica(f"r{number}") for number in range(4)]
    table = table_of(*replicas)
    placed: Counter[str] = Counter()
    for conversation in range(1, 401):
        turns: list[str] = []
        for length in (50, 60):
            picked = table.pick(prompt(conversation, length, shared=40), 1)
            assert picked is not None
            turns.append(picked[0].replica_id)
            table.sent(prompt(conversation, length, shared=40), picked[0])
        assert len(set(turns)) == 1, "the next turn of a conversation stays"
        placed[turns[0]] += 1
    assert max(placed.values()) < 0.4 * 400, placed


def test_evicted_blocks_end_a_prefix() -> None:
    a, b = replica("a"), replica("b")
    table = table_of(a, b)
    table.sent([1, 2, 3, 4], a)
    table.sent([1, 2], b)
    table.evicted([3], a)
    load(table, a, 1)
    assert named(table.pick([1, 2, 3, 4], 1)) == "b", "without the third block the fourth is of no use"
    table.evicted([2], b)
    assert named(table.pick([1, 2, 3, 4], 1)) == "a"
    table.evicted([9], replica("unknown"))


def test_a_replica_that_has_lost_all_begins_anew() -> None:
    a, b = replica("a"), replica("b")
    table = table_of(a, b)
    table.sent([1, 2], a)
    table.all_evicted(a)
    load(table, a, 1)
    assert table.pick([1, 2], 1, is_known_only=True) is None
    table.sent([1, 2], a)
    assert named(table.pick([1, 2], 1)) == "a"


def test_a_replica_that_returns_keeps_its_blocks_and_another_life_has_none() -> None:
    a, b = replica("a"), replica("b")
    table = table_of(a, b)
    table.sent([1, 2], a)
    a.linked = False
    a.refresh()
    table.changed(a)
    assert named(table.pick([1, 2], 1)) == "b"
    a.linked = True
    a.refresh()
    table.changed(a)
    load(table, b, 0)
    assert named(table.pick([1, 2], 1)) == "a"
    a.listed = False
    table.changed(a)
    table.changed(replica("a"))
    assert table.pick([1, 2], 1, is_known_only=True) is None
    table.sent([1], a)
    assert table.pick([1], 1, is_known_only=True) is None


def test_a_number_is_free_again_when_no_block_can_have_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_table, "MAX_GONE", 1)
    gone, joins = replica("gone"), replica("joins")
    table = table_of(gone)
    table.sent([1, 2], gone)
    gone.listed = False
    table.changed(gone)
    table.changed(joins)
    assert table.pick([1, 2], 1, is_known_only=True) is None


def test_memory_is_bounded_and_what_is_used_stays() -> None:
    a, b = replica("a"), replica("b")
    table = table_of(a, b, most=1_000)
    table.sent(prompt(1, 50), a)
    for conversation in range(2, 100):
        table.sent(prompt(conversation, 50), b)
        if conversation % 5 == 0:
            table.sent(prompt(1, 50), a)
        assert len(table) <= 1_000 + 50
    assert named(table.pick(prompt(1, 50), 1, is_known_only=True)) == "a"
    assert table.pick(prompt(2, 50), 1, is_known_only=True) is None


def test_a_caller_whose_prompts_have_nothing_in_common_empties_no_table() -> None:
    a, b = replica("a"), replica("b")
    table = table_of(a, b, most=1_000)
    for length in (30, 40):
        table.sent(prompt(1, length), a)
    for attack in range(2, 2_000):
        table.sent(prompt(attack, 50), b)
        assert len(table) <= 1_000 + 50
    assert named(table.pick(prompt(1, 30), 1, is_known_only=True)) == "a"
    assert table.pick(prompt(2, 50), 1, is_known_only=True) is None
    for attack in range(2_000, 2_100):
        for length in (30, 40):
            table.sent(prompt(attack, length), b)
        assert len(table) <= 1_000 + 50
    assert table.pick(prompt(1, 30), 1, is_known_only=True) is None, "what is used again and again replaces it"


def test_a_table_of_the_smallest_size_knows_the_newest_call() -> None:
    a = replica("a")
    table = table_of(a, most=1)
    for conversation in range(1, 50):
        table.sent(prompt(conversation, 5), a)
        table.sent(prompt(conversation, 5), a)
        assert len(table) <= 1 + 5


class KeptBlocks(RuleBasedStateMachine):
    """What is kept of a table that is full: of blocks that were used again, and of those that were used once."""

    MOST = 160
    LONGEST = 8

    def __init__(self) -> None:
        super().__init__()
        self.a = replica("a")
        self.table = table_of(self.a, most=self.MOST)
        self.again_at: dict[int, int] = {}
        self.once_at: dict[int, int] = {}
        """Blocks by kind, and how many of the kind were used when each was used last."""
        self.agains = self.onces = 0
        self.attacks = 0

    @rule(conversation=st.integers(1, 40), length=st.integers(1, LONGEST))
    def call(self, conversation: int, length: int) -> None:
        self.send(prompt(conversation, length))

    @rule(calls=st.integers(1, 60))
    def attack(self, calls: int) -> None:
        for _ in range(calls):
            self.attacks += 1
            self.send(prompt(1_000 + self.attacks, self.LONGEST))

    def send(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.table._holders_of(block):
                self.once_at.pop(block, None)
                self.agains += 1
                self.again_at[block] = self.agains
            else:
                self.again_at.pop(block, None)
                self.onces += 1
                self.once_at[block] = self.onces
        new = self.table.sent(blocks, self.a)
        assert new <= len(blocks)

    @invariant()
    def enough_is_kept(self) -> None:
        assert len(self.table) <= self.MOST + self.LONGEST
        for block, at in self.again_at.items():
            assert self.table._holders_of(block) or self.agains - at >= 3 * self.MOST // 8 - self.LONGEST
        for block, at in self.once_at.items():
            assert self.table._holders_of(block) or self.onces - at >= self.MOST // 8 - self.LONGEST

    @invariant()
    def no_block_is_kept_twice(self) -> None:
        assert len(set().union(*self.table._tables)) == len(self.table)


TestKeptBlocks = KeptBlocks.TestCase
TestKeptBlocks.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_look_at_hundreds_of_replicas_is_bounded_and_reaches_all_in_turn() -> None:
    replicas = [replica(f"r{number}") for number in range(200)]
    table = table_of(*replicas)
    placed: Counter[str] = Counter()
    for conversation in range(1, 401):
        picked = table.pick(prompt(conversation, 3), 1)
        assert picked is not None
        table.sent(prompt(conversation, 3), picked[0])
        load(table, picked[0], picked[0].own + 1)
        placed[picked[0].replica_id] += 1
    assert len(placed) == 200
    assert max(placed.values()) <= 4


def test_replicas_that_never_took_calls_make_no_set_of_holders_longer() -> None:
    others = [replica(f"r{number}") for number in range(100)]
    for each in others:
        each.linked = False
        each.refresh()
    table, one = table_of(*others), replica("one")
    table.sent(prompt(1, 3), others[0])
    table.changed(one)
    table.sent(prompt(1, 3), one)
    assert {*table._once.values()} == {1}
    others[0].linked = True
    others[0].refresh()
    table.changed(others[0])
    table.sent(prompt(1, 3), others[0])
    assert {*table._again.values()} == {3}


class HeldBlocks(RuleBasedStateMachine):
    """Against sets: a block of a replica is known until it is evicted, or the replica leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PrefixTable[RoutedReplica](1_000_000)
        self.held: dict[RoutedReplica, set[int]] = {}
        self.number = 0
        self.forgotten = self.table._gone_before

    @rule()
    @precondition(lambda self: len(self.held) < 6)
    def join(self) -> None:
        self.number += 1
        each = replica(f"r{self.number}")
        self.held[each] = set()
        self.table.changed(each)

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def leave(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(sorted(self.held, key=lambda it: it.replica_id)))
        del self.held[each]
        each.listed = False
        self.table.changed(each)

    @rule(times=st.integers(1, MAX_GONE))
    def churn(self, times: int) -> None:
        for _ in range(times):
            passing = replica("passing")
            self.table.changed(passing)
            self.table.sent(range(1, 7), passing)
            passing.listed = False
            self.table.changed(passing)

    def table_of(self, each: RoutedReplica) -> set[int]:
        bit = self.table._holders[each].bit
        return {block for block in range(1, 7) if any(table.get(block, 0) & bit for table in self.table._tables)}

    @rule(data=st.data(), length=st.integers(1, 6))
    @precondition(lambda self: self.held)
    def sent(self, data: st.DataObject, length: int) -> None:
        each = data.draw(st.sampled_from(sorted(self.held, key=lambda it: it.replica_id)))
        self.held[each] |= set(range(1, length + 1))
        self.table.sent(range(1, length + 1), each)

    @rule(data=st.data(), blocks=st.sets(st.integers(1, 6)))
    @precondition(lambda self: self.held)
    def evicted(self, data: st.DataObject, blocks: set[int]) -> None:
        each = data.draw(st.sampled_from(sorted(self.held, key=lambda it: it.replica_id)))
        self.held[each] -= blocks
        self.table.evicted(blocks, each)

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def lost_all(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(sorted(self.held, key=lambda it: it.replica_id)))
        self.held[each] = set()
        self.table.all_evicted(each)

    @invariant()
    def is_known(self) -> None:
        if self.table._gone_before is not self.forgotten:  # what was not used may have been forgotten
            self.forgotten = self.table._gone_before
            for each in self.held:
                self.held[each] &= self.table_of(each)
        for each, blocks in self.held.items():
            assert self.table_of(each) == blocks
        numbers = [holder.number for holder in self.table._holders.values()]
        assert len(set(numbers)) == len(numbers)
        longest = {each: next(length for length in range(7) if length + 1 not in self.held[each]) for each in self.held}
        picked = self.table.pick(range(1, 7), 1, is_known_only=True)
        if not any(longest.values()):
            assert picked is None
        elif picked is not None and longest[picked[0]] != max(longest.values()):
            chosen = self.table._holders[picked[0]]
            assert any(
                self.table._cost(chosen, 6) < self.table._cost(self.table._holders[each], 6 - longest[each])
                for each in self.held
            )
        placed = sum(holder.blocks for holder in self.table._holders.values())
        assert placed == self.table._placed


TestHeldBlocks = HeldBlocks.TestCase
TestHeldBlocks.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
