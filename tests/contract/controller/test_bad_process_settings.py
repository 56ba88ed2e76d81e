"""Interpreters, folders and looks at memory that hang or fail cost a start, and hold up nothing else."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller_service.shell.launchers import memory_watch, process_start
from controller_service.shell.launchers.process_start import prepare_start
from controller_service.shell.launchers.protocol import LaunchDeferred, LaunchFailed
from slotmesh.spec.environment import ProcessSettings
from tests.contract.controller.test_process_settings import GROW, ORDER, Rig, nothing_is_left
from tests.support.wait import wait_until

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
    assert "backend v1" in failure_of(**{setting: "/" + "x" * 300})


def test_a_folder_of_the_controller_that_is_gone_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert "backend v1" in failure_of(cwd="relative")
    assert prepare_start("v1", ProcessSettings(cwd=str(tmp_path))).cwd == tmp_path


def test_nothing_is_left_of_an_interpreter_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_start, "_CHECK_S", 1.0)
    python = script(tmp_path / "python", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    assert "did not answer within 1 s" in failure_of(python=str(python))
    pid = int((tmp_path / "pid").read_text())
    assert not is_running(pid)


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
    assert len((tmp_path / "looks").read_text().splitlines()) == 1

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
