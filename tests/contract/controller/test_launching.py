"""A controller that launches: replicas start, fail, die and stop, with a scripted launcher."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from controller_service.core.observed.transitions import FIRST_INTERVAL_S
from controller_service.shell.loops import launching
from slotmesh.calls.key_hash import PARTITIONS
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter, epochs, owners, replica_routes
from tests.support.wait import wait_until

MESH = """
backends:
  v1: {handler: "%s", num_replicas: %d, graceful_timeout: 0s}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""


async def make_ready(mesh: Controlled, stack: AsyncExitStack, *replica_ids: str) -> list[FakeReplica]:
    replicas = []
    for replica_id in replica_ids:
        replica = await stack.enter_async_context(FakeReplica(mesh.channel, "v1", replica_id))
        await replica.report("READY")
        replicas.append(replica)
    return replicas


def state_name(replica: Any) -> str:
    return mesh_pb2.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_")


@pytest.mark.asyncio
async def test_as_many_replicas_as_wanted_are_launched_with_ids_of_their_own() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Digits", 3))
        ids = await mesh.wait_for_launches(3)
        assert len(set(ids)) == 3
        assert all(replica_id.startswith("v1-") for replica_id in ids)
        assert mesh.launcher is not None
        assert {it.order.handler for it in mesh.launcher.started} == {"app:Digits"}
        assert {state_name(it) for it in (await mesh.replicas()).values()} == {"STARTING"}

        router = await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        await make_ready(mesh, stack, *ids)
        table = await router.wait_for(lambda table: "" not in (owners(table, "digits") or {"": 0}), "owners")
        assert sorted(owners(table, "digits").values()) == [1365, 1365, 1366]


@pytest.mark.asyncio
async def test_a_killed_replica_is_replaced_and_its_partitions_move_at_once() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Digits", 2))
        first, second = await mesh.wait_for_launches(2)
        router = await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        await make_ready(mesh, stack, first, second)
        half = PARTITIONS // 2
        before = await router.wait_for(lambda table: owners(table, "digits") == {first: half, second: half}, "both own")
        assert mesh.launcher is not None
        mesh.launcher.exit(first)
        after = await router.wait_for(lambda table: owners(table, "digits") == {second: PARTITIONS}, "one owns all")
        assert first not in replica_routes(after, "v1")
        assert sum(epochs(after, "digits")) == sum(epochs(before, "digits")) + half

        *_, third = await mesh.wait_for_launches(3)  # half a second later: it was a quick death
        assert third not in {first, second}
        await make_ready(mesh, stack, third)
        await router.wait_for(lambda table: third in replica_routes(table, "v1"), "the replacement")
        table = next(it for it in router.tables if third in replica_routes(it, "v1"))
        assert owners(table, "digits") == {second: PARTITIONS}, "it gets partitions later"
        listed = await mesh.replicas()
        assert first not in listed
        told = {each: (listed[each].restart_count, listed[each].last_exit) for each in (second, third)}
        assert told == {second: (0, ""), third: (1, "was killed by SIGKILL")}
        assert listed[third].version == "0.2.0"


@pytest.mark.asyncio
@pytest.mark.parametrize("exit_is_seen_first", [False, True])
async def test_a_broken_handler_is_listed_with_its_traceback_and_tried_again_later(exit_is_seen_first: bool) -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        watching = mesh.operator.WatchEvents(pb.WatchEventsRequest())
        await watching.initial_metadata()
        await mesh.apply(MESH % ("app:Broken", 1))
        (first,) = await mesh.wait_for_launches(1)
        replica = await stack.enter_async_context(FakeReplica(mesh.channel, "v1", first))
        traceback = "Traceback (most recent call last):\nValueError: no model"
        assert mesh.launcher is not None
        now = asyncio.get_running_loop().time
        failed_at = now()
        if exit_is_seen_first:
            mesh.launcher.exit(first, "exited with status 1")
        await replica.report("FAILED", error=traceback)
        await wait_until(lambda: mesh.controller.state.observed.replica(first).error == traceback, what="the report")  # type: ignore[union-attr]
        mesh.launcher.exit(first, "exited with status 1")
        listed = (await mesh.replicas())[first]
        assert (state_name(listed), listed.error) == ("FAILED", traceback)
        async with asyncio.timeout(20.0):
            while (event := await watching.read()).kind != pb.EVENT_KIND_REPLICA_FAILED:
                pass
        assert "no model" in event.message
        watching.cancel()

        # The replacement gets ready: nobody needs to know any more.
        _, second = await mesh.wait_for_launches(2)
        assert now() - failed_at >= FIRST_INTERVAL_S
        assert first in await mesh.replicas()
        await make_ready(mesh, stack, second)
        await wait_until(lambda: mesh.controller.state.observed.replica(first) is None, what="forgetting")


@pytest.mark.asyncio
async def test_a_process_that_ends_before_it_attached_has_failed() -> None:
    async with running_controller(launches=True) as mesh:
        await mesh.apply(MESH % ("app:Digits", 1))
        (first,) = await mesh.wait_for_launches(1)
        assert mesh.launcher is not None
        mesh.launcher.exit(first, "exited with status 1")
        await wait_until(lambda: mesh.controller.state.observed.replica(first).gone, what="its end")  # type: ignore[union-attr]
        listed = (await mesh.replicas())[first]
        assert (state_name(listed), listed.error) == ("FAILED", "exited with status 1")


@pytest.mark.asyncio
async def test_a_launcher_that_cannot_start_anything_is_tried_again() -> None:
    async with running_controller(launches=True) as mesh:
        assert mesh.launcher is not None
        mesh.launcher.refusal = "no memory"
        await mesh.apply(MESH % ("app:Digits", 1))
        await wait_until(lambda: mesh.controller.state.observed.by_backend, what="the failure")
        listed = await mesh.replicas()
        assert {(state_name(each), each.error) for each in listed.values()} == {("FAILED", "no memory")}
        mesh.launcher.refusal = ""
        await mesh.wait_for_launches(1)


@pytest.mark.asyncio
async def test_scaling_down_drains_the_newest_and_scaling_up_starts_more() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Digits", 1))
        (first,) = await mesh.wait_for_launches(1)
        await make_ready(mesh, stack, first)
        await mesh.apply(MESH % ("app:Digits", 3))
        _, second, third = await mesh.wait_for_launches(3)
        replicas = await make_ready(mesh, stack, second, third)
        await mesh.apply(MESH % ("app:Digits", 1))
        assert mesh.launcher is not None
        await wait_until(lambda: set(mesh.launcher.running) == {first}, what="one left")  # type: ignore[union-attr]
        await wait_until(lambda: all(len(replica.drains) == 1 for replica in replicas), what="both told")


@pytest.mark.asyncio
async def test_another_handler_replaces_replicas_new_first() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Old", 2))
        old = await mesh.wait_for_launches(2)
        await make_ready(mesh, stack, *old)
        await mesh.apply((MESH % ("app:New", 2)).replace("num_replicas", "max_surge: 2, num_replicas"))
        new = (await mesh.wait_for_launches(4))[2:]
        assert mesh.launcher is not None
        await make_ready(mesh, stack, new[0])
        assert not mesh.launcher.stopped
        await make_ready(mesh, stack, new[1])
        await wait_until(lambda: set(mesh.launcher.running) == set(new), what="only new ones")  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_deleting_a_backend_ends_its_replicas() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Digits", 2))
        await make_ready(mesh, stack, *await mesh.wait_for_launches(2))
        await mesh.apply("{}", prune=True)
        assert mesh.launcher is not None
        await wait_until(lambda: not mesh.launcher.running, what="all gone")  # type: ignore[union-attr]
        await wait_until(lambda: not mesh.controller.state.observed.by_backend, what="all forgotten")
        assert len(mesh.launcher.started) == 2


@pytest.mark.asyncio
async def test_a_drained_replica_is_replaced() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Digits", 1))
        (first,) = await mesh.wait_for_launches(1)
        await make_ready(mesh, stack, first)
        await wait_until(lambda: mesh.controller.state.observed.replica(first).takes_calls, what="ready")  # type: ignore[union-attr]
        await mesh.operator.DrainReplica(pb.DrainReplicaRequest(replica_id=first))
        await mesh.wait_for_launches(2)  # at once: it was asked for, it is no failure
        assert mesh.launcher is not None
        await wait_until(lambda: first not in mesh.launcher.running, what="its end")  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_somebody_else_cannot_take_the_place_of_a_launched_replica_that_lives() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % ("app:Digits", 1))
        (first,) = await mesh.wait_for_launches(1)
        (real,) = await make_ready(mesh, stack, first)
        await wait_until(lambda: real.configurations, what="attached")
        impostor = await stack.enter_async_context(FakeReplica(mesh.channel, "v1", first))
        await wait_until(lambda: impostor.is_ended, what="the refusal")
        assert "launched" in str(impostor.ended)
        assert not real.is_ended


@pytest.mark.asyncio
async def test_the_controller_takes_its_replicas_with_it_and_routers_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launching, "KILL_MARGIN_S", 1.0)
    async with AsyncExitStack() as stack:
        # Members outlive the controller, and the channels of their own with them.
        async with running_controller(launches=True) as mesh:
            launcher = mesh.launcher
            assert launcher is not None
            await mesh.apply(MESH % ("app:Digits", 2))
            ids = await mesh.wait_for_launches(2)
            launcher.stubborn = set(ids)  # they drain until they are killed
            channel = await stack.enter_async_context(open_channel(mesh.controller.address))
            router = await stack.enter_async_context(FakeRouter(channel, "r"))
            replicas = [await stack.enter_async_context(FakeReplica(channel, "v1", it)) for it in ids]
            for replica in replicas:
                await replica.report("READY")
            await router.wait_for(lambda table: len(replica_routes(table, "v1")) == 2, "both")
        assert not launcher.running
        assert sorted(launcher.stopped) == sorted(ids)
        assert len(launcher.started) == 2
        assert all(replica.drains == ["0 should run"] for replica in replicas)
        drained = [table for table in router.tables if any(it.draining for it in replica_routes(table, "v1").values())]
        assert drained
        await wait_until(lambda: router.is_ended, what="the end of the router's stream")
