"""The client's buffer against plain counts, under arbitrary calls, endings and waits."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slotmesh.client.calls.buffer import THRESHOLD, BufferShare, ClientBuffer
from tests.support.examples import examples

SHARES = 4
shares = st.integers(0, SHARES - 1)
sizes = st.integers(0, 30)


class BufferMachine(RuleBasedStateMachine):
    @initialize(calls=st.integers(1, 200), nbytes=st.integers(1, 400))
    def begin(self, calls: int, nbytes: int) -> None:
        self.buffer = ClientBuffer(calls, nbytes)
        self.shares = [BufferShare(self.buffer) for _ in range(SHARES)]
        self.held: list[list[int]] = [[] for _ in range(SHARES)]
        """Bytes of the calls of each share."""
        self.waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(SHARES)]
        """Number and bytes of calls that wait."""
        self.gave_up: set[int] = set()
        self.numbers = 0

    @rule(at=shares, calls=st.integers(1, 20), size=sizes)
    def take(self, at: int, calls: int, size: int) -> None:
        share = self.shares[at]
        others_wait = bool(share.waiters)
        if share.take(calls, calls * size):
            assert not others_wait, "a call overtook those that wait"
            self.held[at] += [size] * calls

    @rule(at=shares, size=sizes)
    def wait(self, at: int, size: int) -> None:
        share, self.numbers = self.shares[at], self.numbers + 1
        if share.take(1, size):
            self.held[at].append(size)
            return
        number = self.numbers

        def wake() -> bool:
            first, nbytes = self.waiting[at].popleft()
            assert first == number, "in the order in which they came"
            if number in self.gave_up:
                return False
            self.held[at].append(nbytes)
            return True

        self.waiting[at].append((number, size))
        self.buffer.wait(share, size, wake)

    @rule(at=shares, data=st.data())
    def give_up(self, at: int, data: st.DataObject) -> None:
        if self.waiting[at]:
            self.gave_up.add(data.draw(st.sampled_from(sorted(number for number, _ in self.waiting[at]))))

    @rule(at=shares, count=st.integers(1, 50))
    def give(self, at: int, count: int) -> None:
        gone, self.held[at] = self.held[at][:count], self.held[at][count:]
        if gone:
            self.shares[at].give(len(gone), sum(gone))

    @rule(at=shares, size=sizes)
    def put(self, at: int, size: int) -> None:
        """A call that was sent comes back, whatever is free."""
        if self.buffer.free_calls > 1 and self.buffer.free_bytes > size:
            self.shares[at].put(1, size)
            self.held[at].append(size)

    @rule()
    def everybody_gets_in_in_the_end(self) -> None:
        for _ in range(1_000):
            if not any(self.waiting):
                break
            for at, held in enumerate(self.held):
                gone, self.held[at] = list(held), []
                if gone:
                    self.shares[at].give(len(gone), sum(gone))
        assert not any(self.waiting), "no call waits for ever"

    @invariant()
    def counts_are_right(self) -> None:
        for share, held in zip(self.shares, self.held, strict=True):
            assert (share.calls, share.nbytes) == (len(held), sum(held))
            assert share.calls <= share.granted_calls
            assert share.nbytes <= share.granted_bytes

    @invariant()
    def the_bound_holds(self) -> None:
        buffer = self.buffer
        granted_calls = sum(share.granted_calls for share in self.shares)
        granted_bytes = sum(share.granted_bytes for share in self.shares)
        assert granted_calls + buffer.free_calls == buffer.max_calls + -(-buffer.max_calls // THRESHOLD.times)
        assert granted_bytes + buffer.free_bytes == buffer.max_bytes + -(-buffer.max_bytes // THRESHOLD.times)
        assert buffer.free_calls >= 0
        largest = max((size for held in self.held for size in held), default=0)
        assert buffer.free_bytes >= -largest, "one call may pass what is free"


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)


def test_a_share_alone_has_the_bound() -> None:
    for bound in (*range(1, 200), 1_000, 65_536):
        share = BufferShare(ClientBuffer(bound, 10**9))
        taken = 0
        while share.take(1, 1):
            taken += 1
        assert taken == bound


def test_full_shares_are_equal() -> None:
    buffer = ClientBuffer(9_000, 10**9)
    flooding = [BufferShare(buffer) for _ in range(3)]
    while flooding[0].take(1, 1):
        pass
    for _ in range(20_000):  # each turn a call leaves, and all make as many as they may
        largest = max(flooding, key=lambda each: each.calls)
        largest.give(1, 1)
        for share in flooding:
            share.take(1, 1)
    held = [share.calls for share in flooding]
    assert max(held) - min(held) < 9_000 // 32, held
    assert sum(held) <= 9_000 * 9 // 8
    newcomer = BufferShare(buffer)
    assert newcomer.take(200, 200), "there is room for one more"
