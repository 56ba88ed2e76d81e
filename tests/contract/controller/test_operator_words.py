"""What operators have ordered is shown, over real gRPC: pauses, drains, and which code each replica runs."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from slotmesh.cli.operator import Operator
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import rollout_pb2
from tests.contract.controller.test_launching import make_ready
from tests.contract.controller.test_rollouts import first, is_in, rollout
from tests.support.controllers import Controlled, as_if_killed, running_controller
from tests.support.fakes.members import FakeReplica

pytestmark = pytest.mark.asyncio

OPERATOR = (("slotmesh-client", "night-shift"),)
VERSIONED = """
backends:
  v1: {handler: "app:Digits", version: "%s", num_replicas: 2, graceful_timeout: 0s, min_ready: 0s}
"""


async def events(mesh: Controlled, *kinds: pb.EventKind.ValueType) -> list[pb.WatchEventsResponse]:
    """Those that are kept."""
    request = pb.WatchEventsRequest(kinds=kinds, from_oldest=True, until_newest=True)
    return [event async for event in mesh.operator.WatchEvents(request)]


async def pause(mesh: Controlled) -> None:
    await mesh.operator.PauseRollout(pb.PauseRolloutRequest(backend="v1"), metadata=OPERATOR)


async def resume(mesh: Controlled) -> None:
    await mesh.operator.PauseRollout(pb.PauseRolloutRequest(resume=True, backend="v1"), metadata=OPERATOR)


async def test_a_pause_is_shown_while_the_rollout_is_complete_and_by_the_next_controller(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as life:
        mesh = await life.enter_async_context(running_controller(launches=True, state=tmp_path / "state"))
        await first(mesh, stack)
        assert not (await rollout(mesh)).paused
        await pause(mesh)
        assert await is_in(mesh, "COMPLETE"), "nothing is being replaced"
        assert (await rollout(mesh)).paused
        async with running_controller(launches=True, state=as_if_killed(tmp_path / "state")) as mesh:
            assert (await rollout(mesh)).paused
            await resume(mesh)
            assert not (await rollout(mesh)).paused


async def test_a_pause_and_its_end_are_events_with_the_name_of_the_operator() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        await pause(mesh)
        await pause(mesh)
        await resume(mesh)
        told = await events(mesh, pb.EVENT_KIND_ROLLOUT_PAUSED, pb.EVENT_KIND_ROLLOUT_RESUMED)
    assert [it.kind for it in told] == [pb.EVENT_KIND_ROLLOUT_PAUSED, pb.EVENT_KIND_ROLLOUT_RESUMED]
    assert {it.resource for it in told} == {"backend/v1"}
    assert all("night-shift at " in it.message for it in told), told


async def test_the_command_line_pauses_and_resumes_under_its_own_name() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        async with Operator.at(mesh.controller.address) as operator:
            await operator.send(pb.PauseRolloutRequest(backend="v1"))
            assert (await rollout(mesh)).paused
            await operator.send(pb.PauseRolloutRequest(resume=True, backend="v1"))
            assert not (await rollout(mesh)).paused
        told = await events(mesh, pb.EVENT_KIND_ROLLOUT_PAUSED, pb.EVENT_KIND_ROLLOUT_RESUMED)
    assert len(told) == 2
    assert all("slotmesh at 127.0.0.1:" in it.message for it in told), told


async def test_a_drain_is_an_event_with_the_name_of_the_operator() -> None:
    async with running_controller() as mesh, AsyncExitStack() as stack:
        await mesh.apply('backends: {v1: {handler: "app:One"}}')
        for name in "abc":
            replica = await stack.enter_async_context(FakeReplica(mesh.channel, "v1", name))
            await replica.report("READY")
        await mesh.operator.DrainReplica(pb.DrainReplicaRequest(replica_id="b"), metadata=OPERATOR)
        (drained,) = await events(mesh, pb.EVENT_KIND_REPLICA_DRAINING)
    assert drained.resource == "replica/b"
    assert "night-shift at " in drained.message


async def versions(mesh: Controlled, ids: Collection[str]) -> list[str]:
    replicas = await mesh.replicas()
    return [replicas[it].handler_version for it in ids]


async def test_which_code_each_replica_runs_is_shown_in_the_midst_of_a_rollout() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await mesh.apply(VERSIONED % "2026.1")
        old = await mesh.wait_for_launches(2)
        await make_ready(mesh, stack, *old)
        await mesh.apply(VERSIONED % "2026.2")
        new = (await mesh.wait_for_launches(3))[2:]
        assert await versions(mesh, [*old, *new]) == ["2026.1", "2026.1", "2026.2"]
        listed = await mesh.operator.ListReplicas(pb.ListReplicasRequest(backend="v1"))
        shown = {it.replica_id: it.handler_version for it in listed.replicas}
        assert [shown[it] for it in (*old, *new)] == ["2026.1", "2026.1", "2026.2"]
        assert mesh.launcher is not None
        running = [replace(it, was_found=True) for it in mesh.launcher.running.values()]
    async with running_controller(launches=True, found=running) as mesh:
        assert await versions(mesh, [*old, *new]) == ["2026.1", "2026.1", "2026.2"], "the next controller finds them"


async def test_a_replica_that_another_program_has_started_has_no_version() -> None:
    async with running_controller() as mesh, FakeReplica(mesh.channel, "v1", "a") as replica:
        await mesh.apply(VERSIONED % "2026.1")
        await replica.report("READY")
        assert await versions(mesh, "a") == [""]


@pytest.mark.parametrize("scale", ["num_replicas: 0", "autoscale: {min: 0, max: 3}"], ids=["num_replicas", "autoscale"])
async def test_the_rollout_of_a_backend_that_should_have_no_replica_is_complete(scale: str) -> None:
    async with running_controller(launches=True) as mesh:
        await mesh.apply(f'backends: {{v1: {{handler: "app:One", {scale}}}}}')
        shown = await rollout(mesh)
        assert (shown.phase, shown.wanted) == (rollout_pb2.ROLLOUT_PHASE_COMPLETE, 0)
