"""`slotmesh run FILE` with real processes, and `--reload`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.controllers import eventually
from tests.support.mesh import MeshRun, mesh_run
from tests.support.shell import Said, slotmesh

pytestmark = pytest.mark.asyncio

ONE = """
class Greeter:
    async def hello(self) -> str:
        return "one"
"""
TWO = """
class Adder:
    async def add(self, a: int) -> int:
        return a + 1
"""
FILE = """
backends:
  greeter: {handler: "one:Greeter", num_replicas: 2}
  adder: {handler: "two:Adder"}
endpoints:
  greet: {traffic: {greeter: 1.0}}
  add: {traffic: {adder: 1.0}}
"""
PORTS = ("--router-port=0", "--controller-port=0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "mesh.yaml").write_text(FILE)
    return tmp_path


def rewrite(path: Path, text: str) -> None:
    """As an editor saves: the file is the old or the new one, with another time."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


async def call(mesh: MeshRun, *arguments: str) -> Said:
    return await slotmesh("call", *arguments, "--address", mesh.router_address)


async def test_a_file_runs_with_all_its_backends(folder: Path) -> None:
    async with mesh_run("mesh.yaml", *PORTS, cwd=folder) as mesh:
        await mesh.wait_ready()
        hello, added = await asyncio.gather(call(mesh, "greet", "hello"), call(mesh, "endpoint/add", "add", "[1]"))
        assert (hello.out, added.out) == ('"one"\n', "2\n")
        backends = sorted(it.backend for it in (await mesh.members()).replicas)
        assert backends == ["adder", "greeter", "greeter"]
        mesh.process.terminate()
        assert await mesh.wait_ended() == 0


@pytest.mark.long
async def test_what_changed_is_replaced_and_what_cannot_be_used_is_not(folder: Path) -> None:
    async with mesh_run("mesh.yaml", "--reload", *PORTS, cwd=folder) as mesh:
        await mesh.wait_ready()
        adders = {it.replica_id for it in (await mesh.members()).replicas if it.backend == "adder"}

        rewrite(folder / "one.py", ONE.replace("return", "return return"))
        await eventually(lambda: _logs(mesh, "not reloaded, what runs goes on"), what="the refusal of the reload")
        assert "SyntaxError" in mesh.log_text()
        assert (await call(mesh, "greet", "hello")).out == '"one"\n'

        rewrite(folder / "one.py", ONE.replace('"one"', '"uno"'))
        await eventually(lambda: _answers(mesh, '"uno"'), what="the new module answers", timeout=60.0)
        assert {it.replica_id for it in (await mesh.members()).replicas if it.backend == "adder"} == adders

        rewrite(folder / "mesh.yaml", FILE.replace("num_replicas: 2", "num_replicas: none"))
        await eventually(lambda: _logs(mesh, "backends.greeter.num_replicas"), what="the mistake of the file is told")
        rewrite(
            folder / "mesh.yaml",
            FILE.replace('  adder: {handler: "two:Adder"}\n', "").replace("  add: {traffic: {adder: 1.0}}\n", ""),
        )
        await eventually(lambda: _gone(mesh, "adder"), what="what the file lacks is deleted", timeout=60.0)
        assert (await call(mesh, "greet", "hello")).out == '"uno"\n'


@pytest.mark.long
async def test_a_file_that_names_a_module_before_it_is_there_is_applied_when_it_comes(folder: Path) -> None:
    async with mesh_run("mesh.yaml", "--reload", *PORTS, cwd=folder) as mesh:
        await mesh.wait_ready()
        rewrite(folder / "mesh.yaml", FILE.replace('"two:Adder"', '"three:Adder"'))
        await eventually(lambda: _logs(mesh, "not reloaded, what runs goes on"), what="the missing module is told")
        assert (await call(mesh, "add", "add", "[1]")).out == "2\n"
        rewrite(folder / "three.py", TWO.replace("a + 1", "a + 3"))
        await eventually(lambda: _adds_three(mesh), what="the new module answers", timeout=60.0)


@pytest.mark.long
async def test_what_cannot_be_run_is_told_before_anything_starts(folder: Path) -> None:
    (folder / "none.yaml").write_text("endpoints: {e: {}}")
    (folder / "bare.yaml").write_text("backends: {v1: {num_replicas: 2}}")
    config, replicas, missing, empty, bare, other = await asyncio.gather(
        slotmesh("run", "mesh.yaml", "--config", "a=1", cwd=folder),
        slotmesh("run", "mesh.yaml", "--replicas", "2", cwd=folder),
        slotmesh("run", "absent.yaml", cwd=folder),
        slotmesh("run", "none.yaml", cwd=folder),
        slotmesh("run", "bare.yaml", cwd=folder),
        slotmesh("run", "mesh.txt", cwd=folder),
    )
    assert {it.status for it in (config, replicas, missing, empty, bare, other)} == {2}
    assert "write `user_config` of the backend into mesh.yaml" in " ".join(config.err.split())
    assert "write `num_replicas` of the backend into mesh.yaml" in " ".join(replicas.err.split())
    assert "absent.yaml: cannot be read" in missing.err
    assert "backends: there is none to run" in empty.err
    assert "backends.v1.handler: `slotmesh run` starts replicas" in bare.err
    assert "a file whose name ends with .yaml" in other.err


async def _logs(mesh: MeshRun, text: str) -> bool:
    return text in mesh.log_text()


async def _answers(mesh: MeshRun, wanted: str) -> bool:
    answers = [await call(mesh, "greet", "hello") for _ in range(2)]
    assert {it.status for it in answers} == {0}, answers
    return {it.out for it in answers} == {f"{wanted}\n"}


async def _adds_three(mesh: MeshRun) -> bool:
    added = await call(mesh, "add", "add", "[1]")
    assert added.status == 0, added
    return added.out == "4\n"


async def _gone(mesh: MeshRun, backend: str) -> bool:
    got = await slotmesh("get", "-o", "name", "--address", mesh.controller_address)
    return f"backend/{backend}" not in got.out.split()
