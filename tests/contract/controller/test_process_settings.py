"""What the process launcher makes of `env`, `python`, `cwd`, `cpus` and `memory` of a backend: real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from controller_service.shell.launchers.memory_watch import exceeding
from controller_service.shell.launchers.process import ProcessLauncher
from controller_service.shell.launchers.process_start import prepare_start
from controller_service.shell.launchers.protocol import Exit, LaunchDeferred, LaunchFailed, LaunchOrder
from slotmesh.runtime.process_identity import has_ended
from slotmesh.spec.environment import THREAD_VARIABLES, EnvironmentValue, ProcessSettings
from slotmesh.spec.model import Backend
from slotmesh.version import VERSION
from tests.contract.controller.test_launchers import process_launcher
from tests.support.venvs import make_venv
from tests.support.wait import wait_until

SECRET: Final = "hunter-2-of-this-test"
ORDER: Final = LaunchOrder(backend="v1", handler="a:B", template="t", fixed="f")
SHOW: Final = """
import json, os, signal, sys
print(json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "python": sys.executable,
                  "cpus": sorted(os.sched_getaffinity(0))}), flush=True)
signal.pause()
"""
GROW: Final = """
import os, signal, sys
kept = bytearray(b"x") * (1 << 27)
signal.pause()
"""
GROW_IN_CHILD: Final = f"""
import subprocess, sys
subprocess.run([sys.executable, "-S", "-c", {GROW!r}])
"""
needs_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


_RIGS: Final[list[Rig]] = []


@pytest_asyncio.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Kills what a test that fails has left."""
    yield
    for rig in _RIGS:
        for instance in rig.launcher.observe():
            if not has_ended(instance.process):
                with suppress(ProcessLookupError):
                    os.killpg(instance.pid, signal.SIGKILL)
    _RIGS.clear()


class Rig:
    """A launcher whose processes run a program, in a folder."""

    def __init__(self, folder: Path, program: str = SHOW) -> None:
        _RIGS.append(self)
        self.folder = folder
        self.exits: list[Exit] = []
        self._number = 0

        def mint_id(backend: str) -> str:
            self._number += 1
            return f"{backend}-{self._number}"

        self.launcher: ProcessLauncher = process_launcher(
            folder,
            self.exits,
            lambda replica_id, _: [sys.executable, "-S", "-c", program, f"--replica-id={replica_id}"],
            mint_id=mint_id,
        )

    async def start(self, count: int = 1, **settings: Any) -> None:
        while True:
            try:
                await self.launcher.start(replace(ORDER, process=ProcessSettings(**settings)), count)
            except LaunchDeferred:  # its interpreter takes a while
                continue
            return

    async def shown(self, number: int = 1) -> Mapping[str, Any]:
        """What a replica has printed of itself."""
        log = self.folder / f"v1-{number}.log"
        await wait_until(lambda: log.exists() and log.read_text().endswith("\n"), what="a line of output")
        found: Mapping[str, Any] = json.loads(log.read_text())
        return found


@pytest.mark.asyncio
async def test_without_settings_all_is_the_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("SLOTMESH_TLS_KEY", "of the controller")
    rig = Rig(tmp_path)
    await rig.start()
    shown = await rig.shown()
    assert shown["env"]["OMP_NUM_THREADS"] == "7"
    assert "SLOTMESH_TLS_KEY" not in shown["env"]
    assert shown["cwd"] == str(Path.cwd())
    assert shown["cpus"] == sorted(os.sched_getaffinity(0))
    await rig.launcher.close()


@pytest.mark.asyncio
async def test_variables_come_from_text_the_controller_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN_BY_CONTROLLER", "yes")
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n\n")
    rig = Rig(tmp_path / "launched")
    await rig.start(
        env={
            "PLAIN": EnvironmentValue(value="two\nlines"),
            "EMPTY": EnvironmentValue(value=""),
            "GIVEN_BY_CONTROLLER": EnvironmentValue(inherit=True),
            "FROM_FILE": EnvironmentValue(file=str(secret)),
        }
    )
    environment = (await rig.shown())["env"]
    assert environment["PLAIN"] == "two\nlines"
    assert environment["EMPTY"] == ""
    assert environment["GIVEN_BY_CONTROLLER"] == "yes"
    assert environment["FROM_FILE"] == f"{SECRET}\n", "one line break is no part of it"
    records = [it.read_text() for it in (tmp_path / "launched").glob("*.json")]
    assert len(records) == 1
    assert SECRET not in records[0]
    assert SECRET not in repr(rig.launcher.observe())
    await rig.launcher.close()


def failure_of(**settings: Any) -> str:
    with pytest.raises(LaunchFailed) as failed:
        prepare_start("v1", ProcessSettings(**settings))
    return str(failed.value)


def of_file(path: Path) -> str:
    return failure_of(env={"A": EnvironmentValue(file=str(path))})


def test_what_is_missing_is_named_with_backend_setting_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("x")
    (tmp_path / "text").chmod(0o600)
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "large").write_bytes(b"x" * (64 * 1024 + 1))
    os.mkfifo(tmp_path / "pipe")
    assert (
        of_file(tmp_path / "none")
        == f"backend v1: env.A: file {tmp_path}/none cannot be read: No such file or directory"
    )
    assert of_file(tmp_path / "nul") == f"backend v1: env.A: file {tmp_path}/nul has a NUL, which no variable may have"
    assert of_file(tmp_path / "large") == f"backend v1: env.A: file {tmp_path}/large is larger than 65,536 bytes"
    assert of_file(tmp_path / "pipe") == f"backend v1: env.A: file {tmp_path}/pipe is no regular file"
    assert of_file(tmp_path) == f"backend v1: env.A: file {tmp_path} cannot be read: Is a directory"
    absent = failure_of(env={"ABSENT_HERE": EnvironmentValue(inherit=True)})
    assert absent.startswith("backend v1: env.ABSENT_HERE: is to be inherited, but the controller has no variable")
    make = "make it, or name another folder of this machine"
    none = "No such file or directory"
    assert failure_of(cwd=str(tmp_path / "text")) == f"backend v1: cwd: {tmp_path}/text is no folder: {make}"
    assert failure_of(cwd=str(tmp_path / "none")) == f"backend v1: cwd: {tmp_path}/none: {none}: {make}"
    monkeypatch.chdir(tmp_path)
    assert failure_of(cwd="none") == f"backend v1: cwd: none ({tmp_path}/none): {none}: {make}"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert failure_of(cwd=str(tmp_path)) == (
        f"backend v1: cwd: {tmp_path} may not be entered by user {os.geteuid()}: allow it (chmod), or name another one"
    )
    monkeypatch.undo()
    for python, file in ((tmp_path / "none", "none"), (tmp_path, "bin/python"), (tmp_path / "text", "text")):
        said = failure_of(python=str(python))
        assert said.startswith(
            f"backend v1: python: there is no interpreter {tmp_path}/{file}: name one, or the folder"
        )


@pytest.mark.asyncio
@pytest.mark.parametrize("python", ["", sys.executable], ids=["own interpreter", "another one"])
async def test_an_environment_that_is_too_large_is_named(tmp_path: Path, python: str) -> None:
    (tmp_path / "large").write_bytes(b"x" * (64 * 1024))
    rig = Rig(tmp_path)
    env = {f"A{number}": EnvironmentValue(file=str(tmp_path / "large")) for number in range(200)}
    with pytest.raises(LaunchFailed, match="its environment is larger than this system allows: have the handler read"):
        await rig.start(env=env, python=python)
    await rig.launcher.close()


def test_an_interpreter_has_to_have_slotmesh(tmp_path: Path) -> None:
    empty = make_venv(tmp_path / "empty", has_slotmesh=False)
    without = f"backend v1: python: {empty}/bin/python has no module slotmesh: "
    env = {"PYTHONPATH": EnvironmentValue(value="")}
    assert (
        failure_of(python=str(empty), cwd=str(tmp_path), env=env)
        == f"{without}{empty}/bin/python -m pip install 'slotmesh=={VERSION}'"
    )
    other = make_venv(tmp_path / "other", has_slotmesh=True)
    package = tmp_path / "newer" / "slotmesh"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "version.py").write_text('VERSION = "9.1.0"')
    newer = {"PYTHONPATH": EnvironmentValue(value=str(package.parent))}
    said = failure_of(python=str(other), cwd=str(tmp_path), env=newer)
    assert f"has slotmesh 9.1.0, which does not work with {VERSION}: " in said


def test_an_interpreter_that_is_none_is_named(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    assert failure_of(python=str(script)).startswith(f"backend v1: python: {script} ended with status 3")


@pytest.mark.asyncio
async def test_a_replica_has_the_interpreter_and_the_folder_of_its_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
    venv = make_venv(tmp_path / "venv", has_slotmesh=True)
    rig = Rig(tmp_path / "launched")
    monkeypatch.chdir(tmp_path)
    await rig.start(python="venv", cwd="launched")
    shown = await rig.shown()
    assert (shown["python"], shown["cwd"]) == (f"{venv}/bin/python", str(tmp_path / "launched"))
    assert shown["env"]["VIRTUAL_ENV"] == str(venv)
    assert "PYTHONHOME" not in shown["env"]
    assert shown["env"]["PATH"].startswith(f"{shown['env']['VIRTUAL_ENV']}/bin{os.pathsep}")
    await rig.start(2, python=f"{venv}/bin/python", cwd=str(tmp_path))
    assert (await rig.shown(2))["python"] == f"{venv}/bin/python"
    await rig.launcher.close()


@pytest.mark.asyncio
async def test_cpus_limit_the_threads_of_numeric_libraries_unless_env_does(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.start(cpus=0.5, env={"MKL_NUM_THREADS": EnvironmentValue(value="3")})
    environment = (await rig.shown())["env"]
    expected = dict.fromkeys(THREAD_VARIABLES, "1") | {"MKL_NUM_THREADS": "3"}
    assert {name: environment[name] for name in THREAD_VARIABLES} == expected
    await rig.launcher.close()


@needs_cpus
@pytest.mark.asyncio
async def test_replicas_get_the_cpus_that_are_used_least(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    rig = Rig(tmp_path)
    await rig.start(2, cpus=1.0)
    assert [(await rig.shown(number))["cpus"] for number in (1, 2)] == [[allowed[0]], [allowed[1]]]
    assert sorted(os.sched_getaffinity(0)) == allowed, "the controller itself is not pinned"
    rig.launcher.kill("v1-2")
    await wait_until(lambda: bool(rig.exits), what="an exit")
    await rig.launcher.leave()
    again = Rig(tmp_path)  # another life of the controller: what lives is all that it knows
    again._number = 2
    await again.start(2, cpus=1.0)
    assert (await again.shown(3))["cpus"] == [allowed[1]]
    await again.launcher.close()


@pytest.mark.asyncio
async def test_more_cpus_than_there_are_are_refused_with_the_numbers(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    there_are = len(os.sched_getaffinity(0))
    text = f"{there_are + 0.5:g} CPUs for each replica, and there are {there_are}"
    with pytest.raises(LaunchFailed, match=re.escape(f"backend v1: cpus: {text} on this machine")):
        await rig.start(cpus=there_are + 0.5)
    (violation,) = rig.launcher.violations(Backend(name="v1", cpus=there_are + 0.5))
    assert str(violation) == f"backends.v1.cpus: {text}"
    assert not [*rig.launcher.violations(Backend(name="v1", cpus=float(there_are)))]
    assert not [*rig.launcher.violations(Backend(name="v1"))]
    await rig.launcher.close()


@pytest.mark.parametrize("program", [GROW, GROW_IN_CHILD], ids=["itself", "a child"])
@pytest.mark.asyncio
async def test_a_replica_that_uses_more_than_its_memory_is_killed(tmp_path: Path, program: str) -> None:
    rig = Rig(tmp_path, program)
    await rig.start(memory=64 << 20)
    (instance,) = rig.launcher.observe()
    await wait_until(lambda: bool(rig.exits), what="an exit")
    (ended,) = rig.exits
    used = re.fullmatch(r"used (\d+) MiB of its memory: 64MiB", ended.how)
    assert used is not None
    assert 64 <= int(used[1]) < 256, "it is looked at while it grows, or after"
    assert (ended.failed, ended.was_killed) == (True, False)
    assert has_ended(instance.process)
    await rig.launcher.close()


@pytest.mark.asyncio
async def test_a_replica_of_an_earlier_life_keeps_its_bound(tmp_path: Path) -> None:
    waits = "import sys, time\nwhile not __import__('os').path.exists(sys.argv[1]): time.sleep(0.01)\n"
    go = tmp_path / "go"
    program = waits.replace("sys.argv[1]", repr(str(go))) + GROW
    rig = Rig(tmp_path / "launched", program)
    await rig.start(memory=64 << 20)
    await rig.launcher.leave()
    again = Rig(tmp_path / "launched", program)
    (found,) = again.launcher.observe()
    assert (found.was_found, found.order.process.memory) == (True, 64 << 20)
    go.touch()
    await wait_until(lambda: bool(again.exits), what="an exit")
    assert again.exits[0].how.endswith("MiB of its memory: 64MiB")
    await again.launcher.close()


def test_what_processes_of_a_replica_share_counts_once() -> None:
    """Three forks of a process that has written 64 MiB: 256 MiB by their resident sizes, and 64 in fact."""
    program = """
import os, sys
kept = b"x" * (1 << 26)
ready, tell = os.pipe()
children = []
for _ in range(3):
    if (pid := os.fork()) == 0:
        os.write(tell, b"." if kept[::4096] else b"")
        sys.stdin.read()
        os._exit(0)
    children.append(pid)
while children:
    os.read(ready, 1)
    children.pop()
print("ready", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=pipe, stdout=pipe, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert exceeding({process.pid: 128 << 20}) == {}
        over = exceeding({process.pid: 32 << 20})
        assert 64 << 20 <= over[process.pid] < 128 << 20
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.asyncio
async def test_variables_of_devices_are_the_launchers_alone(tmp_path: Path) -> None:
    launcher = process_launcher(tmp_path, [], pools={"cuda": ("0", "1")})
    env = {"CUDA_VISIBLE_DEVICES": EnvironmentValue(value="0"), "OTHER": EnvironmentValue(value="0")}
    (violation,) = launcher.violations(Backend(name="v1", env=env))
    text = "backends.v1.env.CUDA_VISIBLE_DEVICES: is set for the devices of pool cuda: leave it out"
    assert str(violation) == text
    await launcher.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("pool", "name", "count"), [("cuda", "0", 1), ("cuda", "GPU-1", 0), ("fpga", "0", 0)])
async def test_all_replicas_number_gpus_alike(tmp_path: Path, pool: str, name: str, count: int) -> None:
    launcher = process_launcher(tmp_path, [], pools={pool: (name,)})
    backend = Backend(name="v1", env={"CUDA_DEVICE_ORDER": EnvironmentValue(value="PCI_BUS_ID")})
    found = [str(it) for it in launcher.violations(backend)]
    text = "numbers the GPUs of pool cuda anew: set it for the controller, or name the GPUs by UUID"
    assert found == [f"backends.v1.env.CUDA_DEVICE_ORDER: {text}"] * count
    await launcher.close()
