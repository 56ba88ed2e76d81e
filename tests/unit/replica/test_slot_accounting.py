"""Every use of slots with every ending: permits, counts, quotas and reported capacities end where a plain sum says.

Three slots at a time, of two callers, so that what is done to the first alone is not enough.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final

import pytest

from replica_service.core.call_metadata import ReplicaCallOptions, ReservedSlot
from replica_service.core.events import (
    AttachReceived,
    CallsEnded,
    DetachReceived,
    DispatchReceived,
    DrainBegan,
    Fail,
    GraceEnded,
    Grant,
    LinkClosed,
    ReleaseReceived,
    ReplicaCommand,
    ReplicaEvent,
    ReplicaTimePassed,
    ReportAttach,
    ReportDetached,
    RunsReceived,
    SlotCallReceived,
    StreamRenewed,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.work import StartCalls
from slotmesh.errors import Reason

PERMITS: Final = 5
LEASE_S: Final = 10.0
SLOTS: Final = (1, 2, 3)
OWNERS: Final = ("client/a", "client/a", "client/b")


class Bench:
    """A scheduler with a router that reserves, another one that only looks, and a direct stream."""

    def __init__(self) -> None:
        secrets = count(1)
        self.core = ReplicaScheduler(
            {"plain": None}, max_ongoing=PERMITS, prefetch=2, new_secret=lambda: next(secrets).to_bytes(16, "big")
        )
        self.now = 100.0
        self.router, self.other, self.stream = RouterPeer(), RouterPeer(), RouterPeer()
        self.slots: list[ReservedSlot] = []
        self.running: list[ReplicaRun] = []
        self.failed: list[Reason] = []
        self.attached: dict[int, Reason | None] = {}
        self.detached: list[tuple[int, Reason | None]] = []

    def step(self, event: ReplicaEvent) -> list[ReplicaCommand]:
        commands = self.core.step(event, self.now)
        for command in commands:
            match command:
                case Grant(slot=slot):
                    self.slots.append(slot)
                case StartCalls(run=run):
                    self.running.append(run)
                case Fail(failure=failure):
                    self.failed.append(failure.reason)
                case ReportAttach(number=number, failure=failure):
                    self.attached[number] = failure.reason if failure is not None else None
                case ReportDetached(number=number, failure=failure):
                    self.detached.append((number, failure.reason if failure is not None else None))
                case _:
                    raise AssertionError(f"nobody expects {command}")
        return commands

    def run(self, link: RouterPeer, lease_s: float = 0.0, identity: str = "") -> ReplicaRun:
        link.last_run_id += 1
        made = ReplicaRun(link, link.last_run_id, [b"x"], ReplicaCallOptions(method="plain"), "e", self.now)
        made.lease_s, made.identity = lease_s, identity
        return made

    def at(self, now: float) -> None:
        """Time passes, and the scheduler is woken whenever it has asked for it."""
        while (due := self.core.next_deadline()) is not None and due <= now:
            self.now = max(self.now, due)
            self.step(ReplicaTimePassed())
        self.now = now
        self.step(ReplicaTimePassed())

    def others_of(self, link: RouterPeer) -> int:
        return self.core.capacity(link).others


def reserve(bench: Bench) -> None:
    for owner in OWNERS:
        bench.step(RunsReceived([bench.run(bench.router, LEASE_S, owner)]))
    assert len(bench.slots) == 3


def dispatch(bench: Bench) -> None:
    reserve(bench)
    for slot in bench.slots:
        bench.step(DispatchReceived(bench.run(bench.router), slot.secret))
    assert len(bench.running) == 3


def hold(bench: Bench) -> None:
    reserve(bench)
    for number, slot in zip(SLOTS, bench.slots, strict=True):
        bench.step(AttachReceived(bench.stream, number, slot.secret, "e", LEASE_S))
    assert bench.attached == {1: None, 2: None, 3: None}


def hold_and_call(bench: Bench) -> None:
    hold(bench)
    for number in SLOTS:
        bench.step(SlotCallReceived(bench.run(bench.stream), number))
    assert len(bench.running) == 3


def release(bench: Bench) -> None:
    for slot in bench.slots:
        bench.step(ReleaseReceived(slot.secret))


def lapse(bench: Bench) -> None:
    bench.at(bench.now + LEASE_S)


def end_calls(bench: Bench) -> None:
    for run in bench.running:
        bench.step(CallsEnded(run, 1))
    bench.running.clear()


def detach(bench: Bench) -> None:
    for number in SLOTS:
        bench.step(DetachReceived(bench.stream, number))


def close_stream(bench: Bench) -> None:
    bench.step(LinkClosed(bench.stream))


def close_router(bench: Bench) -> None:
    bench.step(LinkClosed(bench.router))


def drain(bench: Bench) -> None:
    bench.step(DrainBegan())


def grace_ends(bench: Bench) -> None:
    bench.step(DrainBegan())
    bench.step(GraceEnded())


Step = Callable[[Bench], None]
Counts = tuple[int, int, int]
"""Dispatched, released, expired; of three that were granted."""

ENDINGS: list[tuple[tuple[Step, ...], Counts]] = [
    ((reserve, release), (0, 3, 0)),
    ((reserve, lapse), (0, 0, 3)),
    ((reserve, close_router, lapse), (0, 0, 3)),
    ((reserve, drain, release), (0, 3, 0)),
    ((dispatch, end_calls), (3, 0, 0)),
    ((dispatch, lapse, end_calls), (3, 0, 0)),
    ((dispatch, close_router, end_calls), (3, 0, 0)),
    ((dispatch, drain, end_calls), (3, 0, 0)),
    ((dispatch, grace_ends, end_calls), (3, 0, 0)),
    ((hold, detach), (0, 3, 0)),
    ((hold, lapse), (0, 0, 3)),
    ((hold, close_stream), (0, 3, 0)),
    ((hold, close_router, detach), (0, 3, 0)),
    ((hold, drain, detach), (0, 3, 0)),
    ((hold_and_call, end_calls, detach), (0, 3, 0)),
    ((hold_and_call, end_calls, lapse), (0, 0, 3)),
    ((hold_and_call, lapse, end_calls, detach), (0, 3, 0)),
    ((hold_and_call, detach, end_calls), (3, 0, 0)),
    ((hold_and_call, close_stream, end_calls), (3, 0, 0)),
    ((hold_and_call, close_stream, lapse, end_calls), (3, 0, 0)),
    ((hold_and_call, end_calls, close_stream), (0, 3, 0)),
    ((hold_and_call, drain, end_calls, detach), (0, 3, 0)),
    ((hold_and_call, drain, lapse, end_calls), (0, 0, 3)),
]


@pytest.mark.parametrize(
    ("steps", "counts"), ENDINGS, ids=[" ".join(step.__name__ for step in steps) for steps, _ in ENDINGS]
)
def test_all_is_given_back_however_slots_end(steps: tuple[Step, ...], counts: Counts) -> None:
    bench = Bench()
    for step in steps[:-1]:
        step(bench)
        assert bench.core.in_use == 3
        assert bench.others_of(bench.other) == 3
        assert not bench.core.is_idle
    steps[-1](bench)
    bench.at(bench.now)
    core, slots = bench.core, bench.core.slots
    assert (core.in_use, core.waiting, core.is_idle, core.is_quiet) == (0, 0, True, True)
    assert (slots.granted, slots.reserved, slots.busy) == (3, 0, 0)
    assert (slots.dispatched, slots.released, slots.expired) == counts
    assert sum(slots.held_times.counts) == (3 if dispatch in steps else 0)
    assert not slots.quota.held
    assert not any(core._state.slots.held.values())
    for link in (bench.router, bench.stream):
        assert (link.unkeyed, link.in_slots, link.waiting) == (0, 0, {})
    for link in (bench.router, bench.other, bench.stream):
        assert bench.others_of(link) == 0
    bench.at(bench.now + LEASE_S)
    assert core.next_deadline() is None
    assert not bench.failed


def test_each_of_several_slots_whose_leases_end_together_is_told() -> None:
    bench = Bench()
    hold(bench)
    lapse(bench)
    assert bench.detached == [(number, Reason.SLOT_EXPIRED) for number in SLOTS]
    reserve_again = bench.run(bench.router, LEASE_S)
    bench.step(RunsReceived([reserve_again]))
    bench.step(AttachReceived(bench.stream, 1, bench.slots[-1].secret, "e", LEASE_S))
    assert bench.attached[1] is None, "its number is free again"


def test_a_stream_that_lives_renews_each_of_its_slots() -> None:
    bench = Bench()
    hold(bench)
    bench.at(bench.now + LEASE_S - 1)
    bench.step(StreamRenewed(bench.stream))
    bench.at(bench.now + LEASE_S - 0.5)
    assert (bench.core.in_use, bench.detached) == (3, [])
    bench.at(bench.now + 0.5)
    assert (bench.core.in_use, len(bench.detached)) == (0, 3)


@pytest.mark.parametrize("way_in", [reserve, dispatch, hold, hold_and_call], ids=lambda it: it.__name__)
def test_each_owner_counts_its_own_until_a_call_begins(way_in: Step) -> None:
    bench = Bench()
    way_in(bench)
    expected = {"client/a": 2, "client/b": 1} if way_in is not dispatch else {}
    assert bench.core.slots.quota.held == expected


def test_a_routers_own_calls_in_slots_take_no_room_from_it_and_those_of_others_do() -> None:
    bench = Bench()
    dispatch(bench)
    assert [bench.others_of(link) for link in (bench.router, bench.other)] == [3, 3], "a slot is no call of anybody"
    bench.step(RunsReceived([bench.run(bench.router)]))
    assert [bench.others_of(link) for link in (bench.router, bench.other)] == [3, 4]
    end_calls(bench)
    assert [bench.others_of(link) for link in (bench.router, bench.other)] == [0, 0]
