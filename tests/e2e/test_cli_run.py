"""`slotmesh run` with real processes: how a mesh comes up, what it does, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from slotmesh.cli.controller_view import FAILED_STATE
from slotmesh.cli.local.child import how
from tests.support.controllers import eventually
from tests.support.mesh import ROOT, MeshRun, mesh_run, started_mesh
from tests.support.shell import slotmesh
from tests.support.tiers import long
from tests.support.wait import wait_until

APP = """
import os

print("imported", flush=True)

class Digits:
    async def add(self, a: int, b: int = 1) -> int:
        return a + b

    async def where(self) -> list[str]:
        print("asked", flush=True)
        return [os.getcwd(), os.environ["FLAVOUR"]]

    async def fail(self) -> None:
        raise ValueError("too dark")

class Model:
    def __init__(self, name: str, sizes: list[int], noise: float = 0.5) -> None:
        self.told = [name, sizes, noise]

    async def which(self) -> list[object]:
        return self.told

class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no model here")

    async def add(self) -> None: ...

class Quits:
    def __init__(self) -> None:
        raise SystemExit("enough")

    async def add(self) -> None: ...
"""
IMPORT_HANGS = """
import pathlib, threading
pathlib.Path("importing").touch()
threading.Event().wait()
"""
ANY_PORTS = ("--router-port=0", "--controller-port=0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "hangs.py").write_text(IMPORT_HANGS)
    (tmp_path / "misspelt.py").write_text("import no_such_module_anywhere\n")
    return tmp_path


async def rest_of_stdout(mesh: MeshRun) -> str:
    assert mesh.process.stdout is not None
    async with asyncio.timeout(10):
        return (await mesh.process.stdout.read()).decode()


@pytest.mark.asyncio
async def test_a_mesh_from_the_ready_line_to_its_last_process(folder: Path) -> None:
    env = {"FLAVOUR": "vanilla"}
    async with started_mesh("app:Digits", replicas=2, routers=2, env=env, cwd=folder) as mesh:
        # Ready means ready: the first calls succeed at every router.
        first, second = mesh.router_addresses
        positional, named, where, unknown, failed, table, document = await asyncio.gather(
            slotmesh("call", "Digits", "add", "[1, 2]", "--address", first),
            slotmesh("call", "Digits", "add", '{"a": 41}', "--address", second),
            slotmesh("call", "Digits", "where", "--address", first),
            slotmesh("call", "Digits", "nothing", "--address", first),
            slotmesh("call", "Digits", "fail", "--address", second),
            slotmesh("status", "--address", mesh.controller_address),
            slotmesh("status", "--json", "--address", mesh.controller_address),
        )
        assert (positional.err, named.err) == ("", "")
        assert (positional.out, named.out) == ("3\n", "42\n")
        assert json.loads(where.out) == [str(folder), "vanilla"]
        assert (unknown.status, unknown.err[:27]) == (1, "NOT_FOUND/METHOD_NOT_FOUND:")
        assert (failed.status, failed.err) == (1, "UNKNOWN/HANDLER_ERROR: ValueError: too dark\n")

        pids = await mesh.replica_pids()
        assert len(set(pids.values())) == 2
        assert all(str(pid) in table.out and replica_id in table.out for replica_id, pid in pids.items())
        said = json.loads(document.out)
        assert [(it["name"], it["ready_replicas"]) for it in said["backends"]] == [("Digits", 2)]
        assert [it["name"] for it in said["endpoints"]] == ["Digits"]
        assert sorted(it["address"] for it in said["routers"]) == sorted(mesh.router_addresses)
        assert all(it["current"] and set(it["linked_replica_ids"]) == {*pids} for it in said["routers"])
        # run, controller, two routers, two replicas
        assert len(mesh.processes()) == 6

        mesh.process.terminate()
        assert await mesh.wait_ended() == 0
        assert not mesh.processes()
        assert await rest_of_stdout(mesh) == ""
        assert "asked" in mesh.log_text()


@pytest.mark.asyncio
async def test_ctrl_c_ends_everything_and_a_killed_replica_was_replaced_before(folder: Path) -> None:
    async with started_mesh("app:Digits", cwd=folder) as mesh:
        killed = await mesh.kill_replica()
        await mesh.wait_for_replicas(1, without=killed)
        said = await slotmesh("call", "Digits", "add", "[1]", "--address", mesh.router_address)
        assert (said.status, said.out) == (0, "2\n")
        # As a terminal does: the whole process group of the command.
        os.killpg(mesh.process.pid, signal.SIGINT)
        assert await mesh.wait_ended() == 0
        assert not mesh.processes()


@pytest.mark.asyncio
async def test_nothing_survives_when_run_itself_is_killed(folder: Path) -> None:
    async with started_mesh("app:Digits", cwd=folder) as mesh:
        assert len(mesh.processes()) == 4
        mesh.process.kill()
        assert await mesh.wait_ended() == -signal.SIGKILL
        await mesh.wait_gone()


@pytest.mark.long
@pytest.mark.asyncio
async def test_nothing_survives_when_run_is_killed_while_the_handler_is_imported(folder: Path) -> None:
    async with mesh_run("hangs:Any", *ANY_PORTS, cwd=folder) as mesh:
        await wait_until((folder / "importing").exists, timeout=60, what="the import began")
        mesh.process.kill()
        await mesh.wait_ended()
        await mesh.wait_gone()


@pytest.mark.long
@pytest.mark.asyncio
async def test_it_can_be_stopped_while_it_starts(folder: Path) -> None:
    async with mesh_run("hangs:Any", *ANY_PORTS, cwd=folder) as mesh:
        await wait_until((folder / "importing").exists, timeout=60, what="the import began")
        mesh.process.terminate()
        assert await mesh.wait_ended() == 0
        assert not mesh.processes()
        assert await rest_of_stdout(mesh) == ""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("handler", "status", "told", "where"),
    [
        (
            "misspelt:Any",
            2,
            "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
            ("misspelt.py", "1, in <module>"),
        ),
        long("app:Missing", 2, "Missing", None),
        ("app:Broken", 1, "RuntimeError: no model here", ("app.py", "")),
        long("app:Quits", 1, "RuntimeError: the handler tried to end the process: SystemExit('enough')", None),
    ],
)
async def test_a_handler_that_cannot_start_is_told_once_with_its_traceback(
    folder: Path, handler: str, status: int, told: str, where: tuple[str, str] | None
) -> None:
    async with mesh_run(handler, "--replicas=2", *ANY_PORTS, cwd=folder) as mesh:
        assert await mesh.wait_ended() == status
        assert not mesh.processes()
        assert await rest_of_stdout(mesh) == ""
        log = mesh.log_text()
        assert told in log
        assert handler in log
        assert log.count("Traceback") == ("Error" in told), "once, however many replicas there are"
        if where:
            assert f'Traceback (most recent call last):\n  File "{folder / where[0]}", line {where[1]}' in log
            assert "importlib" not in log


@pytest.mark.long
@pytest.mark.asyncio
async def test_status_tells_once_why_replicas_fail(folder: Path) -> None:
    async with started_mesh("app:Digits", cwd=folder, flags=["--log-level=info"]) as mesh:
        env = {"SLOTMESH_ADDRESS": mesh.controller_address}
        bad = 'backends: {bad: {handler: "app:Broken", num_replicas: 2}}'
        assert (await slotmesh("apply", "-", env=env, stdin=bad)).status == 0

        async def failed() -> list[str]:
            return [it.error for it in (await mesh.members()).replicas if it.state == FAILED_STATE and "\n" in it.error]

        await eventually(lambda: _are(failed, 2), what="two replicas failed")
        status, whole = await asyncio.gather(slotmesh("status", env=env), slotmesh("status", "--tracebacks", env=env))
        assert "Traceback" not in status.out
        gist = r"\nbad, \d+ replicas: RuntimeError: no model here\n  at (.+):\d+, in __init__\n"
        assert re.findall(gist, status.out) == [str(folder / "app.py")]
        assert whole.out.count("Traceback (most recent call last):") >= 2
        assert "replica_service" not in whole.out
        replica_id = min(await mesh.replica_pids())
        (ready,) = [line for line in mesh.log_text().splitlines() if "handler=app:Digits" in line]
        assert f"replica={replica_id}" in ready


async def _are(ask: Callable[[], Awaitable[list[str]]], count: int) -> bool:
    return len(await ask()) >= count


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_constructor_gets_what_the_command_line_says(folder: Path) -> None:
    flags = ["--config", "name=svc", "--config", "sizes=[1, 2]"]
    async with started_mesh("app:Model", cwd=folder, flags=flags) as mesh:
        said = await slotmesh("call", "Model", "which", "--address", mesh.router_address)
        assert json.loads(said.out) == ["svc", [1, 2], 0.5]
    wrong, large = await asyncio.gather(
        slotmesh("run", "app:Model", "--config", "name"),
        slotmesh("run", "app:Model", "--config", "name=123456789012345678901"),
    )
    assert (wrong.status, wrong.out, large.status, large.out) == (2, "", 2, "")
    assert "--config: must be KEY=VALUE" in wrong.err
    assert "--config: integers over 2^53" in large.err


@pytest.mark.long
@pytest.mark.asyncio
async def test_a_start_that_takes_too_long_is_given_up(folder: Path) -> None:
    async with mesh_run("hangs:Any", "--start-timeout=500ms", *ANY_PORTS, cwd=folder) as mesh:
        assert await mesh.wait_ended() == 1
        assert not mesh.processes()
        expected = "not ready within 500ms: the handler is being imported; give it more time with --start-timeout"
        assert expected in mesh.log_text()


@pytest.mark.asyncio
async def test_a_port_in_use_is_one_clear_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with mesh_run("app:Digits", f"--router-port={port}", "--controller-port=0", cwd=folder) as mesh:
            assert await mesh.wait_ended() == 1
            line = f"--router-port: port {port} is in use; choose another, or 0 for any free one"
            assert mesh.log_text().splitlines() == ["slotmesh: looking at app:Digits", line]


@pytest.mark.asyncio
@pytest.mark.parametrize("victim", ["router_service", long("controller_service")])
async def test_without_a_router_or_the_controller_it_gives_up(folder: Path, victim: str) -> None:
    async with started_mesh("app:Digits", cwd=folder) as mesh:
        (pid,) = (pid for pid, command in mesh.processes().items() if f"-m {victim}" in command)
        os.kill(pid, signal.SIGKILL)
        assert await mesh.wait_ended() == 1
        await mesh.wait_gone()
        assert "gone, and with it the mesh: it was killed by SIGKILL" in mesh.log_text()


def test_ends_in_words() -> None:
    assert how(3) == "it ended with exit status 3"
    assert how(-15) == "it was killed by SIGTERM"
    assert how(-200) == "it was killed by signal 200"


QUEUE = """
import pathlib, sys, sysconfig

if not any("replica_service" in word for word in sys.orig_argv):
    raise ImportError("the queue of the working directory")
exec((pathlib.Path(sysconfig.get_path("stdlib")) / "queue.py").read_text())
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("env", [{}, long({"PYTHONSAFEPATH": "1"})], ids=["by flag", "by environment"])
async def test_modules_of_the_working_directory_shadow_nothing_outside_of_replicas(
    folder: Path, env: dict[str, str]
) -> None:
    (folder / "queue.py").write_text(QUEUE)
    env = {"PYTHONPATH": str(ROOT), **env}
    async with mesh_run("app:Digits", *ANY_PORTS, "--http=0", cwd=folder, env=env, python=["-P"]) as mesh:
        await mesh.wait_ready()
        said = await slotmesh("call", "Digits", "add", "[1]", "--address", mesh.router_address)
        assert (said.status, said.out) == (0, "2\n")
