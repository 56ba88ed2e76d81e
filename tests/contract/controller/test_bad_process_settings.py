"""Interpreters, folders and looks at memory that hang or fail cost a start, and hold up nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller_service.shell.launchers import memory_watch, process_start
from controller_service.shell.launchers.process_start import Preparations, pinned, prepare_start
from controller_service.shell.launchers.protocol import LaunchDeferred, LaunchFailed
from slotmesh.spec.environment import EnvironmentValue, ProcessSettings
from tests.contract.controller.test_process_settings import GROW, ORDER, Rig, nothing_is_left
from tests.support.wait import wait_until, within

__all__ = ["nothing_is_left"]


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def failure_of(**settings: Any) -> str:
    with pytest.raises(LaunchFailed) as caught:
        prepare_start("v1", ProcessSettings(**settings))
    return str(caught.value)


@pytest.mark.parametrize("setting", ["cwd", "python"])
def test_a_path_that_the_operating_system_refuses_is_a_failed_start(setting: str) -> None:
    assert failure_of(**{setting: "/" + "x" * 300}).startswith(f"backend v1: {setting if setting == 'cwd' else '/x'}")


def test_a_folder_of_the_controller_that_is_gone_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    gone = "backend v1: cwd: relative (the controller has no folder itself): No such file or directory: make it, or"
    assert failure_of(cwd="relative").startswith(gone)
    assert prepare_start("v1", ProcessSettings(cwd=str(tmp_path))).cwd == tmp_path


@pytest.mark.asyncio
async def test_nothing_is_left_of_an_interpreter_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_start, "_CHECK_S", 1.0)
    python = script(tmp_path / "python", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    assert "did not answer within 1 s" in failure_of(python=str(python))
    pid = int((tmp_path / "pid").read_text())
    await wait_until(lambda: not is_running(pid), what="the end of what it has started")


def test_what_an_interpreter_prints_is_bounded(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "while :; do echo 'has xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'; done")
    failure = failure_of(python=str(python))
    assert "ended with status" in failure
    assert len(failure) < 1000


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.asyncio
async def test_an_interpreter_that_hangs_holds_nothing_else_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_start, "PREPARED_WITHIN_S", 0.1)
    monkeypatch.setattr(process_start, "_CHECK_S", 3.0)
    python = script(tmp_path / "python", f"echo $$ >> {tmp_path}/looks; exec sleep 600")
    rig, order = Rig(tmp_path), replace(ORDER, process=ProcessSettings(python=str(python)))
    for _ in range(3):
        with pytest.raises(LaunchDeferred, match="v1: its interpreter and its files are still being looked at"):
            await rig.launcher.start(order, 1)
    looks = tmp_path / "looks"
    await wait_until(lambda: looks.exists() and looks.read_text(), what="the first look")
    assert len(looks.read_text().splitlines()) == 1

    async def outcome() -> str:
        while True:
            try:
                await rig.launcher.start(order, 1)
            except LaunchDeferred:
                continue
            except LaunchFailed as error:
                return str(error)

    assert "did not answer within 3 s" in await asyncio.wait_for(outcome(), 20)
    await rig.launcher.close()


@pytest.mark.asyncio
async def test_what_was_prepared_is_not_used_for_other_settings_or_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ProcessSettings(python="one"), ProcessSettings(python="other")
    prepared, may_end = list[Any](), threading.Event()

    def prepare(_backend: str, settings: ProcessSettings) -> Any:
        prepared.append(settings)
        assert may_end.wait(20)
        return settings

    monkeypatch.setattr(process_start, "prepare_start", prepare)
    for later, first_used_for_s in ((other, 120.0), (one, -1.0)):
        preparations = Preparations()
        may_end.clear()
        monkeypatch.setattr(process_start, "PREPARED_WITHIN_S", 0.02)
        with pytest.raises(LaunchDeferred):
            await preparations.of("v1", one)
        may_end.set()
        (_, _, first) = preparations._of["v1"]
        await within(asyncio.wait({first}), "the end of the first one")
        monkeypatch.setattr(process_start, "PREPARED_WITHIN_S", 20.0)
        monkeypatch.setattr(process_start, "PREPARED_FOR_S", first_used_for_s)
        used: Any = await preparations.of("v1", later)
        assert used == later
    await wait_until(lambda: len(prepared) == 4, what="the two starts, each prepared twice")


@pytest.mark.asyncio
async def test_what_hangs_has_one_thread_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, may_end = list[str](), threading.Event()

    def prepare(backend: str, _settings: ProcessSettings) -> Any:
        prepared.append(backend)
        assert may_end.wait(20)

    monkeypatch.setattr(process_start, "prepare_start", prepare)
    monkeypatch.setattr(process_start, "PREPARED_WITHIN_S", 0.02)
    monkeypatch.setattr(process_start, "PREPARED_FOR_S", -1.0)
    preparations = Preparations()
    for _ in range(3):
        with pytest.raises(LaunchDeferred):
            await preparations.of("v1", ProcessSettings(python="x"))
    may_end.set()
    assert prepared == ["v1"]


@pytest.mark.asyncio
async def test_a_start_reads_files_anew_after_it_was_found_to_be_possible(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    order = replace(ORDER, process=ProcessSettings(env={"A": EnvironmentValue(file=str(secret))}))
    rig = Rig(tmp_path)
    with pytest.raises(LaunchFailed, match=r"env.A: file .*secret cannot be read"):
        await rig.launcher.prepare(order)
    secret.write_text("of before")
    await rig.launcher.prepare(order)
    assert not rig.launcher.observe()
    secret.write_text("of now")
    await rig.launcher.start(order, 1)
    assert (await rig.shown())["env"]["A"] == "of now"
    secret.unlink()
    with pytest.raises(LaunchFailed, match=r"env\.A"):
        await rig.launcher.start(order, 2)
    with pytest.raises(LaunchFailed, match="cpus: 100000 CPUs for each replica"):
        await rig.launcher.prepare(replace(ORDER, process=ProcessSettings(cpus=100_000)))
    await rig.launcher.close()


@pytest.mark.asyncio
async def test_a_secret_is_not_kept_for_a_start_that_may_come(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    settings = ProcessSettings(env={"A": EnvironmentValue(file=str(tmp_path / "secret"))})
    preparations = Preparations()
    await preparations.of("v1", settings)
    assert not preparations._of


def test_a_controller_that_may_not_run_where_it_did_has_still_started_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins: list[object] = []

    def pin(_pid: int, cpus: object) -> None:
        pins.append(cpus)
        if len(pins) > 1:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr("os.sched_setaffinity", pin)
    with pinned(frozenset({0})):
        assert len(pins) == 1
    assert len(pins) == 2


@pytest.mark.asyncio
async def test_memory_is_looked_at_again_after_a_look_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_watch, "LOOK_EVERY_S", 0.02)
    real, failures = os.listdir, list[Any]()

    def listdir(path: Any) -> list[str]:
        if len(failures) < 2:
            failures.append(path)
            raise OSError(24, "Too many open files")
        return real(path)

    monkeypatch.setattr("os.listdir", listdir)
    rig = Rig(tmp_path, GROW)
    await rig.start(memory=1 << 25)
    await wait_until(lambda: rig.exits, what="the replica is ended")
    assert "of its memory" in rig.exits[0].how
    await rig.launcher.close()
