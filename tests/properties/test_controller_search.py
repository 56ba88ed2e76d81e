"""How members find the controller that leads, and whose announcements count: against naive models."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slotmesh.streams.leadership import MOST_ANNOUNCED, ControllerSearch, TermFence
from tests.support.examples import examples

NAMES = "abcdef"
ADDRESSES = st.sampled_from(NAMES)
SEVERAL = st.lists(ADDRESSES, max_size=4)


class SearchMachine(RuleBasedStateMachine):
    """Controllers die, come back, refer to whomever they believe to lead, and say where others are."""

    @initialize(given=st.lists(ADDRESSES, min_size=1, max_size=3))
    def start(self, given: list[str]) -> None:
        self.given, self.told_of = given, list[str]()
        self.search = ControllerSearch(given)
        self.refers_to: dict[str, str] = {}
        """Address -> whom the standby there takes for the leader, or nobody. Elsewhere nothing answers."""

    @rule(address=ADDRESSES, leader=st.one_of(st.just(""), ADDRESSES))
    def stands_by(self, address: str, leader: str) -> None:
        self.refers_to[address] = leader

    @rule(address=ADDRESSES)
    def dies(self, address: str) -> None:
        self.refers_to.pop(address, None)

    @rule(addresses=SEVERAL)
    def is_told(self, addresses: list[str]) -> None:
        self.search.announced(addresses)
        self.told_of = addresses or self.told_of

    @rule()
    def attempts(self) -> None:
        self.attempt(self.search)

    def attempt(self, search: ControllerSearch) -> None:
        """One that does not find a leader."""
        where = search.current
        if where not in self.refers_to:
            search.failed()
            return
        leader = self.refers_to[where]
        if search.referred(leader):
            assert search.current == leader != where

    @invariant()
    def knows_all_that_it_was_told(self) -> None:
        assert set(self.search.known) == {*self.given, *self.told_of}

    @invariant()
    def finds_whoever_leads_among_those_it_knows(self) -> None:
        for leader in self.search.known:
            search, tried = deepcopy(self.search), 0
            while search.current != leader:
                self.attempt(search)
                tried += 1
                assert tried <= 2 * len(search.known) + 1, f"{leader} was not tried"

    @invariant()
    def finds_a_leader_that_it_does_not_know_by_whoever_refers_to_it(self) -> None:
        guides = [it for it in self.search.known if it in self.refers_to]
        if not guides:
            return
        search, tried = deepcopy(self.search), 0
        before = dict(self.refers_to)
        self.refers_to = {it: "z" if it in guides else leader for it, leader in before.items()}
        try:
            while search.current != "z":
                self.attempt(search)
                tried += 1
                assert tried <= 2 * len(search.known) + 2
        finally:
            self.refers_to = before


SearchMachine.TestCase.settings = settings(max_examples=examples(200), deadline=None)
TestSearch = SearchMachine.TestCase


@given(st.lists(st.tuples(st.sampled_from(["g", "h", ""]), st.integers(0, 4)), max_size=40))
@settings(max_examples=examples(300), deadline=None)
def test_no_older_term_is_obeyed_after_a_newer_one(announcements: list[tuple[str, int]]) -> None:
    fence, obeyed = TermFence(), dict[str, int]()
    for generation, term in announcements:
        expected = term == 0 or term >= obeyed.get(generation, 0)
        assert fence.obeys(generation, term) is expected
        if expected:
            obeyed[generation] = max(obeyed.get(generation, 0), term)


def test_what_is_remembered_is_bounded() -> None:
    fence, search = TermFence(), ControllerSearch(["a"])
    for number in range(1_000):
        assert fence.obeys(str(number), number)
    assert not fence.obeys("999", 998), "the newest ones are kept"
    assert len(fence._newest) <= MOST_ANNOUNCED
    search.announced(str(number) for number in range(1_000))
    assert len(search.known) == 1 + MOST_ANNOUNCED
