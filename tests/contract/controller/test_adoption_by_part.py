"""A process is taken over only if all that identifies it is as the record says: boot, namespaces, process id, start."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import pytest

from controller_service.shell.launchers.launched_processes import FoundProcess, LaunchDirectory, LaunchRecord
from slotmesh.runtime.process_identity import process_of
from tests.contract.controller.test_launched_processes import is_running, left_behind
from tests.contract.controller.test_launchers import process_launcher

PARTS: Final = ("boot", "namespace of process ids", "namespace of times", "process id", "start time")


def changed(process: str, part: str) -> str:
    """The identity of another process: one part differs."""
    parts = process.split(":")
    assert len(parts) == len(PARTS)
    at = PARTS.index(part)
    parts[at] = str(os.getppid()) if part == "process id" else parts[at] + "1"
    return ":".join(parts)


@pytest.mark.asyncio
@pytest.mark.parametrize("part", PARTS)
async def test_a_process_that_differs_in_one_part_is_neither_taken_over_nor_ended(tmp_path: Path, part: str) -> None:
    """Of several records: the others are taken over."""
    async with left_behind(tmp_path / "l", "a", "b", "c") as pids:
        directory = LaunchDirectory.open(tmp_path / "l")
        for record in directory.records():
            if record.replica_id == "b":
                said = {name: getattr(record, name) for name in LaunchRecord.__slots__}
                directory.write(LaunchRecord(**{**said, "process": changed(record.process, part)}))
        directory.close()
        launcher = process_launcher(tmp_path / "l", [])
        assert {it.replica_id: it.pid for it in launcher.observe()} == {"a": pids["a"], "c": pids["c"]}
        launcher.kill("b")
        launcher.stop("b", grace_s=0.0)
        await launcher.close()
        assert [is_running(pids[it]) for it in "abc"] == [False, True, False]
        os.killpg(pids["b"], signal.SIGKILL)


@pytest.mark.asyncio
@pytest.mark.parametrize("part", [*PARTS, ""])
async def test_only_the_process_itself_is_opened(tmp_path: Path, part: str) -> None:
    async with left_behind(tmp_path / "l", "a") as pids:
        process = process_of(pids["a"])
        found = FoundProcess.open(pids["a"], changed(process, part) if part else process)
        assert (found is not None) is (part == "")
        if found is not None:
            found.close()
