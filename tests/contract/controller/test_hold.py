"""A controller that starts decides nothing before routers have reported which table they hold, over real gRPC.

So one whose state file is an older copy leaves no trace at members, and the newest file goes on where it was.
"""

from __future__ import annotations

import io
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from controller_service.core.observed import replica_groups
from controller_service.shell.mesh_state import Concern, Key
from slotmesh.cli.commands.scale import scale
from slotmesh.cli.commands.traffic import as_json, print_traffic
from slotmesh.cli.console import NOT_IN_TIME, CommandFailed
from slotmesh.cli.operator import Operator
from slotmesh.errors import BadRequest
from slotmesh.runtime.loop_slices import LoopSlices
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.contract.controller.test_older_state import MESH, newer_members
from tests.support.controllers import Controlled, as_if_killed, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

LONG_S = 120.0
"""Longer than any test."""


class Copied:
    """A mesh with one ready replica, whose state file was copied before it got another backend."""

    def __init__(self, router: FakeRouter, replica: FakeReplica, older: Path, newest: Path) -> None:
        self.router = router
        self.replica = replica
        self.older = older
        self.newest = newest

    @classmethod
    async def make(cls, members: AsyncExitStack, folder: Path) -> Copied:
        mesh = await members.enter_async_context(running_controller(state=folder / "state"))
        await mesh.apply(MESH)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "a"))
        await replica.report("READY")
        await wait_until(lambda: mesh.controller.store.read().roster.members, what="the roster")
        older = as_if_killed(folder / "state", "older")
        changed = await mesh.apply('backends: {v2: {handler: "app:Digits"}}')
        router.brings = await router.wait_for(lambda it: it.revision >= changed.revision, "the newest table")
        await router.cut()
        await replica.cut()
        return cls(router, replica, older, as_if_killed(folder / "state", "newest"))


async def attach_as_configured(replica: FakeReplica, mesh: Controlled) -> None:
    """It reports the version of its newest configuration, and is known to the controller."""
    last = replica.configurations[-1]
    replica.generation, replica.revision, replica.term_id = last.generation, last.revision, last.term_id
    await replica.move(mesh.channel)
    await replica.report("READY", stamp=7)
    await wait_until(lambda: replica.replica_id in mesh.controller.replicas._links, what="it is attached")


async def test_an_older_copy_leaves_no_trace_before_routers_have_reported_and_the_newest_file_goes_on(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as members:
        mesh = await Copied.make(members, tmp_path)
        configured = len(mesh.replica.configurations)
        async with running_controller(state=mesh.older, heard_within_s=LONG_S) as copy:
            await attach_as_configured(mesh.replica, copy)
            await wait_until(
                lambda: mesh.replica.holds == [True], what="the controller is alive, and waits for routers"
            )
            assert not await newer_members(copy), "both files know what this replica holds"
            await mesh.router.move(copy.channel)
            await wait_until(lambda: mesh.router.holds == 1, what="the router knows of the hold")
            await wait_until(lambda: mesh.replica.holds == [True, False], what="so does the replica")
            assert await newer_members(copy)
            assert len(mesh.replica.configurations) == configured
            assert not mesh.replica.acknowledged, "a fence is not moved by a controller that may not lead"
        async with running_controller(state=mesh.newest, heard_within_s=LONG_S) as again:
            await attach_as_configured(mesh.replica, again)
            await mesh.router.move(again.channel)
            await wait_until(lambda: len(mesh.replica.configurations) > configured, what="the newest configures it")
            assert not await newer_members(again)


async def test_a_start_without_routers_waits_no_longer_than_its_bound(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        mesh = await Copied.make(members, tmp_path)
        configured = len(mesh.replica.configurations)
        async with running_controller(state=mesh.newest, heard_within_s=0.5) as again:
            await attach_as_configured(mesh.replica, again)
            await wait_until(lambda: len(mesh.replica.configurations) > configured, what="it is configured")


@pytest.mark.parametrize("waits", [True, False])
async def test_what_an_older_copy_starts_is_withdrawn_and_it_starts_nothing_before_routers_have_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    monkeypatch.setattr(replica_groups, "RETURN_WITHIN_S", 0.0)  # replaced as soon as it does not come back
    more, fewer = (MESH.replace("num_replicas: 1", f"num_replicas: {count}") for count in (3, 2))
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(launches=True, state=tmp_path / "state"))
        await mesh.apply(more)
        replicas = []
        for replica_id in await mesh.wait_for_launches(3):
            replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", replica_id))
            await replica.report("READY")
            replicas.append(replica)
        router = await members.enter_async_context(FakeRouter(mesh.channel, "r"))
        await wait_until(lambda: len(mesh.controller.store.read().roster.members) == 3, what="the roster")
        older = as_if_killed(tmp_path / "state")
        changed = await mesh.apply(fewer)
        await wait_until(lambda: any(it.drains for it in replicas), what="one drains")
        gone = next(it for it in replicas if it.drains)
        await gone.report("STOPPED")
        router.brings = await router.wait_for(lambda it: it.revision >= changed.revision, "the newest table")
        assert mesh.launcher is not None
        left = [it for it in mesh.launcher.running.values() if it.replica_id != gone.replica_id]
        heard_within_s = LONG_S if waits else 0.0
        async with running_controller(launches=True, state=older, found=left, heard_within_s=heard_within_s) as copy:
            assert copy.launcher is not None
            launched = [] if waits else await copy.wait_for_launches(1)
            await router.move(copy.channel)
            await wait_until(lambda: router.holds, what="the hold")
            await copy.controller.loop._pass([Key(Concern.BACKEND, "v1")], LoopSlices())
            assert [it.replica_id for it in copy.launcher.started] == launched
            assert [*copy.launcher.stopped] == launched


async def test_all_routers_that_the_table_of_one_names_are_waited_for(tmp_path: Path) -> None:
    async with AsyncExitStack() as members:
        mesh = await members.enter_async_context(running_controller(state=tmp_path / "state"))
        await mesh.apply(MESH)
        replica = await members.enter_async_context(FakeReplica(mesh.channel, "v1", "a"))
        await replica.report("READY")
        one = await members.enter_async_context(FakeRouter(mesh.channel, "r-1", "127.0.0.1:7001"))
        other = await members.enter_async_context(FakeRouter(mesh.channel, "r-2", "127.0.0.1:7002"))
        one.brings = await one.wait_for(
            lambda it: len(it.router_addresses) == 2 and any(each.replicas for each in it.backends), "both are named"
        )
        state = as_if_killed(tmp_path / "state")
        async with running_controller(state=state, heard_within_s=LONG_S) as again:
            settled = again.controller.replicas.newer.settled
            await one.move(again.channel)
            await wait_until(lambda: len(again.controller.routers) == 1, what="one is attached")
            await attach_as_configured(replica, again)
            await wait_until(lambda: replica.holds, what="the replica is told to wait")
            assert replica.holds == [True]
            assert not settled.is_set()
            # Of the other one no table is expected: it may have started anew.
            await other.move(again.channel)
            await wait_until(settled.is_set, what="all routers have reported")


async def test_commands_state_that_a_change_takes_no_effect_during_a_hold_and_do_not_wait_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with AsyncExitStack() as members:
        mesh = await Copied.make(members, tmp_path)
        async with running_controller(state=mesh.older) as copy:
            await mesh.router.move(copy.channel)
            await attach_as_configured(mesh.replica, copy)
            await wait_until(lambda: copy.controller.replicas.newer, what="the hold")
            address, minute = copy.controller.address, timedelta(minutes=1)
            with pytest.raises(CommandFailed, match=r"(?s)scaled, .*on hold") as failed:
                await scale("v1", 2, wait=True, timeout=minute, address=address)
            assert failed.value.exit_code == NOT_IN_TIME
            assert "takes no effect" in capsys.readouterr().err
            for order in (pb.DrainReplicaRequest(replica_id="a"), pb.ForgetReplicaRequest(replica_id="a")):
                with pytest.raises(BadRequest, match="on hold"):
                    async with Operator.at(address) as operator:
                        await operator.send(order)
            assert (await copy.replicas())["a"].state == mesh_pb2.REPLICA_STATE_READY
            async with Operator.at(address) as operator:
                snapshot = await operator.snapshot()
            assert snapshot.is_on_hold
            out = io.StringIO()
            print_traffic("e", 1, snapshot, None, out)
            assert "the controller is on hold" in out.getvalue()
            assert "in force" not in out.getvalue()
            assert not any(it["current"] for it in as_json("e", 1, snapshot, None)["routers"])
