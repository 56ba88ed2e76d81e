"""`slotmesh rollout` against a real controller, whose replicas get ready or die as a test says."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.contract.controller.test_launching import make_ready
from tests.contract.controller.test_rollouts import MESH, first, handler, is_in, roll_out
from tests.support.controllers import Controlled, eventually, running_controller
from tests.support.shell import Said, slotmesh

pytestmark = pytest.mark.asyncio


async def rollout(mesh: Controlled, *arguments: str) -> Said:
    return await slotmesh("rollout", *arguments, env={"SLOTMESH_ADDRESS": mesh.controller.address})


async def test_it_is_shown_waited_for_held_and_undone(tmp_path: Path) -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        assert (await rollout(mesh, "pause", "v1")).status == 0
        await mesh.apply(MESH % "app:New")
        said = await rollout(mesh, "status", "v1")
        assert said.status == 0
        shown = "rollout of v1 to app:New: paused, 0 of 2 new replicas ready, 2 not started yet, 2 old left"
        assert said.out == f"{shown}; it waits for `slotmesh rollout resume v1`\n"
        assert (await rollout(mesh, "resume", "v1")).status == 0
        said = await rollout(mesh, "status", "v1", "--wait", "--timeout", "10ms", "--output", "json")
        assert said.status == 3
        assert "not complete after 10ms" in said.err
        assert json.loads(said.out)["phase"] == "PROGRESSING"
        for launched in (3, 4):
            await make_ready(mesh, stack, (await mesh.wait_for_launches(launched))[-1])
        said = await rollout(mesh, "status", "v1", "--wait")
        assert said.status == 0
        assert "complete, 2 of 2 replicas ready" in said.out
        said = await rollout(mesh, "undo", "v1")
        assert said.status == 0
        assert "v1: goes back to app:Old, revision " in said.out
        env = {"SLOTMESH_ADDRESS": mesh.controller.address}
        start = await slotmesh("rollback", "0", "--dry-run", env=env)
        assert "would be that of revision 0, before anything was applied" in start.err
        empty = tmp_path / "mesh.yaml"
        empty.write_text("")
        nothing = await slotmesh("apply", str(empty), "--dry-run", env=env)
        assert (nothing.status, "names no backend, endpoint or route" in nothing.err) == (0, True)
        assert await handler(mesh) == "app:Old"


@pytest.mark.long
async def test_why_it_was_taken_back_is_told_there_and_in_the_status() -> None:
    async with running_controller(launches=True) as mesh, AsyncExitStack() as stack:
        await first(mesh, stack)
        await mesh.apply(MESH % "app:Raises")
        assert mesh.launcher is not None
        for number in range(3, 6):
            mesh.launcher.exit((await mesh.wait_for_launches(number))[-1], "exited with status 1")
        await eventually(lambda: is_in(mesh, "COMPLETE"), what="taken back")
        said = await rollout(mesh, "status", "v1")
        assert said.status == 1
        why = "3 replicas have died one after another, the newest so: exited with status 1"
        assert why in said.out
        status = await slotmesh("status", env={"SLOTMESH_ADDRESS": mesh.controller.address})
        assert why in " ".join(status.out.split())
        await roll_out(mesh, stack, "app:New")
        assert (await rollout(mesh, "status", "v1")).status == 0, "the next one is another one"


async def test_a_backend_that_is_not_there_and_a_controller_without_rollouts_are_told() -> None:
    async with running_controller() as mesh:
        assert "no backend is named 'v1'" in (await rollout(mesh, "status", "v1")).err
        await mesh.apply(MESH % "app:Old")
        assert "launches no replicas" in (await rollout(mesh, "status", "v1")).err
