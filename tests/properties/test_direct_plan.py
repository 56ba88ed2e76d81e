"""The plan of direct lanes under arbitrary histories, with time: what replicas, reservations and callers may do.

The model is naive: lists of calls and places, looked through each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from slotmesh.client.slots.direct_plan import (
    LONGEST_PAUSE_S,
    MAX_ATTEMPTS,
    DirectCommand,
    DirectPlace,
    DirectPlan,
    Finish,
    GiveBack,
    PlacedCall,
    PlaceState,
    SendCall,
    TakeCallBack,
    Want,
)
from slotmesh.errors import Executed, Failure, Reason
from tests.support.examples import examples

LOST = Failure(reason=Reason.REPLICA_LOST, message="lost", executed=Executed.UNKNOWN)
LAPSED = Failure(reason=Reason.SLOT_EXPIRED, message="lapsed")
DRAINING = Failure(reason=Reason.DRAINING, message="drains")
FAILED = Failure(reason=Reason.HANDLER_ERROR, message="raised", executed=Executed.YES)
NO_SLOT = Failure(reason=Reason.NO_SLOT, message="none")
IDLE_S = 5.0


@dataclass
class Made:
    """What the model knows of a call."""

    number: int
    call: PlacedCall
    outcome: bytes | Failure | None = None
    is_cancelled: bool = False
    may_have_run: bool = False
    """It is at a replica, or was lost there."""
    was_lost: bool = False
    sent: int = 0

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.is_cancelled


@dataclass
class Held:
    """What the model knows of a place."""

    place: DirectPlace
    is_attached: bool = False
    is_gone: bool = False
    """Given back, lost, or never had."""
    at: Made | None = None
    """The call that was sent to it, and has no answer."""
    taken_back: int = field(default=0)


class DirectPlanMachine(RuleBasedStateMachine):
    @initialize(slots=st.integers(1, 3))
    def begin(self, slots: int) -> None:
        self.plan = DirectPlan(slots, IDLE_S)
        self.slots = slots
        self.now = 100.0
        self.calls: list[Made] = []
        self.places: list[Held] = []
        self.is_closed = False

    # -- what is told ----------------------------------------------------------------------------------------------

    def made(self, call: PlacedCall) -> Made:
        (found,) = [each for each in self.calls if each.call is call]
        return found

    def held(self, place: DirectPlace) -> Held:
        (found,) = [each for each in self.places if each.place is place]
        return found

    def carry_out(self, commands: list[DirectCommand]) -> None:
        for command in commands:
            match command:
                case Want(place=place):
                    assert not self.is_closed
                    self.places.append(Held(place))
                case SendCall(call=call, place=place):
                    made, held = self.made(call), self.held(place)
                    assert not made.is_over
                    assert not made.may_have_run or call.is_idempotent, "it was sent twice"
                    assert held.is_attached
                    assert not held.is_gone
                    assert held.at is None, "two calls in one slot"
                    if self.slots == 1:
                        assert made.number == min(each.number for each in self.calls if not each.is_over)
                    made.sent += 1
                    made.may_have_run = True
                    held.at = made
                case TakeCallBack(place=place):
                    held = self.held(place)
                    assert held.at is not None
                    held.taken_back += 1
                case GiveBack(place=place):
                    held = self.held(place)
                    assert not held.is_gone, "it is given back once"
                    assert held.at is None or self.is_closed
                    held.is_gone = True
                    held.at = None
                case Finish(call=call, outcome=outcome):
                    made = self.made(call)
                    assert not made.is_over, "it has one outcome"
                    made.outcome = outcome
                    if isinstance(outcome, Failure) and outcome.executed is Executed.NO:
                        assert not made.may_have_run, "executed=no is true"

    # -- callers ---------------------------------------------------------------------------------------------------

    @rule(timeout_s=st.sampled_from((inf, inf, 0.5, 3.0)), is_idempotent=st.booleans())
    def call(self, timeout_s: float, is_idempotent: bool) -> None:
        call = PlacedCall(len(self.calls), self.now + timeout_s, is_idempotent=is_idempotent)
        self.calls.append(Made(len(self.calls), call))
        self.carry_out(self.plan.call_made(call, self.now))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        made = data.draw(st.sampled_from(self.calls[-6:]))
        was_over, made.is_cancelled = made.is_over, made.is_cancelled or made.outcome is None
        commands = self.plan.call_cancelled(made.call)
        assert not (was_over and commands)
        self.carry_out(commands)

    # -- replicas --------------------------------------------------------------------------------------------------

    def pick(self, data: st.DataObject, *, attached: bool) -> Held | None:
        found = [each for each in self.places if not each.is_gone and each.is_attached is attached]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data())
    def attached(self, data: st.DataObject) -> None:
        if (held := self.pick(data, attached=False)) is not None:
            held.is_attached = True
            self.carry_out(self.plan.place_ready(held.place, self.now))

    @rule(data=st.data(), is_final=st.booleans())
    def refused(self, data: st.DataObject, is_final: bool) -> None:
        if (held := self.pick(data, attached=False)) is not None:
            held.is_gone = True
            self.carry_out(self.plan.place_refused(held.place, NO_SLOT, self.now, is_final=is_final))

    @rule(data=st.data(), outcome=st.sampled_from((b"result", b"result", FAILED, LAPSED, DRAINING)))
    def answered(self, data: st.DataObject, outcome: bytes | Failure) -> None:
        busy = [each for each in self.places if each.at is not None]
        if not busy:
            return
        held = data.draw(st.sampled_from(busy))
        made, held.at = held.at, None
        assert made is not None
        is_refused = isinstance(outcome, Failure) and outcome.executed is Executed.NO
        made.may_have_run = not is_refused or made.was_lost
        held.is_gone = outcome is LAPSED
        self.carry_out(self.plan.answered(held.place, outcome, self.now))
        if not is_refused and not made.is_cancelled:
            assert made.outcome is not None
        if outcome is DRAINING:
            assert held.is_gone, "nothing more is sent there"

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        if (held := self.pick(data, attached=True)) is not None:
            made, held.at = held.at, None
            held.is_gone = True
            if made is not None:
                made.was_lost = True
            self.carry_out(self.plan.places_lost([held.place], LOST, self.now))
            if made is not None and not made.call.is_idempotent:
                assert made.is_over, "its caller hears that nobody knows"

    @rule(data=st.data(), attached=st.booleans())
    def leaves(self, data: st.DataObject, attached: bool) -> None:
        if (held := self.pick(data, attached=attached)) is not None:
            self.carry_out(self.plan.place_leaves(held.place, self.now))

    # -- time ------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((0.01, 0.1, 1.0, 5.0)))
    def time(self, seconds: float) -> None:
        """Whoever owns the plan comes when it has asked for it, and at other times."""
        until = self.now + seconds
        while (due := self.plan.next_deadline()) is not None and due <= until:
            assert due >= self.now - 1e-9 or due <= until
            self.now = max(self.now, due)
            self.carry_out(self.plan.time_passed(self.now))
            after = self.plan.next_deadline()
            assert after is None or after > self.now, "it asks to be woken at once, again and again"
        self.now = until

    @rule(wants=st.booleans())
    def close(self, wants: bool) -> None:
        if wants and len(self.calls) > 8:
            self.is_closed = True
            self.carry_out(self.plan.close() if not self.plan.is_closed else [])
            assert all(each.is_over for each in self.calls)
            assert all(each.is_gone for each in self.places)

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def places_are_those_of_the_model(self) -> None:
        if not hasattr(self, "plan"):
            return
        live = [each.place for each in self.places if not each.is_gone]
        assert set(live) == set(self.plan.places)
        assert len(live) <= self.slots
        for each in self.places:
            if each.is_gone:
                assert each.place.state is PlaceState.GONE
            elif not each.is_attached:
                assert each.place.state is PlaceState.WANTED
            else:
                assert each.place.state is (PlaceState.BUSY if each.at is not None else PlaceState.IDLE)

    @invariant()
    def no_place_is_idle_while_a_call_waits(self) -> None:
        if not hasattr(self, "plan"):
            return
        at = [each.at for each in self.places if each.at is not None]
        waiting = [each for each in self.calls if not each.is_over and each not in at]
        if waiting:
            assert not any(each.place.state is PlaceState.IDLE for each in self.places)
            assert not self.is_closed
        if waiting and not self.plan.places:
            due = self.plan.next_deadline()
            assert due is not None, "nothing would happen any more"
            assert due <= self.now + LONGEST_PAUSE_S
        assert self.plan.is_quiet == (not waiting and all(made.is_over for made in at))

    @invariant()
    def time_is_kept(self) -> None:
        if not hasattr(self, "plan"):
            return
        due = self.plan.next_deadline()
        ends = [each.call.deadline for each in self.calls if not each.is_over and each.call.deadline != inf]
        ends += [each.place.idle_since + IDLE_S for each in self.places if each.place.state is PlaceState.IDLE]
        if ends:
            assert due is not None
            assert due <= min(ends)
        for each in self.calls:
            assert each.sent <= MAX_ATTEMPTS


TestDirectPlan = DirectPlanMachine.TestCase
TestDirectPlan.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
