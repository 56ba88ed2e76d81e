"""When names are resolved again, and which addresses count, against a naive model."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slotmesh.discovery.resolved_names import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    MAX_ADDRESSES,
    REFRESH_S,
    ResolvedNames,
)
from slotmesh.discovery.targets import DnsName, Target
from tests.support.examples import examples

NAMES = (DnsName("a", 70), DnsName("b", 71))
HOSTS = st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"]), max_size=5)
FIXED = "fixed:1"


class ResolutionMachine(RuleBasedStateMachine):
    """A name server that answers, fails and returns nothing, and callers that ask for news."""

    @initialize(draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=7))
    def start(self, draws: list[float]) -> None:
        self.draws, self.drawn = draws, 0
        targets: list[Target] = [NAMES[0], FIXED, NAMES[1]]
        self.names = ResolvedNames(targets, self.draw)
        self.now = 100.0
        self.under_way: set[DnsName] = set()
        self.good: dict[DnsName, set[str]] = {}
        self.began: dict[DnsName, float] = {}
        self.ended: dict[DnsName, float] = {}
        self.failed: set[DnsName] = set()
        self.requested: dict[DnsName, float] = {}

    def draw(self) -> float:
        self.drawn += 1
        return self.draws[self.drawn % len(self.draws)]

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        """The shell begins lookups exactly when they are due."""
        end = self.now + seconds
        while (due := self.names.next_due) <= end:
            self.now = max(self.now, due)
            self.begin()
        self.now = end

    def begin(self) -> None:
        begun = self.names.begin(self.now)
        assert len(set(begun)) == len(begun)
        for name in begun:
            assert name not in self.under_way, "one lookup at a time"
            if name in self.ended:
                rest_s = self.now - self.ended[name]
                is_soon = name in self.failed or name in self.requested
                assert rest_s >= (FIRST_PAUSE_S / 2 if is_soon else REFRESH_S / 2) - 1e-6
                assert rest_s <= (LAST_PAUSE_S if name in self.failed else REFRESH_S) + 1e-6
                asked = self.requested.get(name)
                assert asked is None or self.now <= max(asked, self.ended[name] + LAST_PAUSE_S) + 1e-6
            self.requested.pop(name, None)
            self.under_way.add(name)
            self.began[name] = self.now

    @rule()
    def is_requested(self) -> None:
        self.names.request(self.now)
        for name in set(NAMES) - self.under_way:
            self.requested.setdefault(name, self.now)

    @rule(which=st.integers(0, 1), hosts=HOSTS)
    def answers(self, which: int, hosts: list[str]) -> None:
        if (name := NAMES[which]) not in self.under_way:
            return
        before = set(self.names.addresses)
        is_news = self.names.resolved(name, hosts, self.now)
        self.over(name, is_failure=not hosts)
        if hosts:
            self.good[name] = {f"[{it}]:{name.port}" if ":" in it else f"{it}:{name.port}" for it in hosts}
        assert is_news is (set(self.names.addresses) != before)

    @rule(which=st.integers(0, 1))
    def fails(self, which: int) -> None:
        if (name := NAMES[which]) in self.under_way:
            self.names.failed(name, "away", self.now)
            self.over(name, is_failure=True)
            assert str(name) in self.names.problem

    def over(self, name: DnsName, *, is_failure: bool) -> None:
        self.under_way.discard(name)
        self.ended[name] = self.now
        (self.failed.add if is_failure else self.failed.discard)(name)

    @invariant()
    def the_last_known_good_addresses_count(self) -> None:
        assert set(self.names.addresses) == {FIXED}.union(*self.good.values())
        assert len(set(self.names.addresses)) == len(self.names.addresses)

    @invariant()
    def each_name_is_resolved_again(self) -> None:
        assert self.names.next_due < inf or self.under_way == set(NAMES)
        assert self.names.next_due <= self.now + REFRESH_S or self.under_way == set(NAMES)


ResolutionMachine.TestCase.settings = settings(max_examples=examples(200), deadline=None)
TestResolution = ResolutionMachine.TestCase


def test_requests_that_bring_nothing_new_are_less_and_less_frequent() -> None:
    names = ResolvedNames([NAMES[0]], lambda: 0.999)
    now, pauses = 0.0, []
    for _ in range(8):
        names.begin(now)
        names.resolved(NAMES[0], ["10.0.0.1"], now)
        names.request(now)
        pauses.append(round(names.next_due - now, 1))
        now = names.next_due
    assert pauses == [1, 2, 4, 8, 10, 10, 10, 10]
    names.begin(now)
    names.resolved(NAMES[0], ["10.0.0.2"], now)
    names.request(now)
    assert names.next_due - now < 1.01, "news begin anew"


def test_of_too_many_addresses_the_same_ones_are_used_each_time_and_others_elsewhere() -> None:
    found = [f"10.0.{number // 256}.{number % 256}" for number in range(1_000)]
    used = []
    for share in (0.0, 0.5, 0.999):
        names = ResolvedNames([NAMES[0]], lambda share=share: share)  # type: ignore[misc]
        names.begin(0)
        assert names.resolved(NAMES[0], found, 0)
        names.begin(names.next_due)
        assert not names.resolved(NAMES[0], reversed(found), 100)
        used.append(names.addresses)
    assert all(len(it) == MAX_ADDRESSES for it in used)
    assert len(set().union(*used)) > 2 * MAX_ADDRESSES


def test_addresses_know_the_name_that_they_are_of() -> None:
    names = ResolvedNames([FIXED, NAMES[0]], lambda: 0.0)
    names.begin(0)
    names.resolved(NAMES[0], ["10.0.0.1"], 0)
    assert (names.host_of("10.0.0.1:70"), names.host_of(FIXED), names.host_of("10.0.0.1:71")) == ("a", "", "")
