"""`slotmesh run` that is stopped while calls run which do not end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import slotmesh
from tests.support.mesh import ROOT, MeshRun, mesh_run
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

APP = """
import pathlib, time

class Waits:
    def thread(self, name: str) -> str:
        pathlib.Path(name + ".began").touch()
        while not pathlib.Path(name).exists():
            time.sleep(0.01)
        return name
"""
MESH = """
endpoints: {Waits: {traffic: {v1: 1}}}
backends: {v1: {handler: "app:Waits", graceful_timeout: 1h}}
"""


@asynccontextmanager
async def with_a_call_that_runs(folder: Path) -> AsyncIterator[tuple[MeshRun, asyncio.Future[Any]]]:
    (folder / "app.py").write_text(APP)
    (folder / "mesh.yaml").write_text(MESH)
    env = {"PYTHONPATH": str(ROOT)}
    async with mesh_run("mesh.yaml", "--router-port=0", "--controller-port=0", cwd=folder, env=env) as mesh:
        await mesh.wait_ready()
        client = slotmesh.connect(mesh.router_address)
        call = client.endpoint("Waits").thread("release")
        try:
            await wait_until((folder / "release.began").exists, timeout=60, what="the call runs")
            yield mesh, call
        finally:
            (folder / "release").touch()
            await client.aclose(0)
            await asyncio.gather(call, return_exceptions=True)


@pytest.mark.long
async def test_it_says_what_it_waits_for_and_the_call_ends_well(tmp_path: Path) -> None:
    async with with_a_call_that_runs(tmp_path) as (mesh, call):
        (replica_id,) = await mesh.replica_pids()
        os.killpg(mesh.process.pid, signal.SIGINT)
        os.killpg(mesh.process.pid, signal.SIGINT)  # as launchers do that pass it on
        report = f"waiting for 1 call that runs in {replica_id}, at most 35"
        await wait_until(lambda: report in mesh.log_text(), timeout=60, what="a report")
        assert not call.done()
        (tmp_path / "release").touch()
        assert await asyncio.wait_for(call, 20) == "release"
        assert await mesh.wait_ended() == 0
        assert "killing" not in mesh.log_text()


async def test_a_second_ctrl_c_ends_all_processes_of_the_mesh(tmp_path: Path) -> None:
    async with with_a_call_that_runs(tmp_path) as (mesh, call):
        (replica_id,) = await mesh.replica_pids()
        os.killpg(mesh.process.pid, signal.SIGINT)
        await wait_until(lambda: "Ctrl-C again" in mesh.log_text(), timeout=60, what="a report")
        os.killpg(mesh.process.pid, signal.SIGINT)
        assert await mesh.wait_ended() == 130
        await wait_until(lambda: not mesh.processes(), timeout=60, what="the replica was killed as well")
        assert f"replica {replica_id} has not ended; killing it" in mesh.log_text()
        assert isinstance(await asyncio.wait_for(asyncio.gather(call, return_exceptions=True), 60), list)
