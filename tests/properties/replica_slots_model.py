"""A naive model of a replica that leases slots, and what always holds of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from random import Random

from hypothesis import strategies as st

from replica_service.core.call_metadata import ReplicaCallOptions, ReservedSlot, SlotState
from replica_service.core.events import (
    DispatchReceived,
    Grant,
    ReleaseReceived,
    ReplicaCommand,
    ReplicaTimePassed,
    StampEchoed,
)
from replica_service.core.runs import ReplicaLane, ReplicaRun
from replica_service.core.work import StartCalls
from slotmesh.errors import Reason
from tests.properties.replica_model import Call, ReplicaModel, Router


@dataclass
class Token:
    """What the model knows of one slot."""

    slot: ReservedSlot
    expires_at: float
    call: Call | None = None
    """The one that was dispatched in it."""
    is_released: bool = False
    is_expired: bool = False

    @property
    def is_reserved(self) -> bool:
        return self.call is None and not self.is_released and not self.is_expired


class ReplicaSlotsModel(ReplicaModel):
    """A list of slots, looked through each time."""

    def __init__(self, max_ongoing: int, prefetch: int, troubles: set[str], chances: Random) -> None:
        super().__init__(max_ongoing, prefetch, troubles, chances)
        self.tokens: list[Token] = []

    def send(self, token: Token, to: Router, method: str, endpoint: str, time_left_s: float) -> None:
        self.leases_end()
        verdict = self.verdict_on(token)
        if verdict is None and endpoint == "other":
            verdict = Reason.SLOT_UNKNOWN
        run = self.single(to, ReplicaCallOptions(method=method), endpoint, time_left_s)
        call = to.calls[run.first]
        if verdict is None:
            token.call = call
        in_use = self.core.in_use
        self.carry_out(self.core.step(DispatchReceived(run, token.slot.secret), self.now))
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

    def give_back(self, token: Token) -> None:
        self.leases_end()
        token.is_released |= token.is_reserved
        commands = self.core.step(ReleaseReceived(token.slot.secret), self.now)
        assert (token.slot.state is SlotState.RELEASED) == token.is_released
        self.carry_out(commands)

    def single(self, to: Router, options: ReplicaCallOptions, endpoint: str, time_left_s: float) -> ReplicaRun:
        """A run of one, which the model then knows."""
        run = ReplicaRun(to.link, to.next_id, [b"x"], options, endpoint, self.now, self.now + time_left_s)
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

    def carry_out(self, commands: list[ReplicaCommand]) -> None:
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

    def calls_in_slots(self) -> list[Call]:
        calls = [token.call for token in self.tokens if token.call is not None]
        return [call for call in calls if call.state in {"waiting", "running"}]

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
            self.carry_out(self.core.step(StampEchoed(router.link, self.now), self.now))
        while (deadline := self.core.next_deadline()) is not None or self.calls_in_slots():
            self.now = max(self.now, deadline or self.now)
            self.carry_out(self.core.step(ReplicaTimePassed(), self.now))
            for router in self.routers:
                self.carry_out(self.core.step(StampEchoed(router.link, self.now), self.now))
            super().core_drains()
        every_permit_is_somebodys(self)
        counts_add_up(self)
        for token in self.tokens:
            assert not token.is_reserved
            self.send(token, self.routers[1], "plain", "", inf)


def every_permit_is_somebodys(model: ReplicaSlotsModel) -> None:
    reserved = sum(token.is_reserved for token in model.tokens)
    assert model.core.slots.reserved == reserved
    in_slots = len(model.calls_in_slots())
    running = sum(run.slot is None for run in model.running_calls) + len(model.turns)
    for batch in model.batches:
        running += len(batch.lanes)
        running += sum(hi - lo for run, lo, hi in batch.parts if run.lane is None and run.slot is None)
    for entry in (each for batcher in model.core.batchers.values() for each in batcher.gathered.queue):
        if isinstance(entry, ReplicaLane):
            running += 1
        elif entry.run.slot is None:
            running += entry.hi - entry.lo
    assert model.core.in_use == reserved + in_slots + running


def slots_end_with_their_calls(model: ReplicaSlotsModel) -> None:
    for token in model.tokens:
        if token.call is not None:
            is_here = token.call.state in {"waiting", "running"}
            assert token.slot.state is (SlotState.DISPATCHED if is_here else SlotState.DONE)


def links_know_which_calls_are_in_slots(model: ReplicaSlotsModel) -> None:
    calls = model.calls_in_slots()
    for router in model.router_of.values():
        assert router.link.in_slots == sum(call.run.link is router.link for call in calls)


def counts_add_up(model: ReplicaSlotsModel) -> None:
    slots = model.core.slots
    assert slots.granted == len(model.tokens)
    assert slots.dispatched == sum(token.call is not None for token in model.tokens)
    assert slots.released == sum(token.is_released for token in model.tokens)
    assert slots.expired == sum(token.is_expired for token in model.tokens)


def leases_end_in_time(model: ReplicaSlotsModel) -> None:
    ends = [token.expires_at for token in model.tokens if token.is_reserved]
    deadline = model.core.next_deadline()
    assert not ends or (deadline is not None and model.now < deadline <= min(ends))


ALWAYS = (
    every_permit_is_somebodys,
    slots_end_with_their_calls,
    links_know_which_calls_are_in_slots,
    counts_add_up,
    leases_end_in_time,
)
