"""The table of slots against a naive model, with time: which calls may run, until when, and how late ones fail.

The model remembers every slot that there ever was and looks at all of them each time; it knows nothing of heaps or of
forgetting but when that is due. It keeps permits as the scheduler does: from what the table says alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.call_metadata import ReservedSlot, SlotState
from replica_service.core.slot_table import REMEMBERED_S, SlotTable
from slotmesh.calls.slot_tokens import MAX_LEASE_S
from slotmesh.errors import Executed, Failure, Reason
from tests.support.examples import examples

ENDPOINTS = ("red", "blue")
LEASES_S = st.sampled_from((0.001, 0.5, 2.0, 10.0, 299.0, 300.0, 1e6))


@dataclass
class Known:
    """What the model knows of one slot."""

    slot: ReservedSlot
    endpoint: str
    granted_at: float
    expires_at: float
    state: str = "reserved"
    ended_at: float | None = None
    times_honoured: int = 0


class SlotTableMachine(RuleBasedStateMachine):
    @initialize(max_ongoing=st.integers(1, 5))
    def start(self, max_ongoing: int) -> None:
        self.now = 1000.0
        self.max_ongoing = max_ongoing
        self.table = SlotTable()
        self.in_use = 0
        self.held_s = 0.0
        self.known: dict[bytes, Known] = {}
        self.secrets = map(str.encode, map(str, count()))

    # -- events ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.in_use < self.max_ongoing)
    @rule(endpoint=st.sampled_from(ENDPOINTS), lease_s=LEASES_S)
    def grant(self, endpoint: str, lease_s: float) -> None:
        secret = next(self.secrets)
        slot = self.table.grant(secret, endpoint, lease_s, self.now)
        self.in_use += 1
        self.known[secret] = Known(slot, endpoint, self.now, self.now + min(lease_s, MAX_LEASE_S))

    @rule(data=st.data(), lease_s=LEASES_S)
    def renew(self, data: st.DataObject, lease_s: float) -> None:
        secret = self.draw(data)
        expected = self.verdict_on(secret)
        self.check(self.table.renew(secret, lease_s, self.now), secret, expected)
        if expected is None:
            known = self.known[secret]
            known.expires_at = min(self.now + lease_s, known.granted_at + MAX_LEASE_S)

    @rule(data=st.data(), endpoint=st.sampled_from(("", *ENDPOINTS)))
    def dispatch(self, data: st.DataObject, endpoint: str) -> None:
        secret = self.draw(data)
        expected = self.verdict_on(secret)
        if expected is None and endpoint not in {"", self.known[secret].endpoint}:
            expected = Reason.SLOT_UNKNOWN
        self.check(self.table.dispatch(secret, endpoint, self.now), secret, expected)
        if expected is None:
            known = self.known[secret]
            known.state = "dispatched"
            known.times_honoured += 1
            self.held_s += self.now - known.granted_at

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        secret = self.draw(data)
        is_reserved = self.verdict_on(secret) is None
        assert self.table.release(secret, self.now) == is_reserved
        if is_reserved:
            self.ends(self.known[secret], "released")

    @precondition(lambda self: self.those("dispatched"))
    @rule(data=st.data())
    def the_call_ends(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.those("dispatched")))
        self.table.done(known.slot, self.now)
        self.ends(known, "done")

    @rule(seconds=st.sampled_from((0.001, 0.5, 1.0, 5.0, 100.0, 300.0)))
    def time_passes(self, seconds: float) -> None:
        """Nobody tells the table: what comes next may be late."""
        self.now += seconds

    @rule(is_exact=st.booleans())
    def leases_end(self, is_exact: bool) -> None:
        deadline = self.table.next_deadline()
        if is_exact and deadline is not None:
            self.now = max(self.now, deadline)
        late = [known for known in self.those("reserved") if known.expires_at <= self.now]
        assert bool(late) or not (is_exact and deadline is not None), "it was woken for nothing"
        assert self.table.expire(self.now) == len(late)
        for known in late:
            self.ends(known, "expired")

    # -- the model -------------------------------------------------------------------------------------------------

    def draw(self, data: st.DataObject) -> bytes:
        return data.draw(st.sampled_from([*list(self.known)[-8:], b"forged"]))

    def those(self, state: str) -> list[Known]:
        return [known for known in self.known.values() if known.state == state]

    def ends(self, known: Known, state: str) -> None:
        known.state, known.ended_at = state, self.now
        self.in_use -= 1

    def verdict_on(self, secret: bytes) -> Reason | None:
        """What whoever comes with this secret now has to hear; None where the slot is his."""
        known = self.known.get(secret)
        if known is None or (known.ended_at is not None and self.now >= known.ended_at + REMEMBERED_S):
            return Reason.SLOT_UNKNOWN
        if known.state == "reserved":
            return None if self.now < known.expires_at else Reason.SLOT_EXPIRED
        return {
            "dispatched": Reason.SLOT_USED,
            "done": Reason.SLOT_USED,
            "released": Reason.SLOT_UNKNOWN,
            "expired": Reason.SLOT_EXPIRED,
        }[known.state]

    def check(self, answer: ReservedSlot | Failure, secret: bytes, expected: Reason | None) -> None:
        if expected is None:
            assert answer is self.known[secret].slot
        else:
            assert isinstance(answer, Failure)
            assert (answer.reason, answer.executed) == (expected, Executed.NO)

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def permits_are_kept_to(self) -> None:
        here = len(self.those("reserved")) + len(self.those("dispatched"))
        assert here == self.in_use <= self.max_ongoing

    @invariant()
    def no_secret_is_honoured_twice(self) -> None:
        assert all(known.times_honoured <= 1 for known in self.known.values())

    @invariant()
    def slots_are_what_the_model_says(self) -> None:
        for known in self.known.values():
            assert known.slot.state is SlotState(known.state)
            assert known.slot.expires_at == known.expires_at <= known.granted_at + MAX_LEASE_S

    @invariant()
    def counts_are_exact(self) -> None:
        table = self.table
        used = len(self.those("dispatched")) + len(self.those("done"))
        assert table.reserved == len(self.those("reserved"))
        assert (table.granted, table.dispatched) == (len(self.known), used)
        assert sum(table.held_times.counts) == used
        assert table.held_times.total == pytest.approx(self.held_s)
        assert (table.released, table.expired) == (len(self.those("released")), len(self.those("expired")))

    @invariant()
    def the_next_end_is_known(self) -> None:
        deadline = self.table.next_deadline()
        assert deadline == min((known.expires_at for known in self.those("reserved")), default=None)

    def teardown(self) -> None:
        """Every path ends with all permits free: of what is left, calls end and leases run out."""
        if not hasattr(self, "table"):
            return
        for known in self.those("dispatched"):
            self.table.done(known.slot, self.now)
            self.ends(known, "done")
        self.in_use -= self.table.expire(self.now + MAX_LEASE_S)
        assert self.in_use == self.table.reserved == 0
        assert self.table.next_deadline() is None


TestSlotTable = pytest.mark.timeout(120)(SlotTableMachine.TestCase)
TestSlotTable.settings = settings(
    max_examples=examples(200),
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
