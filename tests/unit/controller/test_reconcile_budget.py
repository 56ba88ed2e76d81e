"""A reconcile pass has a budget: what happens to a replica is acted on before all of a large change is done."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from controller_service.core.desired.state import ChangeSet
from controller_service.core.observed import transitions
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.state import ReplicaState
from controller_service.shell.loops import reconcile_loop
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from tests.support.fakes.launcher import FakeLauncher
from tests.support.wait import wait_until
from tests.unit.controller.test_reconcile_loop import World, running

pytestmark = pytest.mark.asyncio


def endpoints(count: int) -> ChangeSet:
    policy = TrafficPolicy(weights={"v1": 1.0})
    return ChangeSet(put_endpoints=tuple(Endpoint(name=f"e{number:04}", traffic=policy) for number in range(count)))


def owned(world: World) -> int:
    return len(world.store.read().ownership)


def is_owned(world: World, name: str) -> bool:
    return name in world.store.read().ownership


async def test_a_missing_replica_is_started_before_all_endpoints_of_a_large_change_are_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile_loop, "PLANNED_WITHIN_S", 0.0)  # one endpoint a pass
    monkeypatch.setattr(reconcile_loop, "MOST_REST_S", 0.0)
    launcher = FakeLauncher(lambda _: None, mint_id=lambda backend: f"{backend}-x")
    async with running(launcher) as world:
        world.make_ready("a")
        await wait_until(lambda: world.is_assigned, what="the first assignment")
        await world.store.commit(endpoints(60), expected_revision=world.store.read().revision)
        await wait_until(lambda: owned(world) > 3, timeout=20.0, what="the first of them are planned")
        started = len(launcher.started)
        backend = world.store.read().backends["v1"]
        more = ChangeSet(put_backends=(replace(backend, num_replicas=3),))
        await world.store.commit(more, expected_revision=world.store.read().revision)
        await wait_until(lambda: len(launcher.started) > started, timeout=20.0, what="a start")
        assert owned(world) < 60, "it did not wait for the rest"
        await wait_until(lambda: owned(world) == 61, timeout=60.0, what="all of them")


async def test_endpoints_that_do_not_differ_share_their_owners() -> None:
    async with running() as world:
        world.make_ready("a")
        await wait_until(lambda: world.is_assigned, what="the first assignment")
        for number in range(3):
            name = f"one-{number}"
            one = ChangeSet(put_endpoints=(Endpoint(name=name, traffic=TrafficPolicy(weights={"v1": 1.0})),))
            await world.store.commit(one, expected_revision=world.store.read().revision)
            await wait_until(partial(is_owned, world, name), what=f"owners of {name}")
        assert len({id(it) for it in world.store.read().ownership.values()}) == 1


async def test_hand_overs_of_many_endpoints_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_loop, "MAX_HANDOVERS", 5)
    async with running() as world:
        world.make_ready("a")
        await wait_until(lambda: world.is_assigned, what="the first assignment")
        await world.store.commit(endpoints(40), expected_revision=world.store.read().revision)
        await wait_until(lambda: owned(world) == 41, what="owners")
        backends = ChangeSet(put_backends=(Backend(name="v1", handler="a:B", num_replicas=2),))
        await world.store.commit(backends, expected_revision=world.store.read().revision)
        hello = Hello(replica_id="b", incarnation="1" * 32, backend="v1")
        report = ObservedReport(state=ReplicaState.READY, address="h:3")
        world.state.apply_to_replica("b", lambda it, now: transitions.attached(it, hello, now=now))
        world.state.apply_to_replica(
            "b", lambda it, now: transitions.reported(it, "b", hello.incarnation, report, now=now)
        )
        await wait_until(lambda: any(it.leaving for it in world.store.read().ownership.values()), what="a hand-over")
        assert sum(bool(it.leaving) for it in world.store.read().ownership.values()) == 5
