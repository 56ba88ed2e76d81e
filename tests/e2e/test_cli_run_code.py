"""`slotmesh run` runs what was applied: edited files reach no replica before they are applied, or reloaded."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

import slotmesh
from tests.e2e.test_cli_run_file import PORTS, rewrite
from tests.support.controllers import eventually
from tests.support.mesh import MeshRun, mesh_run
from tests.support.shell import slotmesh as command

pytestmark = pytest.mark.asyncio

APP = """
class App:
    async def ask(self) -> str:
        return "{answer}"
"""
FILE = """
backends:
  app: {handler: "app:App", num_replicas: 2, balancer: round_robin}
  named: {handler: "app:App", version: "1.0", num_replicas: 2, balancer: round_robin}
endpoints:
  app: {traffic: {app: 1.0}}
  named: {traffic: {named: 1.0}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The project; what the mesh keeps for itself goes into a folder beside it."""
    (tmp_path / "temporary").mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "app.py").write_text(APP.format(answer="one"))
    (folder / "mesh.yaml").write_text(FILE)
    return folder


async def answers(mesh: MeshRun, endpoint: str) -> set[str]:
    """Of so many calls that each replica had some."""
    async with slotmesh.connect(mesh.router_address) as client:
        app = client.endpoint(endpoint)
        return {await app.ask() for _ in range(20)}


async def test_edited_code_runs_when_it_is_applied(folder: Path) -> None:
    temporary = folder.parent / "temporary"
    (folder / "mesh.yaml").write_text(FILE.replace("num_replicas: 2", "num_replicas: 1"))
    async with mesh_run("mesh.yaml", *PORTS, cwd=folder, env={"TMPDIR": str(temporary)}) as mesh:
        await mesh.wait_ready()
        at = ("--address", mesh.controller_address)
        rewrite(folder / "app.py", APP.format(answer="two"))
        planned = await command("apply", "mesh.yaml", "--dry-run", *at, cwd=folder)
        assert planned.status == 0, planned
        size = (folder / "app.py").stat().st_size
        assert f"slotmesh: code of app: 1 file, {size} bytes, of {folder}; changed: app.py\n" in planned.err
        rewrite(folder / "app.py", APP.format(answer="two").replace("class App", "class Ap"))
        planned = await command("apply", "mesh.yaml", "--dry-run", *at, cwd=folder)
        assert "backend/app will not start: module 'app' has no App; did you mean Ap?" in planned.err
        rewrite(folder / "app.py", APP.format(answer="two"))
        applied = await command("apply", "mesh.yaml", "--yes", "--wait", *at, cwd=folder)
        assert applied.status == 0, applied
        assert "updated   backend/app" in applied.out
        assert "unchanged backend/named" in applied.out
        assert "version '1.0'" in applied.out + applied.err, "it says that this one keeps its code"
        assert (await answers(mesh, "app"), await answers(mesh, "named")) == ({"two"}, {"one"})

        shown = (await mesh.members()).replicas
        assert {it.handler_version for it in shown if it.backend == "named"} == {"1.0"}
        (version,) = {it.handler_version for it in shown if it.backend == "app"}
        assert version.startswith("file:")
        assert version in (await command("status", *at)).out

        (code,) = temporary.glob("slotmesh-*/code")
        assert len([*code.iterdir()]) == 2
        assert stat.S_IMODE(code.parent.stat().st_mode) == 0o700, "nobody else reads them"
        mesh.process.terminate()
        assert await mesh.wait_ended() == 0
        assert not [*temporary.glob("slotmesh-*")]


@pytest.mark.long
async def test_a_replica_that_is_killed_or_added_runs_what_was_applied(folder: Path) -> None:
    async with mesh_run("mesh.yaml", *PORTS, cwd=folder) as mesh:
        await mesh.wait_ready()
        at = ("--address", mesh.controller_address)
        rewrite(folder / "app.py", APP.format(answer="two"))
        applied = await command("apply", "mesh.yaml", "--yes", "--wait", *at, cwd=folder)
        assert applied.status == 0, applied
        assert (await answers(mesh, "app"), await answers(mesh, "named")) == ({"two"}, {"one"})

        rewrite(folder / "app.py", APP.format(answer="three"))
        for backend in ("app", "named"):
            old = min(it for it in await mesh.replica_pids() if it.startswith(f"{backend}-"))
            await mesh.kill_replica(old)
            await mesh.wait_for_replicas(4, without=old, timeout=60.0)
        for backend in ("app", "named"):
            scaled = await command("scale", backend, "3", "--wait", *at)
            assert scaled.status == 0, scaled
        await mesh.wait_for_replicas(6, timeout=60.0)
        assert (await answers(mesh, "app"), await answers(mesh, "named")) == ({"two"}, {"one"})


@pytest.mark.long
async def test_a_replica_that_is_killed_while_the_file_is_broken_comes_back(folder: Path) -> None:
    async with mesh_run("mesh.yaml", "--reload", *PORTS, cwd=folder) as mesh:
        await mesh.wait_ready()
        rewrite(folder / "app.py", "this is no Python")
        await eventually(lambda: _logs(mesh, "not reloaded, what runs goes on"), what="the refusal of the reload")
        old = await mesh.kill_replica()
        await mesh.wait_for_replicas(4, without=old, timeout=60.0)
        assert await answers(mesh, "app") == await answers(mesh, "named") == {"one"}

        # The file of the mesh changes; what it would bring with it is still broken.
        rewrite(folder / "mesh.yaml", FILE.replace("num_replicas: 2", "num_replicas: 1"))
        await eventually(lambda: _logs(mesh, "not reloaded, what runs goes on", 2), what="nothing of it is applied")
        assert len(await mesh.replica_pids()) == 4

        rewrite(folder / "app.py", APP.format(answer="two"))
        await eventually(lambda: _answer(mesh, "two"), what="the mended file is applied", timeout=60.0)
        await mesh.wait_for_replicas(2, timeout=60.0)


@pytest.mark.long
async def test_a_reload_whose_constructor_fails_says_that_it_was_taken_back_and_one_that_works_that_it_is_done(
    folder: Path,
) -> None:
    async with mesh_run("mesh.yaml", "--reload", *PORTS, cwd=folder) as mesh:
        await mesh.wait_ready()
        # Before that there is nothing to go back to.
        rolled_out = await command("rollout", "status", "app", "--wait", "--address", mesh.controller_address)
        assert rolled_out.status == 0
        rewrite(
            folder / "app.py", APP.format(answer="two") + "    def __init__(self) -> None:\n        raise ValueError\n"
        )
        await eventually(lambda: _logs(mesh, "app: the change failed: rolled back"), what="the end of it", timeout=60.0)
        assert await answers(mesh, "app") == {"one"}
        rewrite(folder / "app.py", APP.format(answer="three"))
        await eventually(lambda: _logs(mesh, "app: all replicas are replaced"), what="its end", timeout=60.0)
        assert await answers(mesh, "app") == {"three"}


async def test_all_that_is_wrong_before_a_start_is_said_at_once(folder: Path) -> None:
    (folder / "broken.py").write_text("import nosuchmodule")
    (folder / "mesh.yaml").write_text(
        'backends: {a: {handler: "broken:App"}, b: {handler: "app:Absent"}, c: {handler: "app:App"}}'
    )
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
            each.listen()
        ports = [str(each.getsockname()[1]) for each in (one, other)]
        said = await command("run", "mesh.yaml", "--router-port", ports[0], "--controller-port", ports[1], cwd=folder)
    assert said.status == 2
    for text in (*(f"port {it} is in use" for it in ports), "No module named 'nosuchmodule'", "app has no Absent"):
        assert text in said.err
    assert said.err.count("nothing was started") == 2


@pytest.mark.long
async def test_a_project_that_is_too_large_is_run_with_the_variable_that_the_refusal_names(folder: Path) -> None:
    (folder / "weights").write_bytes(b"x" * 2_000)
    environment = {"SLOTMESH_MAX_CODE_SIZE": "1KiB"}
    refused = await command("run", "mesh.yaml", *PORTS, cwd=folder, env=environment)
    assert refused.status == 1
    assert "(SLOTMESH_MAX_CODE_SIZE, also for `slotmesh run`)" in refused.err
    async with mesh_run("mesh.yaml", *PORTS, cwd=folder, env={"SLOTMESH_MAX_CODE_SIZE": "10KiB"}) as mesh:
        await mesh.wait_ready()


async def _logs(mesh: MeshRun, text: str, times: int = 1) -> bool:
    return mesh.log_text().count(text) >= times


async def _answer(mesh: MeshRun, wanted: str) -> bool:
    app, named = await asyncio.gather(answers(mesh, "app"), answers(mesh, "named"))
    return app == named == {wanted}
