"""Slots that direct streams hold, under arbitrary histories, with time: permits are never lost, and never in two hands.

The model is naive: a list of slots, looked through each time. Streams come and go, calls run, leases end, the replica
drains.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replica_service.core.call_metadata import ReplicaCallOptions, ReservedSlot, SlotState
from replica_service.core.events import (
    AttachReceived,
    CallsEnded,
    DetachReceived,
    DispatchReceived,
    DrainBegan,
    Fail,
    Grant,
    LinkClosed,
    Refuse,
    ReleaseReceived,
    ReplicaCommand,
    ReplicaTimePassed,
    ReportAttach,
    ReportDetached,
    RunsCancelled,
    RunsReceived,
    SlotCallReceived,
    StreamRenewed,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from slotmesh.errors import Executed, Reason
from tests.support.examples import examples

PERMITS = 3
LEASES_S = (0.5, 2.0, 10.0)


@dataclass
class Known:
    """What the model knows of one slot."""

    slot: ReservedSlot
    expires_at: float
    lease_s: float = 0.0
    link: RouterPeer | None = None
    """The stream that holds it."""
    number: int = 0
    call: ReplicaRun | None = None
    """The one that is in it."""
    is_over: bool = False


class HeldSlotsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        secrets = count(1)
        self.core = ReplicaScheduler(
            {"plain": None}, max_ongoing=PERMITS, new_secret=lambda: next(secrets).to_bytes(16, "big")
        )
        self.now = 100.0
        self.router = RouterPeer()
        self.streams = [RouterPeer(), RouterPeer()]
        self.known: list[Known] = []
        self.running: list[ReplicaRun] = []
        self.outcomes: dict[ReplicaRun, str] = {}
        self.sent: list[ReplicaRun] = []
        self.attached: list[ReportAttach] = []
        self.is_draining = False

    def step(self, event: object) -> list[ReplicaCommand]:
        self.leases_end()
        commands = self.core.step(event, self.now)  # type: ignore[arg-type]  # any of them
        for command in commands:
            match command:
                case Grant(run=run, slot=slot):
                    self.known.append(Known(slot, self.now + run.lease_s))
                case StartCalls(run=run):
                    assert run not in self.outcomes
                    assert run.slot is not None
                    self.running.append(run)
                case Fail(run=run, failure=failure) | Refuse(run=run, failure=failure):
                    if not run.lease_s:
                        assert run not in self.outcomes, "it has one outcome"
                        assert run not in self.running
                        assert failure.executed is Executed.NO
                        self.outcomes[run] = failure.reason.value
                        self.ended(run)
                case ReportAttach():
                    self.attached.append(command)
                case ReportDetached(link=link, number=number, failure=failure) if failure is not None:
                    found = [each for each in self.known if each.is_over and (each.link, each.number) == (link, number)]
                    assert found, "its lease is not over"
                case _:
                    pass
        return commands

    def leases_end(self) -> None:
        for each in self.known:
            each.is_over |= each.call is None and each.expires_at <= self.now

    def ended(self, run: ReplicaRun) -> None:
        for each in self.known:
            if each.call is run:
                each.call = None
                if each.link is None:
                    each.is_over = True
                elif not self.is_draining:
                    each.expires_at = self.now + each.lease_s

    def at(self, link: RouterPeer, number: int) -> Known | None:
        self.leases_end()
        found = [each for each in self.known if each.link is link and each.number == number and not each.is_over]
        assert len(found) <= 1
        return found[0] if found else None

    # -- slots -----------------------------------------------------------------------------------------------------

    @rule(lease_s=st.sampled_from(LEASES_S))
    def reserve(self, lease_s: float) -> None:
        self.router.last_run_id += 1
        run = ReplicaRun(self.router, self.router.last_run_id, [b""], ReplicaCallOptions(), "e", self.now)
        run.lease_s = lease_s
        self.step(RunsReceived([run]))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), stream=st.integers(0, 1), number=st.integers(0, 3), lease_s=st.sampled_from(LEASES_S))
    def attach(self, data: st.DataObject, stream: int, number: int, lease_s: float) -> None:
        known, link = data.draw(st.sampled_from(self.known[-5:])), self.streams[stream]
        self.leases_end()
        is_good = not known.is_over and known.link is None and known.call is None and number > 0
        is_good &= self.at(link, number) is None
        if is_good:
            known.link, known.number, known.lease_s = link, number, lease_s
            if not self.is_draining:
                known.expires_at = self.now + lease_s
        self.step(AttachReceived(link, number, known.slot.secret, "", lease_s))
        answer = self.attached.pop()
        assert (answer.failure is None) == is_good
        assert (answer.link, answer.number) == (link, number)

    @rule(stream=st.integers(0, 1), number=st.integers(1, 3), method=st.sampled_from(("plain", "plain", "none")))
    def call(self, stream: int, number: int, method: str) -> None:
        link = self.streams[stream]
        link.last_run_id += 1
        run = ReplicaRun(link, link.last_run_id, [b"x"], ReplicaCallOptions(method=method), "", self.now)
        self.sent.append(run)
        known = self.at(link, number)
        if known is not None and known.call is None:
            known.call = run
            self.step(SlotCallReceived(run, number))
            assert (run in self.running) == (method == "plain"), "it has a permit, and waits for nobody"
            return
        self.step(SlotCallReceived(run, number))
        if known is not None:
            assert self.outcomes[run] == Reason.BAD_REQUEST
        else:
            assert self.outcomes[run] in {Reason.SLOT_UNKNOWN, Reason.SLOT_EXPIRED}

    @rule(stream=st.integers(0, 1))
    def renew(self, stream: int) -> None:
        self.leases_end()
        for each in self.known:
            if each.link is self.streams[stream] and not each.is_over and not each.call and not self.is_draining:
                each.expires_at = self.now + each.lease_s
        self.step(StreamRenewed(self.streams[stream]))

    @rule(stream=st.integers(0, 1), number=st.integers(1, 3))
    def detach(self, stream: int, number: int) -> None:
        if (known := self.at(self.streams[stream], number)) is not None:
            self.let_go(known)
        self.step(DetachReceived(self.streams[stream], number))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), dispatches=st.booleans())
    def use_the_token(self, data: st.DataObject, dispatches: bool) -> None:
        known = data.draw(st.sampled_from(self.known[-5:]))
        self.leases_end()
        is_good = not known.is_over and known.link is None and known.call is None
        if not dispatches:
            known.is_over |= is_good
            self.step(ReleaseReceived(known.slot.secret))
            return
        self.router.last_run_id += 1
        run = ReplicaRun(self.router, self.router.last_run_id, [b"x"], ReplicaCallOptions(method="plain"), "", self.now)
        self.sent.append(run)
        if is_good:
            known.call = run
        self.step(DispatchReceived(run, known.slot.secret))
        assert (run in self.running) == is_good

    # -- calls, streams, time --------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.running))
        self.running.remove(run)
        assert run not in self.outcomes
        self.outcomes[run] = "ended"
        self.leases_end()
        self.ended(run)
        self.step(CallsEnded(run, 1))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.sent[-4:]))
        self.step(RunsCancelled(run.link, [(run.first, run.first)]))

    @rule(stream=st.integers(0, 1))
    def stream_ends(self, stream: int) -> None:
        link = self.streams[stream]
        self.leases_end()
        for each in self.known:
            if each.link is link and not each.is_over:
                self.let_go(each)
        self.step(LinkClosed(link))
        self.streams[stream] = RouterPeer()

    def let_go(self, known: Known) -> None:
        known.link = None
        known.is_over = known.call is None

    @rule(seconds=st.sampled_from((0.1, 0.5, 2.0, 10.0)))
    def time(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            self.step(ReplicaTimePassed())
            after = self.core.next_deadline()
            assert after is None or after > self.now, "it asks to be woken at once, again and again"
        self.now = until

    @precondition(lambda self: len(self.sent) > 5)
    @rule()
    def drain(self) -> None:
        self.leases_end()
        self.is_draining = True
        self.step(DrainBegan())

    # -- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def every_permit_is_somebodys(self) -> None:
        if not hasattr(self, "core"):
            return
        self.step(ReplicaTimePassed())
        live = [each for each in self.known if not each.is_over]
        assert self.core.in_use == len(live) <= PERMITS
        assert self.core.slots.busy == sum(each.link is not None and each.call is not None for each in live)
        assert self.core.slots.reserved == sum(each.link is not None or each.call is None for each in live)
        assert self.core.is_quiet == (not any(each.call for each in live))
        for each in live:
            state = SlotState.RESERVED if each.call is None else SlotState.DISPATCHED
            if each.link is not None:
                state = SlotState.HELD if each.call is None else SlotState.BUSY
            assert each.slot.state is state

    @invariant()
    def leases_end_in_time(self) -> None:
        if not hasattr(self, "core"):
            return
        ends = [each.expires_at for each in self.known if not each.is_over and each.call is None]
        due = self.core.next_deadline()
        assert not ends or (due is not None and due <= min(ends))
        slots = self.core.slots
        assert slots.granted == slots.reserved + slots.dispatched + slots.released + slots.expired


TestHeldSlots = HeldSlotsMachine.TestCase
TestHeldSlots.settings = settings(max_examples=examples(300), stateful_step_count=60, deadline=None)
