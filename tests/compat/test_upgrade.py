"""A mesh is upgraded under load, process by process, and goes back: no call of a session fails.

The order is that of docs/operations.md.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import slotmesh
from slotmesh.spec.model import Backend
from tests.compat.mixed_mesh import loading, mixed_mesh, services
from tests.support.faults import THIS, FaultyMesh, Installation
from tests.support.shell import slotmesh as command
from tests.support.tiers import long

HANDLER = """
import sys

class Interpreter:
    async def path(self) -> str:
        return sys.executable
"""


@pytest.mark.parametrize("is_upgrade", [True, long(False)])
@pytest.mark.asyncio
@pytest.mark.timeout(180)
async def test_no_call_fails_while_all_processes_are_replaced_by_those_of_the_other_version(
    is_upgrade: bool, previous: Installation, tmp_path: Path
) -> None:
    """Going back is the reverse order. The controller continues with the state file of the other version."""
    first, second = (previous, THIS) if is_upgrade else (THIS, previous)
    async with mixed_mesh(tmp_path, lambda _name: first) as mesh:
        order = [mesh.controller, *mesh.routers, *mesh.replicas]
        async with loading(mesh, previous) as (clients, log):
            generation = (await mesh.members()).generation
            for service in order if is_upgrade else reversed(order):
                await mesh.start_of(service, second, log)
                await clients.wait_for_progress()
            members = await mesh.members()
            assert members.generation == generation, "it is the same state"
            assert {it.installation for it in order} == {second}


@pytest.mark.asyncio
async def test_launched_replicas_stay_while_their_controller_is_replaced_and_successors_are_of_its_version(
    previous: Installation, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(HANDLER, "utf-8")
    old, new = (replace(it, folder=project) for it in (previous, THIS))
    async with services(tmp_path) as make:
        flags = ("--launcher=process", "--on-stop=leave", f"--state={tmp_path / 'mesh.state'}")
        controller = make("controller", "controller_service", *flags, f"--launch-dir={tmp_path / 'launched'}", of=old)
        mesh = FaultyMesh(controller, Backend(name="app", handler="app:Interpreter", num_replicas=1))
        try:
            await controller.start()
            await mesh.apply()
            mesh.routers.append(make("router-1", "router_service", f"--controller={controller.address}", of=old))
            await mesh.routers[0].start()
            await mesh.wait_linked(1)
            launched = await mesh.replica_pids()
            async with slotmesh.connect(mesh.addresses) as client:
                assert await client.endpoint("app").path() == previous.python

                await controller.stop()
                controller.installation = new
                await controller.start()
                await mesh.wait_linked(1)
                assert await mesh.replica_pids() == launched
                assert await client.endpoint("app").path() == previous.python

                drained = await command("drain", "--wait", *launched, f"--controller={controller.address}")
                assert drained.status == 0, drained
                await mesh.wait_linked(1, without=launched)
                assert await client.endpoint("app").path() == sys.executable
        finally:
            await command("scale", "app", "0", "--wait", f"--controller={controller.address}")
            await mesh.stop()
