"""Replicas that fence themselves, and the controller that relies on it, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from replica_service.config import ReplicaSettings
from slotmesh.calls.key_hash import PARTITIONS
from tests.contract.controller.test_forgetting import MESH, lose, ready
from tests.contract.controller.test_older_state import Original
from tests.contract.replica.test_membership import DRAINING, READY, STOPPED, FakeController, at, controller
from tests.support.controllers import as_if_killed, running_controller
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.members import FakeReplica, FakeRouter, owners
from tests.support.replicas import RunningReplica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

FENCE: dict[str, Any] = {"fence_after": timedelta(seconds=30), "fence_grace": timedelta(seconds=10)}
BOUND_S = 40.0


class SetTimer:
    """Writes down to when it was set, and ends nothing."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.is_overridden = False

    def set(self, ends_at: float) -> None:
        self.ends.append(ends_at)


def fenced(replica: RunningReplica) -> SetTimer:
    """Before its app runs."""
    timer = SetTimer()
    replica.app.fence_by(timer)
    return timer


async def acknowledged(fake: FakeController, timer: SetTimer, clock: FakeClock) -> None:
    """An acknowledgement has moved the timer."""
    await fake.attached()
    clock.advance(1.0)
    await wait_until(lambda: len(timer.ends) > 1, what="the timer is moved by an acknowledgement")


async def test_the_replica_announces_its_bound_and_every_acknowledgement_moves_its_end() -> None:
    clock = FakeClock()
    async with controller({}) as (fake, server):
        async with at(server, clock=clock, until_ready=False, **FENCE) as replica:
            timer = fenced(replica)
            await wait_until(lambda: replica.app.replica.engine, what="ready")
            attachment = await fake.attached()
            assert attachment.hello is not None
            assert attachment.hello.fenced_after.ToTimedelta() == timedelta(seconds=BOUND_S)
            assert timer.ends[0] == clock.now() + BOUND_S, "it is armed before READY is reported"
            clock.advance(1.0)
            sent_at = clock.now()
            await wait_until(lambda: timer.ends[-1] == sent_at + BOUND_S, what="it is moved")
            assert READY in attachment.states
        assert timer.ends == sorted(timer.ends)


async def test_a_replica_without_acknowledgements_drains_says_why_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with controller({}) as (fake, server), at(server, clock=clock, until_ready=False, **FENCE) as replica:
        timer = fenced(replica)
        await wait_until(lambda: replica.app.replica.engine, what="ready")
        await acknowledged(fake, timer, clock)
        attachment = fake.attachments[-1]
        fake.acknowledges = False
        async with replica.router() as stream:
            await stream.send(stream.run([b"x"]))
            await stream.wait_answers(1)
            clock.advance(30.0)
            await wait_until(lambda: DRAINING in attachment.states, what="it drains")
            fake.acknowledges = True
            assert not replica.app.server.serving, "it is not ready any more"
            ends = timer.ends[:]
            await stream.send(stream.run([b"late"]))
            await wait_until(lambda: stream.refused, what="a call that comes then is refused, unexecuted")
        async with asyncio.timeout(20):
            assert await replica.task == 0
        assert attachment.states[-2:] == [DRAINING, STOPPED]
        assert timer.ends == ends, "an acknowledgement that comes too late moves nothing"
    (line,) = [it.getMessage() for it in caplog.records if it.levelno >= logging.ERROR]
    assert "fenced" in line
    assert "the controller has acknowledged no report for 30s (--fence-after)" in line


async def test_a_handler_that_takes_the_signal_of_the_fence_ends_its_replica(caplog: pytest.LogCaptureFixture) -> None:
    async with controller({}) as (fake, server), at(server, until_ready=False, **FENCE) as replica:
        timer = fenced(replica)
        await wait_until(lambda: replica.app.replica.engine, what="ready")
        timer.is_overridden = True
        async with asyncio.timeout(20):
            assert await replica.task == 0
        assert fake.attachments
    assert "SIGALRM" in caplog.text


async def test_what_runs_at_the_fence_ends_within_its_grace_whatever_the_backend_allows() -> None:
    clock = FakeClock()
    grace: dict[str, Any] = {**FENCE, "fence_grace": timedelta(seconds=2)}
    first = {"graceful_timeout": timedelta(hours=1)}
    async with controller(first) as (fake, server), at(server, clock=clock, until_ready=False, **grace) as replica:
        timer = fenced(replica)
        await wait_until(lambda: replica.app.replica.engine, what="ready")
        await acknowledged(fake, timer, clock)
        fake.acknowledges = False
        async with replica.router() as stream:
            await stream.send(stream.run([b"x"], method="wait"))
            await wait_until(lambda: replica.engine.scheduler.in_use, what="it runs")
            clock.advance(30.0)
            async with asyncio.timeout(20):
                await replica.task


async def test_a_replica_without_the_flag_wants_no_acknowledgement() -> None:
    async with controller({}) as (fake, server), at(server):
        attachment = await fake.attached()
        assert attachment.hello is not None
        assert not attachment.hello.HasField("fenced_after")
        assert {it.stamp for it in attachment.reports} == {0}


async def test_a_fence_needs_a_controller() -> None:
    with pytest.raises(ValueError, match="--controller"):
        ReplicaSettings(handler="m:H", fence_after=timedelta(seconds=10))


async def test_the_controller_confirms_reports_with_a_stamp_and_no_others() -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller())
        await mesh.apply(MESH)
        replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "a"))
        await replica.report("READY")
        await replica.report("READY", stamp=7)
        await replica.report("READY", stamp=9)
        await wait_until(lambda: replica.acknowledged[-1:] == [9], what="the newest is confirmed")
        assert replica.acknowledged in ([7, 9], [9])


async def silent(members: AsyncExitStack, mesh: Any, router: FakeRouter, *, fenced_after_s: float) -> FakeReplica:
    """A replica that owns all keys and has fallen silent."""
    lost = FakeReplica(mesh.channel, "v1", "lost")
    lost.fenced_after_s = fenced_after_s
    await members.enter_async_context(lost)
    await lost.report("READY", stamp=1)
    await router.wait_for(lambda table: owners(table, "digits") == {"lost": PARTITIONS}, "it owns all")
    await lose(mesh, lost)
    return lost


async def test_the_keys_of_a_silent_replica_that_fences_itself_move_and_those_of_others_do_not(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        lost = await silent(members, mesh, router, fenced_after_s=0.5)
        await ready(mesh, members, "other")
        await router.wait_for(lambda it: owners(it, "digits") == {"other": PARTITIONS}, "its keys move")
        table = router.table
        assert [it.replica_id for it in table.departed] == ["lost"]
        # It goes on after all: it is refused, and not confirmed.
        await lost.attach()
        await wait_until(lambda: lost.ended is not None, what="it is refused")
        assert lost.acknowledged in ([], [1])


async def test_a_controller_that_starts_again_knows_which_replicas_fence_themselves(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        async with AsyncExitStack() as before:
            mesh = await before.enter_async_context(running_controller(state=tmp_path / "state"))
            await mesh.apply(MESH)
            router = await before.enter_async_context(FakeRouter(mesh.channel, "r"))
            await silent(before, mesh, router, fenced_after_s=0.5)
            after = as_if_killed(tmp_path / "state")
        again = await members.enter_async_context(running_controller(state=after))
        router = await members.enter_async_context(FakeRouter(again.channel, "r"))
        await ready(again, members, "other")
        await router.wait_for(lambda it: owners(it, "digits") == {"other": PARTITIONS}, "its keys move")


async def test_a_controller_on_hold_confirms_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        original = await Original.make(members, tmp_path)
        async with running_controller(state=original.older) as older:
            await original.router.move(older.channel)
            await wait_until(lambda: older.controller.replicas.newer, what="it is on hold")
            replica = original.replicas[0]
            await replica.move(older.channel)
            await replica.report("READY", stamp=7)
            await wait_until(
                lambda: older.controller.replicas.loads_of("a").newest is None and len(older.controller.replicas) == 1,
                what="it is attached",
            )
            assert (await older.replicas())["a"].max_ongoing == 4
            assert not replica.acknowledged
