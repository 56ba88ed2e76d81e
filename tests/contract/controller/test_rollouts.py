"""Rollouts as operators ask for them, by rpc: held over a restart of the controller, taken back, undone."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest

from slotmesh.cli.commands.rollout import undo
from slotmesh.cli.console import CommandFailed
from slotmesh.cli.operator import Operator
from slotmesh.convert.specification import mesh_to_wire
from slotmesh.spec.document import parse_mesh
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import rollout_pb2
from tests.contract.controller.test_launching import make_ready
from tests.support.controllers import Controlled, as_if_killed, eventually, running_controller

MESH = """
backends:
  v1: {handler: "%s", num_replicas: 2, graceful_timeout: 0s, min_ready: 0s}
"""


async def rollout(mesh: Controlled) -> rollout_pb2.Rollout:
    answer: pb.GetBackendResponse = await mesh.operator.GetBackend(pb.GetBackendRequest(name="v1"))
    return answer.backend.status.rollout


async def is_in(mesh: Controlled, phase: str) -> bool:
    return (await rollout(mesh)).phase == rollout_pb2.RolloutPhase.Value(f"ROLLOUT_PHASE_{phase}")


async def handler(mesh: Controlled) -> str:
    return str((await mesh.operator.GetBackend(pb.GetBackendRequest(name="v1"))).backend.handler)


async def roll_out(mesh: Controlled, stack: AsyncExitStack, name: str) -> None:
    """All replicas get ready, one after the other."""
    assert mesh.launcher is not None
    done = len(mesh.launcher.started)
    await mesh.apply(MESH % name)
    for number in range(1, 3):
        new = (await mesh.wait_for_launches(done + number))[-1]
        await make_ready(mesh, stack, new)
    await eventually(lambda: is_in(mesh, "COMPLETE"), what="complete")


async def first(mesh: Controlled, stack: AsyncExitStack) -> None:
    await mesh.apply(MESH % "app:Old")
    await make_ready(mesh, stack, *await mesh.wait_for_launches(2))
    await eventually(lambda: is_in(mesh, "COMPLETE"), what="the first replicas")


@pytest.mark.asyncio
async def test_replicas_are_replaced_one_by_one_and_that_can_be_undone() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        await roll_out(mesh, stack, "app:New")
        shown = await rollout(mesh)
        assert (shown.handler, shown.wanted, shown.available) == ("app:New", 2, 2)
        await mesh.operator.Rollback(pb.RollbackRequest(backend="v1"))
        assert await handler(mesh) == "app:Old"
        assert not await is_in(mesh, "COMPLETE")


@pytest.mark.asyncio
async def test_a_rollout_is_undone_although_it_cannot_be_read_after_that(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Operator, name: str) -> NoReturn:
        raise CommandFailed(f"{name}: the connection broke")

    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        await roll_out(mesh, stack, "app:New")
        monkeypatch.setattr(Operator, "backend", broken)
        command: Any = undo
        await command.__wrapped__("v1", mesh.controller.address)
        assert await handler(mesh) == "app:Old"
    printed = capsys.readouterr()
    assert printed.out.startswith("v1: goes back to what it was before, revision ")
    assert "cannot be read: v1: the connection broke" in printed.err


@pytest.mark.asyncio
async def test_a_rollout_that_is_held_is_held_by_the_next_controller_too(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as life:
        mesh = await life.enter_async_context(running_controller(launches=True, state=tmp_path / "state"))
        await first(mesh, stack)
        planned = await mesh.operator.PauseRollout(pb.PauseRolloutRequest(backend="v1", validate_only=True))
        assert not (await rollout(mesh)).paused
        assert not planned.operations
        paused = await mesh.operator.PauseRollout(pb.PauseRolloutRequest(backend="v1"))
        assert list(paused.operations) == [f"revision/{paused.revision}"]
        await mesh.apply(MESH % "app:New")
        await eventually(lambda: is_in(mesh, "PAUSED"), what="held")
        state = as_if_killed(tmp_path / "state")
        async with running_controller(launches=True, state=state) as mesh:
            assert await is_in(mesh, "PAUSED")
            resumed = await mesh.operator.PauseRollout(pb.PauseRolloutRequest(resume=True, backend="v1"))
            assert list(resumed.operations) == [f"revision/{resumed.revision}", f"rollout/v1@{resumed.revision}"]
            assert await is_in(mesh, "PROGRESSING")
            await mesh.operator.Rollback(pb.RollbackRequest(backend="v1"))
            assert await handler(mesh) == "app:Old", "what was good is known to it"


@pytest.mark.asyncio
async def test_replicas_that_die_again_and_again_take_it_back() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        old = await mesh.wait_for_launches(2)
        await mesh.apply(MESH % "app:Raises")
        assert mesh.launcher is not None
        for number in range(3, 6):
            mesh.launcher.exit((await mesh.wait_for_launches(number))[-1], "exited with status 1")
        await eventually(lambda: is_in(mesh, "COMPLETE"), what="taken back")
        assert await handler(mesh) == "app:Old"
        assert "3 replicas have died" in (await rollout(mesh)).rollback_reason
        assert mesh.launcher.running.keys() == set(old), "the old ones were never touched"


@pytest.mark.asyncio
async def test_the_same_bad_settings_have_a_new_count_when_they_are_applied_again() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        await taken_back(mesh, MESH % "app:Raises")
        await mesh.apply(MESH % "app:Raises")
        assert mesh.launcher is not None
        mesh.launcher.exit((await mesh.wait_for_launches(6))[-1], "exited with status 1")
        await mesh.wait_for_launches(7)
        assert await handler(mesh) == "app:Raises", "one death is bad luck again"


async def taken_back(mesh: Controlled, yaml: str) -> None:
    """The replicas of a file that is applied with `merge` die until the change is taken back."""
    assert mesh.launcher is not None
    done = len(mesh.launcher.started)
    await merge(mesh, yaml)
    for number in range(done + 1, done + 4):
        mesh.launcher.exit((await mesh.wait_for_launches(number))[-1], "exited with status 1")
    await eventually(lambda: is_in(mesh, "COMPLETE"), what="taken back")


async def merge(mesh: Controlled, yaml: str, *, validate_only: bool = False) -> None:
    request = pb.ApplyMeshRequest(mesh=mesh_to_wire(parse_mesh(yaml)), merge=True, validate_only=validate_only)
    await mesh.operator.ApplyMesh(request)


@pytest.mark.asyncio
async def test_a_take_back_is_reported_until_an_operator_wants_what_is_in_force() -> None:
    old, bad = MESH % "app:Old", MESH % "app:Raises"
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        await taken_back(mesh, bad)
        await merge(mesh, bad)
        await merge(mesh, old, validate_only=True)
        await mesh.apply("endpoints: {e: {}}")
        assert (await rollout(mesh)).rollback_reason, "none of these wants what is in force"
        await merge(mesh, old)
        shown = await rollout(mesh)
        assert (shown.rollback_reason, shown.HasField("rollback_time")) == ("", False)
        assert await handler(mesh) == "app:Old"


@pytest.mark.asyncio
async def test_what_cannot_be_done_is_refused() -> None:
    async with running_controller(launches=True) as mesh:
        requests = [
            mesh.operator.GetBackend(pb.GetBackendRequest(name="no")),
            mesh.operator.PauseRollout(pb.PauseRolloutRequest(backend="no")),
            mesh.operator.Rollback(pb.RollbackRequest(backend="no")),
        ]
        for request in requests:
            with pytest.raises(grpc.aio.AioRpcError, match="no backend is named 'no'"):
                await request
        await mesh.apply(MESH % "app:Old")
        with pytest.raises(grpc.aio.AioRpcError, match="nothing that v1 could go back to"):
            await mesh.operator.Rollback(pb.RollbackRequest(backend="v1"))
    async with running_controller() as mesh:
        await mesh.apply(MESH % "app:Old")
        listed = await mesh.operator.ListBackends(pb.ListBackendsRequest())
        assert not listed.backends[0].status.HasField("rollout")
        with pytest.raises(grpc.aio.AioRpcError, match="this controller starts no replicas"):
            await mesh.operator.PauseRollout(pb.PauseRolloutRequest(backend="v1"))
