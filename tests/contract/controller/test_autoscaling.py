"""A controller whose number of replicas follows the load that routers report."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2

from controller_service.core.event_log import EventKind
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2
from tests.support.controllers import Controlled, as_if_killed, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.wait import wait_until

MESH = """
backends:
  v1: {handler: "app:Digits", graceful_timeout: 0s, autoscale: {%s}}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""
FROM_ZERO = "min: 0, max: 8, target_ongoing: 5, up_delay: 0s, up_rate: 100"


def load(queued: int = 0, ongoing: int = 0) -> mesh_pb2.BackendLoad:
    return mesh_pb2.BackendLoad(backend="v1", queued=queued, ongoing=ongoing, queue_time=duration_pb2.Duration(nanos=1))


async def make_ready(mesh: Controlled, stack: AsyncExitStack, count: int, attached: int = 0) -> None:
    """Replicas that were launched attach and get ready, until there are that many; the first `attached` are."""
    while attached < count:
        launcher = mesh.launcher
        assert launcher is not None
        await wait_until(lambda: len(launcher.started) > attached, what="a launch")  # noqa: B023
        replica = await stack.enter_async_context(
            FakeReplica(mesh.channel, "v1", launcher.started[attached].replica_id)
        )
        await replica.report("READY")
        attached += 1


def number(mesh: Controlled) -> int:
    return mesh.controller.state.observed.scales["v1"].number


@pytest.mark.asyncio
async def test_from_zero_the_first_report_of_a_waiting_call_starts_a_replica() -> None:
    async with (
        running_controller(launches=True) as mesh,
        FakeRouter(mesh.channel, "r") as router,
        AsyncExitStack() as stack,
    ):
        await mesh.apply(MESH % FROM_ZERO)
        table = await router.wait_for(lambda table: len(table.backends) == 1, "the backend")
        assert table.backends[0].prospect == mesh_pb2.PROSPECT_COMING, "calls wait for it"
        await router.acknowledge(loads=[load()])
        await wait_until(lambda: "v1" in mesh.controller.state.observed.scales, what="a look")
        assert not (await mesh.replicas())
        watch = mesh.operator.WatchEvents(pb.WatchEventsRequest(kinds=[pb.EVENT_KIND_BACKEND_SCALED]))
        await watch.initial_metadata()
        await router.acknowledge(loads=[load(queued=1)])
        await make_ready(mesh, stack, 1)
        event = await watch.read()
        assert (event.resource, event.kind) == ("backend/v1", EventKind.BACKEND_SCALED.value)
        assert event.message.startswith("from 0 to 1 replicas: 1 calls wait or run (1 and 0)")
        watch.cancel()

        # The load grows: replicas are asked for while the first one serves.
        await router.acknowledge(loads=[load(queued=5, ongoing=35)])
        await make_ready(mesh, stack, 8, attached=1)
        assert number(mesh) == 8


@pytest.mark.asyncio
async def test_figures_are_summed_over_routers_until_they_are_gone() -> None:
    async with (
        running_controller(launches=True) as mesh,
        FakeRouter(mesh.channel, "r1", "127.0.0.1:7171") as one,
        FakeRouter(mesh.channel, "r2", "127.0.0.1:7172") as two,
    ):
        await mesh.apply(MESH % FROM_ZERO)
        for router in (one, two):
            await router.wait_for(lambda table: len(table.backends) == 1, "the backend")
        await one.acknowledge(loads=[load(ongoing=12)])
        await two.acknowledge(loads=[load(ongoing=13)])
        await wait_until(lambda: number(mesh) > 0, what="replicas")
        scale = mesh.controller.state.observed.scales["v1"]
        await wait_until(lambda: mesh.controller.state.observed.scales["v1"].latest.figures.load == 25, what="the sum")
        assert scale.number in {3, 5}
        await two.say_goodbye()
        await wait_until(lambda: mesh.controller.state.observed.scales["v1"].latest.figures.load == 12, what="one left")
        assert mesh.controller.state.observed.scales["v1"].latest.figures.routers == 1


@pytest.mark.asyncio
async def test_what_runs_at_the_start_of_a_controller_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with running_controller(launches=True, state=state) as mesh, AsyncExitStack() as stack:
        await mesh.apply(MESH % "min: 1, max: 8, target_ongoing: 5, up_delay: 0s, up_rate: 100, down_delay: 0s")
        await make_ready(mesh, stack, 1)
        router = await stack.enter_async_context(FakeRouter(mesh.channel, "r"))
        await router.wait_for(lambda table: len(table.backends) == 1, "the backend")
        await router.acknowledge(loads=[load(ongoing=20)])
        await mesh.wait_for_launches(4)
        await make_ready(mesh, stack, 4, attached=1)
        await router.wait_for(lambda table: len(table.backends[0].replicas) == 4, "all of them")
        killed = as_if_killed(state)
    async with running_controller(launches=True, state=killed) as mesh:
        await wait_until(lambda: "v1" in mesh.controller.state.observed.scales, what="a look")
        scale = mesh.controller.state.observed.scales["v1"]
        assert (scale.number, scale.changed) == (4, None), "nothing is known of the load yet"
        assert mesh.launcher is not None
        assert not mesh.launcher.stopped


@pytest.mark.asyncio
async def test_either_a_number_or_autoscale_and_only_policies_that_there_are() -> None:
    async with running_controller(launches=True) as mesh:
        autoscale = mesh_pb2.Autoscale(policy="os:abort")
        backend = mesh_pb2.Backend(name="v1", handler="a:B", num_replicas=2, autoscale=autoscale)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await mesh.operator.ApplyBackend(pb.ApplyBackendRequest(backend=backend))
        told = str(caught.value.details())
        assert "backend.num_replicas: contradicts autoscale" in told
        assert "'os:abort' is none of this controller's --autoscale-policies (there is none)" in told


@pytest.mark.asyncio
async def test_autoscale_that_is_taken_away_leaves_the_number_to_the_settings() -> None:
    async with running_controller(launches=True) as mesh:
        await mesh.apply(MESH % "min: 3, max: 8")
        await mesh.wait_for_launches(3)
        assert mesh.launcher is not None
        await mesh.apply((MESH % "").replace("autoscale: {}", "num_replicas: 1"))
        await wait_until(lambda: len(mesh.launcher.running) == 1, what="one that is left")  # type: ignore[union-attr]
        await asyncio.sleep(0)
        assert not mesh.controller.state.observed.scales
