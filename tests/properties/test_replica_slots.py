"""The replica's scheduler with slots among its calls, under arbitrary interleavings.

On top of the histories of `test_replica_scheduler.py`: reservations, and what callers do with slots over any link, with
tokens that are good, late, used, or made up. The model of slots is naive: a list, looked through each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from replica_service.core.call_options import CallOptions
from replica_service.core.calls import Lane, Run
from replica_service.core.commands import Command, Grant, StartCalls
from replica_service.core.slots import Slot, SlotState
from slotmesh.errors import Failure, Reason
from slotmesh.slots.limits import MAX_LEASE_S
from tests.properties.test_replica_scheduler import Call, Router, SchedulerMachine

LEASES_S = (0.25, 1.0, 2.0, 10.0)
TIMES_LEFT_S = st.sampled_from((inf, inf, 0.0, 0.3))


@dataclass
class Token:
    """What the model knows of one slot."""

    slot: Slot
    expires_at: float
    call: Call | None = None
    """The one that was dispatched in it."""
    is_released: bool = False
    is_expired: bool = False

    @property
    def is_reserved(self) -> bool:
        return self.call is None and not self.is_released and not self.is_expired


class SlotsMachine(SchedulerMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[Token] = []

    # -- events ----------------------------------------------------------------------------------------------------

    @rule(router=st.integers(0, 1), lease_s=st.sampled_from(LEASES_S), time_left_s=TIMES_LEFT_S)
    def reserve(self, router: int, lease_s: float, time_left_s: float) -> None:
        run = self.single(self.routers[router], CallOptions(), "e", time_left_s)
        run.lease_s = lease_s
        before = self.core.in_use + self.core.waiting
        self.carry_out(self.core.submit([run], self.now))
        assert self.core.in_use + self.core.waiting <= max(before, self.max_ongoing + self.prefetch)

    @precondition(lambda self: self.tokens)
    @rule(
        router=st.integers(0, 1),
        data=st.data(),
        method=st.sampled_from(("plain", "plain", "batch", "none")),
        endpoint=st.sampled_from(("", "", "e", "other")),
        time_left_s=TIMES_LEFT_S,
    )
    def dispatch(self, router: int, data: st.DataObject, method: str, endpoint: str, time_left_s: float) -> None:
        self.send(self.draw(data), self.routers[router], method, endpoint, time_left_s)

    def send(self, token: Token, to: Router, method: str, endpoint: str, time_left_s: float) -> None:
        self.leases_end()
        verdict = self.verdict_on(token)
        if verdict is None and endpoint == "other":
            verdict = Reason.SLOT_UNKNOWN
        run = self.single(to, CallOptions(method=method), endpoint, time_left_s)
        call = to.calls[run.first]
        if verdict is None:
            token.call = call
        in_use = self.core.in_use
        self.carry_out(self.core.dispatch(run, token.slot.secret, self.now))
        if verdict is not None:
            assert (call.state, call.reason, run.slot) == ("failed", verdict, None)
            return
        assert run.slot is token.slot
        assert run.endpoint == "e"
        if method == "none":
            assert (call.state, call.reason) == ("failed", Reason.METHOD_NOT_FOUND)
        elif run.deadline <= self.now:
            assert (call.state, call.reason) == ("failed", Reason.DEADLINE_IN_QUEUE)
        elif method == "plain" and self.is_fresh(run):
            assert call.state == "running", "it has a permit, and was not started"
            assert self.core.in_use == in_use
        else:
            assert call.state in {"waiting", "running"}, "it was refused"

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), lease_s=st.sampled_from((*LEASES_S, 1e6)))
    def renew(self, data: st.DataObject, lease_s: float) -> None:
        token = self.draw(data)
        self.leases_end()
        verdict = self.verdict_on(token)
        renewed, commands = self.core.renew(token.slot.secret, lease_s, self.now)
        if verdict is None:
            assert renewed is token.slot
            token.expires_at = min(self.now + lease_s, token.slot.granted_at + MAX_LEASE_S)
        else:
            assert isinstance(renewed, Failure)
            assert renewed.reason is verdict
        self.carry_out(commands)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.give_back(self.draw(data))

    def give_back(self, token: Token) -> None:
        self.leases_end()
        is_released, commands = self.core.release(token.slot.secret, self.now)
        assert is_released == token.is_reserved
        token.is_released |= is_released
        self.carry_out(commands)

    # -- the model -------------------------------------------------------------------------------------------------

    def single(self, to: Router, options: CallOptions, endpoint: str, time_left_s: float) -> Run:
        """A run of one, which the model then knows."""
        run = Run(to.link, to.next_id, [b"x"], options, endpoint, self.now, self.now + time_left_s)
        self.order += 1
        to.calls[to.next_id] = Call(run, "", run.deadline, self.now, self.order)
        to.next_id += 1
        return run

    def draw(self, data: st.DataObject) -> Token:
        reserved = [token for token in self.tokens if token.is_reserved]
        return data.draw(st.sampled_from(reserved[-4:] + self.tokens[-4:]))

    def leases_end(self) -> None:
        for token in self.tokens:
            token.is_expired |= token.is_reserved and token.expires_at <= self.now

    def verdict_on(self, token: Token) -> Reason | None:
        if token.slot.forget_at <= self.now:
            return Reason.SLOT_UNKNOWN  # it ended too long ago
        if token.call is not None:
            return Reason.SLOT_USED
        if token.is_released:
            return Reason.SLOT_UNKNOWN
        return Reason.SLOT_EXPIRED if token.is_expired else None

    def carry_out(self, commands: list[Command]) -> None:
        self.leases_end()
        for command in commands:
            match command:
                case Grant(run=run, slot=slot):
                    call = self.call(run, 0)
                    assert call.state == "waiting"
                    assert self.is_fresh(run)
                    assert self.now < call.deadline
                    assert not self.core.draining
                    assert slot.endpoint == "e"
                    assert 0 < command.ongoing <= self.core.max_ongoing
                    call.state = "ended"
                    self.tokens.append(Token(slot, self.now + run.lease_s))
                case StartCalls(run=run):
                    assert not run.lease_s, "a reservation was executed"
                case _:
                    pass
        super().carry_out(commands)

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def every_permit_is_somebodys(self) -> None:
        reserved = sum(token.is_reserved for token in self.tokens)
        assert self.core.slots.reserved == reserved
        in_slots = len(self.calls_in_slots())
        running = sum(run.slot is None for run in self.running_calls) + len(self.turns)
        for batch in self.batches:
            running += len(batch.lanes)
            running += sum(hi - lo for run, lo, hi in batch.parts if run.lane is None and run.slot is None)
        for entry in (each for batcher in self.core.batchers.values() for each in batcher.gathered.queue):
            if isinstance(entry, Lane):
                running += 1
            elif entry.run.slot is None:
                running += entry.hi - entry.lo
        assert self.core.in_use == reserved + in_slots + running

    def calls_in_slots(self) -> list[Call]:
        calls = [token.call for token in self.tokens if token.call is not None]
        return [call for call in calls if call.state in {"waiting", "running"}]

    @invariant()
    def slots_end_with_their_calls(self) -> None:
        for token in self.tokens:
            if token.call is not None:
                is_here = token.call.state in {"waiting", "running"}
                assert token.slot.state is (SlotState.DISPATCHED if is_here else SlotState.DONE)

    @invariant()
    def links_know_which_calls_are_in_slots(self) -> None:
        calls = self.calls_in_slots()
        for router in self.router_of.values():
            assert router.link.in_slots == sum(call.run.link is router.link for call in calls)

    @invariant()
    def counts_add_up(self) -> None:
        slots = self.core.slots
        assert slots.granted == len(self.tokens)
        assert slots.dispatched == sum(token.call is not None for token in self.tokens)
        assert slots.released == sum(token.is_released for token in self.tokens)
        assert slots.expired == sum(token.is_expired for token in self.tokens)

    @invariant()
    def leases_end_in_time(self) -> None:
        ends = [token.expires_at for token in self.tokens if token.is_reserved]
        deadline = self.core.next_deadline()
        assert not ends or (deadline is not None and self.now < deadline <= min(ends))

    # -- the end ---------------------------------------------------------------------------------------------------

    def core_drains(self) -> None:
        """Slots are honoured while the replica drains. Each ends in another way, and all permits are free."""
        super().core_drains()
        for number, token in enumerate(self.tokens):
            if number % 3 == 0:
                is_good = token.is_reserved and self.now < token.expires_at
                self.send(token, self.routers[0], ("plain", "batch")[number % 2], "", inf)
                assert (token.call is not None and token.call.reason is None) or not is_good
            elif number % 3 == 1:
                self.give_back(token)
        if any(token.is_reserved for token in self.tokens):
            assert not self.core.is_idle
        self.now += 1.0
        for router in self.routers:
            self.carry_out(self.core.echoed(router.link, self.now, self.now))
        while (deadline := self.core.next_deadline()) is not None or self.calls_in_slots():
            self.now = max(self.now, deadline or self.now)
            self.carry_out(self.core.passed(self.now))
            for router in self.routers:
                self.carry_out(self.core.echoed(router.link, self.now, self.now))
            super().core_drains()
        self.every_permit_is_somebodys()
        self.counts_add_up()
        for token in self.tokens:
            assert not token.is_reserved
            self.send(token, self.routers[1], "plain", "", inf)


TestSlots = pytest.mark.timeout(120)(SlotsMachine.TestCase)
TestSlots.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
