"""An expiry and a dispatch that come within 2 ms of one another: exactly one of the two wins, each time.

The events go to the scheduler in the order of their times, as the engine hands them over: the timer may fire before or
after the lease has ended, and before or after the dispatch.
"""

from __future__ import annotations

import random
from itertools import count

from replica_service.core.call_metadata import ReplicaCallOptions, SlotState
from replica_service.core.events import (
    CallsEnded,
    DispatchReceived,
    Fail,
    Grant,
    ReplicaCommand,
    ReplicaTimePassed,
    RunsReceived,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from slotmesh.errors import Reason
from tests.support.examples import examples

TRIALS = examples(100_000)
LEASE_S = 1.0
CLOSE_S = 0.002
OPTIONS = ReplicaCallOptions(method="plain")


def test_of_an_expiry_and_a_dispatch_exactly_one_wins() -> None:
    dice = random.Random()
    numbers = count(1)
    scheduler = ReplicaScheduler({"plain": None}, max_ongoing=1, new_secret=lambda: next(numbers).to_bytes(16, "big"))
    link = RouterPeer()
    now = 0.0
    dispatched = expired = 0
    for trial in range(TRIALS):
        reservation = ReplicaRun(link, 2 * trial + 1, [b""], OPTIONS, "e", now)
        reservation.lease_s = LEASE_S
        (grant,) = scheduler.step(RunsReceived([reservation]), now)
        assert isinstance(grant, Grant)
        slot = grant.slot
        ends_at = slot.expires_at

        call = ReplicaRun(link, 2 * trial + 2, [b"x"], OPTIONS, "e", now)
        comes_at = _close_to(ends_at, dice)
        fires_at = _close_to(ends_at, dice)
        is_told_first = fires_at < comes_at or (fires_at == comes_at and dice.random() < 0.5)
        outcome: list[ReplicaCommand] = []
        if is_told_first:
            assert scheduler.step(ReplicaTimePassed(), fires_at) == []
            outcome = scheduler.step(DispatchReceived(call, slot.secret), comes_at)
        else:
            outcome = scheduler.step(DispatchReceived(call, slot.secret), comes_at)
            assert scheduler.step(ReplicaTimePassed(), fires_at) == []
        now = ends_at + CLOSE_S
        assert scheduler.step(ReplicaTimePassed(), now) == []

        (command,) = outcome
        if comes_at < ends_at:
            assert isinstance(command, StartCalls)
            assert slot.state is SlotState.DISPATCHED
            assert scheduler.in_use == 1
            dispatched += 1
            scheduler.step(CallsEnded(call, 1), now)
        else:
            assert isinstance(command, Fail)
            assert command.failure.reason is Reason.SLOT_EXPIRED
            assert slot.state is SlotState.EXPIRED
            expired += 1
        slots = scheduler.slots
        assert (slots.dispatched, slots.expired, slots.reserved) == (dispatched, expired, 0)
        assert scheduler.is_idle
    assert dispatched + expired == TRIALS
    assert min(dispatched, expired) > TRIALS // 4, "they were close"


def _close_to(moment: float, dice: random.Random) -> float:
    """Within 2 ms of it; now and then that very moment."""
    return moment if dice.random() < 0.05 else moment + dice.uniform(-CLOSE_S, CLOSE_S)
