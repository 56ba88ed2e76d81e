"""The task that carries shifts on, with time that a test moves: what it waits for, and what it does not take for no."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from types import MappingProxyType

import pytest

from controller_service.core.desired.planning import ALWAYS, ChangeTerms
from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftPhase, ShiftRecord, notices_of_shifts
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventKind
from controller_service.core.loads import NO_ENDS, BackendLoad, CallEnds
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import ObservedRouter, ReplicaState
from controller_service.core.reconciling.shift_planning import RequestedShift
from controller_service.shell.changes.configurator import Configurator
from controller_service.shell.events import EventFeed
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.loops.shifter import SETTLED_AFTER_S, Shifter
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.store.protocol import MemoryStore, Store, StoreWriteFailed
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

ERRORS = Guard(GuardFigure.ERROR_RATE, 0.1)
EVERY_S = 30.0
NO_COPIES: Mapping[str, CallEnds] = MappingProxyType({})
CALLS = CallEnds(100, 0, 0, (100, *NO_ENDS.times[1:]))


class WallClock(FakeClock):
    """A clock whose time of day can be set."""

    jump_s = 0.0

    def time_of_day(self) -> float:
        return super().time_of_day() + self.jump_s


class FullStore(MemoryStore):
    """A store that cannot write while it is full."""

    is_full = False

    async def commit(self, change: ChangeSet, *, expected_revision: int) -> Desired:
        if self.is_full:
            raise StoreWriteFailed("the disk is full", is_unwritten=True)
        return await super().commit(change, expected_revision=expected_revision)


class Bench:
    """A shift of `e` from v1 to v2 in two steps, before a controller that has just started."""

    def __init__(self, store: Store, clock: WallClock) -> None:
        self.store = store
        self.clock = clock
        self.state = MeshState(clock, WorkQueue[Key](), EventFeed("a"))
        configurator = Configurator(store, self.state, launches=False)
        self.shifter = Shifter(configurator, store, self.state, NewerMembers(store, self.state))

    async def begin(self, *guards: Guard) -> None:
        said = RequestedShift(endpoint="e", weights={"v2": 1.0}, step=0.5, every_s=EVERY_S, guards=guards)
        await self.shifter.begin(said, ALWAYS)

    def make_ready(self) -> None:
        for name in ("v1", "v2"):
            hello = Hello(replica_id=name, incarnation="i", backend=name, pid=1)
            self.state.apply(transitions.attached(self.state.observed, hello, now=self.clock.now()))
            report = ObservedReport(state=ReplicaState.READY, address="h:1", max_ongoing=1)
            self.state.apply(transitions.reported(self.state.observed, name, "i", report, now=self.clock.now()))

    def report(
        self,
        ends: CallEnds | None = NO_ENDS,
        *,
        name: str = "r",
        run_id: str = "x",
        ongoing: int = 0,
        copies: Mapping[str, CallEnds] = NO_COPIES,
    ) -> None:
        """A router says what has become of v2's calls, and of `copies`, by shadow; None: it does not count them."""
        if name not in self.state.observed.routers:
            router = ObservedRouter(router_id=name, address="h:1", started_at=0.0, run_id=run_id)
            self.state.apply(routers.attached(self.state.observed, router))
        sent = 0 if ends is None else ends.total
        load = BackendLoad(backend="v2", queued=0, ongoing=ongoing, sent=sent, ended=ends)
        of_shadows = (
            BackendLoad(backend=shadow, queued=0, ongoing=0, ended=NO_ENDS, shadow_ended=of_copies)
            for shadow, of_copies in copies.items()
        )
        self.state.apply(
            routers.reported(
                self.state.observed,
                name,
                generation="g",
                revision=1,
                linked=frozenset(),
                loads=(load, *of_shadows),
                now=self.clock.now(),
            )
        )

    @property
    def shift(self) -> ShiftRecord:
        return self.store.read().shifts["e"]

    @property
    def weights(self) -> dict[str, float]:
        policy = self.store.read().endpoints["e"].traffic
        assert policy is not None
        return dict(policy.weights)

    @property
    def waits_for(self) -> str:
        return self.shifter.known_of(self.shift)[2]


async def bench_of(*guards: Guard, ready: bool = True, shadows: Sequence[str] = ()) -> Bench:
    store = FullStore(generation="g")
    policy = TrafficPolicy(weights={"v1": 1.0}, shadows=dict.fromkeys(shadows, 0.5))
    await store.commit(
        ChangeSet(
            put_backends=tuple(Backend(name=name) for name in ("v1", "v2", *shadows)),
            put_endpoints=(Endpoint(name="e", traffic=policy),),
        ),
        expected_revision=0,
    )
    bench = Bench(store, WallClock())
    if ready:
        bench.make_ready()
    bench.report(copies=dict.fromkeys(shadows, NO_ENDS))
    await bench.begin(*guards)
    return bench


async def test_a_step_lasts_as_long_as_was_said_and_one_comes_at_a_time() -> None:
    bench = await bench_of()
    bench.clock.advance(EVERY_S - 0.1)
    await bench.shifter.look()
    assert bench.shift.number == 1
    bench.clock.advance(10 * EVERY_S)
    await bench.shifter.look()
    await bench.shifter.look()
    assert (bench.shift.number, bench.weights) == (2, {"v1": 0.0, "v2": 1.0})
    bench.clock.advance(EVERY_S)
    await bench.shifter.look()
    assert (bench.shift.phase, bench.weights) == (ShiftPhase.COMPLETE, {"v2": 1.0})


@pytest.mark.parametrize("jump_s", [3_600.0, -3_600.0])
async def test_a_clock_that_jumps_makes_no_step_longer_or_shorter(jump_s: float) -> None:
    bench = await bench_of()
    bench.clock.jump_s = jump_s
    bench.clock.advance(EVERY_S - 0.1)
    await bench.shifter.look()
    assert bench.shift.number == 1
    bench.clock.advance(0.1)
    await bench.shifter.look()
    assert bench.shift.number == 2


@pytest.mark.parametrize(("jump_s", "left_s"), [(0.0, 10.0), (-3_600.0, EVERY_S), (3_600.0, 0.0)])
async def test_a_controller_that_starts_again_waits_for_what_is_left_and_no_longer_than_a_step(
    jump_s: float, left_s: float
) -> None:
    before = await bench_of()
    before.clock.advance(20.0)
    before.clock.jump_s = jump_s
    bench = Bench(before.store, before.clock)
    bench.make_ready()
    if left_s:
        await bench.shifter.look()
        bench.clock.advance(left_s - 0.1)
        await bench.shifter.look()
        assert bench.shift.number == 1
        bench.clock.advance(0.1)
    await bench.shifter.look()
    assert bench.shift.number == 2


@pytest.mark.parametrize("ends", [None, NO_ENDS])
async def test_without_calls_it_goes_on_only_when_every_router_says_that_there_are_none(ends: CallEnds | None) -> None:
    bench = await bench_of(ERRORS)
    bench.clock.advance(EVERY_S)
    await bench.shifter.look()
    assert "0 of 100 calls of backend v2" in bench.waits_for, "the report is old"
    bench.report()
    bench.report(ends, name="older", run_id="")
    await bench.shifter.look()
    assert bench.shift.number == 1, "one router does not say"
    bench.state.apply(routers.left(bench.state.observed, "older", "gone"))
    await bench.shifter.look()
    assert bench.shift.number == 2
    assert not bench.waits_for


async def test_a_router_that_may_be_on_its_way_is_not_one_without_calls() -> None:
    before = await bench_of(ERRORS)
    before.clock.advance(EVERY_S)
    bench = Bench(before.store, before.clock)
    bench.make_ready()
    bench.report()
    await bench.shifter.look()
    assert bench.shift.number == 1, "another one may not have come back yet"
    bench.clock.advance(SETTLED_AFTER_S)
    bench.report()
    await bench.shifter.look()
    assert bench.shift.number == 2


async def test_calls_that_do_not_end_are_not_no_calls() -> None:
    bench = await bench_of(ERRORS)
    bench.report(ongoing=3)
    await bench.shifter.look()
    bench.clock.advance(EVERY_S)
    bench.report()
    await bench.shifter.look()
    assert "0 of 100" in bench.waits_for
    bench.report(CALLS)
    await bench.shifter.look()
    assert bench.shift.number == 2


async def test_calls_of_an_earlier_step_are_not_calls_of_this_one() -> None:
    """Traffic ends during the first step: the second one need not wait for calls that nobody makes."""
    bench = await bench_of(ERRORS)
    bench.report(CALLS, ongoing=3)
    await bench.shifter.look()
    bench.clock.advance(EVERY_S)
    bench.report(CALLS)
    await bench.shifter.look()
    assert bench.shift.number == 2
    bench.clock.advance(EVERY_S)
    bench.report(CALLS)
    await bench.shifter.look()
    assert (bench.waits_for, bench.shift.phase) == ("", ShiftPhase.COMPLETE)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("order", [*permutations(range(3))])
async def test_the_copies_of_each_shadow_that_a_guard_looks_at_are_counted(order: Sequence[int], at: int) -> None:
    shadows = [f"dark{number}" for number in range(3)]
    guards = [Guard(GuardFigure.ERROR_RATE, 0.1, shadow=shadows[number]) for number in order]
    bench = await bench_of(*guards, shadows=shadows)
    failed = CallEnds(100, 100, 0, NO_ENDS.times)
    bench.report(copies={name: failed if number == at else CALLS for number, name in enumerate(shadows)})
    await bench.shifter.look()
    assert bench.shift.phase is ShiftPhase.ROLLED_BACK
    assert f"shadow dark{at} had 1.000 (100 of 100 calls)" in bench.shift.why


async def test_a_step_waits_for_the_copies_of_each_shadow_that_a_guard_looks_at() -> None:
    shadows = [f"dark{number}" for number in range(3)]
    bench = await bench_of(*(Guard(GuardFigure.ERROR_RATE, 0.1, shadow=name) for name in shadows), shadows=shadows)
    bench.clock.advance(EVERY_S)
    copies = dict.fromkeys(shadows, NO_ENDS)
    for name in shadows:
        bench.report(CALLS, copies=copies)
        await bench.shifter.look()
        assert f"0 of 100 copies of calls of shadow {name}" in bench.waits_for
        copies[name] = CALLS
    bench.report(CALLS, copies=copies)
    await bench.shifter.look()
    assert bench.shift.number == 2


_TOLD = {
    ShiftPhase.COMPLETE: EventKind.TRAFFIC_SHIFT_COMPLETE,
    ShiftPhase.ROLLED_BACK: EventKind.TRAFFIC_SHIFT_ROLLED_BACK,
    ShiftPhase.STOPPED: EventKind.TRAFFIC_SHIFT_ENDED,
    ShiftPhase.OVERTAKEN: EventKind.TRAFFIC_SHIFT_ENDED,
}
"""Written by hand: the kinds that docs/traffic.md names."""


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("phase", ShiftPhase)
async def test_what_becomes_of_a_shift_is_told_as_what_it_is(phase: ShiftPhase, at: int) -> None:
    """One of three shifts changes; it stands at each place."""
    shift = (await bench_of()).shift
    before = {f"e{number}": replace(shift, endpoint=f"e{number}") for number in range(3)}
    name, number = f"e{at}", 2 if phase is ShiftPhase.SHIFTING else 1
    after = before | {name: replace(before[name], phase=phase, number=number, why="a reason")}
    told = [*notices_of_shifts(before, after, revision=5)]
    expected = _TOLD.get(phase, EventKind.TRAFFIC_SHIFT_STEPPED)
    assert [(it.kind, it.subject) for it in told] == [(expected, f"endpoint/{name}")]
    begun = [*notices_of_shifts({it: each for it, each in before.items() if it != name}, before, revision=5)]
    assert [(it.kind, it.subject) for it in begun] == [(EventKind.TRAFFIC_SHIFT_STARTED, f"endpoint/{name}")]
    gone = [*notices_of_shifts(after, {it: each for it, each in after.items() if it != name}, revision=5)]
    is_ended = phase is ShiftPhase.SHIFTING
    assert [it.kind for it in gone] == [EventKind.TRAFFIC_SHIFT_ENDED] * is_ended


async def test_no_step_goes_to_a_backend_without_a_ready_replica() -> None:
    bench = await bench_of(ready=False)
    bench.clock.advance(EVERY_S)
    await bench.shifter.look()
    assert (bench.shift.number, bench.waits_for) == (1, "backend v2 has no ready replica")
    bench.make_ready()
    await bench.shifter.look()
    assert bench.shift.number == 2


async def test_what_cannot_be_stored_is_tried_again_with_the_same_figures(caplog: pytest.LogCaptureFixture) -> None:
    bench = await bench_of(ERRORS)
    store = bench.store
    assert isinstance(store, FullStore)
    bench.report(replace(CALLS, failed=50, total=150))
    store.is_full = True
    for _ in range(9):
        await bench.shifter.look()
    assert bench.shift.is_under_way
    assert len([it for it in caplog.records if "could not be carried on" in it.getMessage()]) == 1
    store.is_full = False
    await bench.shifter.look()
    assert (bench.shift.phase, bench.weights) == (ShiftPhase.ROLLED_BACK, {"v1": 1.0})
    assert "(50 of 150 calls) in step 1" in bench.shift.why


async def test_an_operator_who_was_faster_wins() -> None:
    bench = await bench_of(ERRORS)
    bench.report(replace(CALLS, failed=50, total=150))
    await bench.shifter.undo("e", ChangeTerms())
    await bench.shifter.look()
    assert (bench.shift.phase, bench.weights) == (ShiftPhase.STOPPED, {"v1": 1.0})


async def test_it_ends_when_it_is_told_to_just_as_something_changes() -> None:
    for turns in range(12):
        bench = await bench_of(ERRORS)
        task = asyncio.create_task(bench.shifter.run())
        bench.report(replace(CALLS, failed=50, total=150))
        for _ in range(turns):
            await asyncio.sleep(0)
        await bench.shifter.undo("e", ChangeTerms()) if bench.shift.is_under_way else None
        task.cancel()
        await wait_until(task.done, what=f"the end after {turns} turns")
        assert task.cancelled()
        assert not bench.shift.is_under_way
        assert bench.weights == {"v1": 1.0}
