"""Leases against a naive model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller_service.core.observed.leases import Leases
from tests.support.examples import examples

MEMBERS = st.sampled_from(["a", "b", "c", "d"])
LEASE_S = 3.0


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.leases = Leases(lease_s=LEASE_S)
        self.heard: dict[str, float] = {}

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.9, 3.0, 10.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds

    @rule(member=MEMBERS)
    def renew(self, member: str) -> None:
        self.leases.renew(member, self.now)
        self.heard[member] = self.now

    @rule(member=MEMBERS)
    def end(self, member: str) -> None:
        self.leases.end(member)
        self.heard.pop(member, None)

    @rule()
    def renew_all(self) -> None:
        self.leases.renew_all(self.now)
        self.heard = dict.fromkeys(self.heard, self.now)

    @rule()
    def expire(self) -> None:
        silent = self.leases.expire(self.now)
        expected = {member for member, heard in self.heard.items() if heard + LEASE_S <= self.now}
        assert sorted(silent) == sorted(expected)
        for member in expected:
            del self.heard[member]

    @invariant()
    def wakes_in_time(self) -> None:
        deadline = self.leases.next_deadline()
        assert (deadline is not None) == bool(self.heard)
        if deadline is not None:
            assert deadline <= min(self.heard.values()) + LEASE_S

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.leases._checks) <= 4


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
