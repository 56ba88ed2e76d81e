"""Processes that outlive the launcher that started them: found, watched and ended by the next one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from controller_service.shell.launchers import launched_processes
from controller_service.shell.launchers.launched_processes import (
    ENDED_KEPT,
    ENDED_UNSEEN,
    ChildProcess,
    FoundProcess,
    LaunchDirectory,
    LaunchRecord,
    default_directory,
)
from controller_service.shell.launchers.process import CommandOf, ProcessLauncher
from controller_service.shell.launchers.protocol import Exit, LaunchOrder
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.process_identity import process_of
from tests.contract.controller.test_launchers import catching_sigterm, command, order_of, process_launcher
from tests.support.wait import wait_until

FAMILY = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.pause()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@asynccontextmanager
async def left_behind(path: Path, *backends: str, command: CommandOf = command) -> AsyncIterator[dict[str, int]]:
    """Process ids of replicas, by id, whose launcher has left. They are children of this process all the same."""
    launcher = process_launcher(path, [], command)
    for backend in backends:
        await launcher.start(order_of(backend), 1)
    pids = {it.replica_id: it.pid for it in launcher.observe()}
    try:
        for pid in pids.values():
            await catching_sigterm(pid)
        await launcher.leave()
        yield pids
    finally:
        for pid in pids.values():
            if is_running(pid):
                os.killpg(pid, signal.SIGKILL)


async def exit_from(exits: list[Exit], launcher: ProcessLauncher) -> Exit:
    await wait_until(lambda: exits and not launcher.observe(), what="an exit")
    (found,) = exits
    return found


@pytest.mark.parametrize("ask", [ChildProcess.terminate, ChildProcess.kill])
def test_a_child_that_ended_before_it_was_told_to_is_reaped_by_its_waiter(ask: Callable[[ChildProcess], None]) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    child = ChildProcess(process)
    ask(child)
    assert child.wait() == Exit(how="exited with status 3", failed=True)
    ask(child)


@pytest.mark.asyncio
async def test_the_next_launcher_finds_what_runs_and_starts_none_twice(tmp_path: Path) -> None:
    async with left_behind(tmp_path / "l", "a", "b") as pids:
        os.kill(pids["b"], signal.SIGKILL)
        await wait_until(lambda: not is_running(pids["b"]), what="the end of one, unseen")
        exits: list[Exit] = []
        launcher = process_launcher(tmp_path / "l", exits)
        (found,) = launcher.observe()
        assert (found.replica_id, found.pid, found.was_found) == ("a", pids["a"], True)
        assert found.order == order_of("a")
        assert found.process == process_of(pids["a"])
        await launcher.start(order_of("a"), 1)
        assert launcher.observe() == [found]
        launcher.stop("a", grace_s=30.0)
        assert await exit_from(exits, launcher) == Exit(replica_id="a", how=ENDED_UNSEEN, failed=True)
        await launcher.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["kill", "signal"])
@pytest.mark.parametrize("has_descriptors", [True, False])
async def test_the_end_of_a_found_process_is_seen_however_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, *, has_descriptors: bool
) -> None:
    async with left_behind(tmp_path / "l", "a") as pids:
        if not has_descriptors:
            refused = Mock(side_effect=OSError(errno.ENOSYS, "none before Linux 5.3"))
            monkeypatch.setattr("os.pidfd_open", refused)
        exits: list[Exit] = []
        launcher = process_launcher(tmp_path / "l", exits)
        os.kill(pids["a"], signal.SIGSTOP)  # a hung one is ended like any other
        if end == "kill":
            launcher.kill("a")
        else:
            os.kill(pids["a"], signal.SIGKILL)
        assert (await exit_from(exits, launcher)).replica_id == "a"
        assert not is_running(pids["a"])
        await launcher.close()
        assert not process_launcher(tmp_path / "l", []).observe()


@pytest.mark.asyncio
async def test_without_descriptors_a_found_process_is_looked_at_until_it_ends_and_asked_only_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.pidfd_open", Mock(side_effect=OSError(errno.ENOSYS, "none before Linux 5.3")))
    async with left_behind(tmp_path / "l", "a") as pids:
        pid, sleep, looks = pids["a"], time.sleep, list[bool]()
        found, late = (FoundProcess.open(pid, process_of(pid)) for _ in range(2))
        assert found is not None
        assert late is not None

        def look(_time_s: float) -> None:
            looks.append(is_running(pid))
            if len(looks) == 3:
                found.terminate()
            elif len(looks) > 2_000:
                os.kill(pid, signal.SIGKILL)
            sleep(0.01)

        monkeypatch.setattr("time.sleep", look)
        assert await asyncio.to_thread(found.wait) == Exit(how=ENDED_UNSEEN, failed=True)
        assert looks[:3] == [True] * 3
        assert len(looks) < 2_000
        sent = Mock(wraps=os.kill)
        with monkeypatch.context() as patched:
            patched.setattr("os.kill", sent)
            late.terminate()
        assert signal.SIGTERM not in [it.args[1] for it in sent.call_args_list], "its id may be another's"
        late.close()


@pytest.mark.asyncio
async def test_one_that_was_started_just_before_the_controller_was_killed_is_found_by_its_arguments(
    tmp_path: Path,
) -> None:
    async with left_behind(tmp_path / "l", "a") as pids:
        directory = LaunchDirectory.open(tmp_path / "l")
        (record,) = directory.records()
        said = {name: getattr(record, name) for name in LaunchRecord.__slots__}
        directory.write(LaunchRecord(**{**said, "pid": 0, "process": ""}))
        directory.write(LaunchRecord(**{**said, "replica_id": "never", "pid": 0, "process": ""}))
        directory.close()
        launcher = process_launcher(tmp_path / "l", [])
        assert {it.replica_id: it.pid for it in launcher.observe()} == pids
        await launcher.close()


@pytest.mark.asyncio
async def test_a_process_id_that_was_given_to_another_process_is_left_alone(tmp_path: Path) -> None:
    async with left_behind(tmp_path / "l", "a") as pids:
        directory = LaunchDirectory.open(tmp_path / "l")
        (record,) = directory.records()
        said = {name: getattr(record, name) for name in LaunchRecord.__slots__}
        elsewhen = record.process.rpartition(":")[0] + ":1"
        directory.write(LaunchRecord(**{**said, "process": elsewhen}))
        directory.close()
        launcher = process_launcher(tmp_path / "l", [])
        assert not launcher.observe()
        await launcher.close()
        assert is_running(pids["a"])


@pytest.mark.asyncio
@pytest.mark.parametrize("is_found", [False, True])
async def test_what_a_replica_has_started_ends_with_it(tmp_path: Path, is_found: bool) -> None:
    def family(_replica_id: str, _order: LaunchOrder) -> list[str]:
        return [sys.executable, "-S", "-c", FAMILY]

    exits: list[Exit] = []
    launcher = process_launcher(tmp_path / "l", exits, family)
    await launcher.start(order_of("a"), 1)
    (instance,) = launcher.observe()
    output = tmp_path / "l" / "a.log"
    await wait_until(lambda: output.read_text().endswith("\n"), what="the child")
    child = int(output.read_text())
    assert is_running(child)
    if is_found:
        await launcher.leave()
        launcher = process_launcher(tmp_path / "l", exits, family)
    os.kill(instance.pid, signal.SIGKILL)
    await wait_until(lambda: exits, what="the exit")
    assert not is_running(child), "it may use a device for as long"
    assert exits[0].last_output == str(child)
    await launcher.close()


@pytest.mark.asyncio
async def test_one_controller_at_a_time_has_a_directory_and_others_are_told(tmp_path: Path) -> None:
    first = LaunchDirectory.open(tmp_path / "l")
    with pytest.raises(CannotStart, match=r"another controller keeps its replicas there.*--launch-dir"):
        LaunchDirectory.open(tmp_path / "l")
    first.close()
    second = LaunchDirectory.open(tmp_path / "l", is_temporary=True)
    second.close()
    assert not (tmp_path / "l").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(CannotStart, match="--launch-dir"):
        LaunchDirectory.open(tmp_path / "file")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(CannotStart, match="others can write there"):
        LaunchDirectory.open(tmp_path / "open")


def test_records_that_cannot_be_read_are_left_out_and_old_output_goes(tmp_path: Path) -> None:
    directory = LaunchDirectory.open(tmp_path / "l")
    (directory.path / "broken.json").write_text("{")
    (directory.path / "other.json").write_text('{"replica_id": "x"}')
    assert directory.records() == []
    for number in range(ENDED_KEPT + 3):
        directory.log_of(f"r-{number}").write_text("output")
        os.utime(directory.log_of(f"r-{number}"), (number, number))
    directory.remove("r-0")
    left = [path.name for path in directory.logs()]
    assert left == [f"r-{number}.log" for number in range(3, ENDED_KEPT + 3)]
    directory.close()


def test_controllers_of_one_state_file_keep_their_replicas_in_one_place(tmp_path: Path) -> None:
    state = tmp_path / "mesh.state"
    assert default_directory("127.0.0.1:7070", state) == default_directory("127.0.0.1:7170", state)
    assert default_directory("127.0.0.1:7070", tmp_path / "." / "mesh.state") == default_directory("h:1", state)
    others = [tmp_path / "other.state", tmp_path / "mesh" / "state", tmp_path / "folder" / "mesh.state", None]
    paths = {default_directory("127.0.0.1:7070", it) for it in (state, *others)}
    assert len(paths) == 1 + len(others)
    assert default_directory("127.0.0.1:7070", None) != default_directory("127.0.0.1:7170", None)
    assert len(default_directory("h:1", tmp_path / ("x" * 250)).name) < 128


@pytest.mark.asyncio
async def test_the_processes_of_the_directory_that_this_one_is_a_copy_of_are_left_alone(tmp_path: Path) -> None:
    async with left_behind(tmp_path / "l", "a", "b") as pids:
        shutil.copytree(tmp_path / "l", tmp_path / "copy")
        exits: list[Exit] = []
        clone = process_launcher(tmp_path / "copy", exits)
        assert not clone.observe()
        strangers = clone.strangers()
        assert sorted(it.replica_id for it in strangers) == sorted(pids)
        assert all("another controller" in it.why for it in strangers)
        for replica_id in pids:
            clone.kill(replica_id)
            clone.stop(replica_id, grace_s=0.0)
        await clone.close()
        assert all(is_running(pid) for pid in pids.values())
        assert not exits
        again = process_launcher(tmp_path / "copy", exits)
        assert len(again.strangers()) == 2, "they are found again, until an operator decides"
        again.disown()
        assert not again.strangers()
        await again.close()
        last = process_launcher(tmp_path / "copy", exits)
        assert not last.strangers()
        await last.close()
        # The directory that was moved is the same one.
        (tmp_path / "l").rename(tmp_path / "moved")
        own = process_launcher(tmp_path / "moved", exits)
        assert not own.strangers()
        assert {it.replica_id: it.pid for it in own.observe()} == pids
        await own.close()


@pytest.mark.asyncio
async def test_records_with_fields_of_newer_versions_are_read(tmp_path: Path) -> None:
    async with left_behind(tmp_path / "l", "a", "b") as pids:
        path = tmp_path / "l" / "a.json"
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "future": 1}), "utf-8")
        launcher = process_launcher(tmp_path / "l", [])
        assert {it.replica_id: it.pid for it in launcher.observe()} == pids
        await launcher.close()


def test_a_killed_group_is_waited_for_until_its_last_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"], start_new_session=True)
    waits: list[float] = []

    def meanwhile(delay_s: float) -> None:
        waits.append(delay_s)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie is left, as where nothing reaps

    monkeypatch.setattr(f"{launched_processes.__name__}.time.sleep", meanwhile)
    launched_processes._await_group(process.pid)
    assert len(waits) == 1
    process.wait(timeout=20)
    launched_processes._await_group(process.pid)
    assert len(waits) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("is_reaped", "is_own_output", "ends"), [(True, True, True), (True, False, False), (False, False, True)]
)
async def test_what_a_replica_has_left_behind_while_no_controller_ran_ends_before_its_devices_are_free(
    tmp_path: Path, *, is_reaped: bool, is_own_output: bool, ends: bool
) -> None:
    directory = LaunchDirectory.open(tmp_path / "l")
    output = directory.log_of("a") if is_own_output else tmp_path / "other"
    process = family_that_writes_to(output)
    await wait_until(lambda: output.read_text().endswith("\n"), what="the child")
    child = int(output.read_text())
    record = LaunchRecord(replica_id="a", backend="a", handler="a:B", template="", fixed="", devices="cuda=0")
    directory.write(replace(record, process=process_of(process.pid), directory=directory.identity))
    directory.close()
    os.kill(process.pid, signal.SIGKILL)
    await wait_until(lambda: process.poll() if is_reaped else not is_running(process.pid), what="the end, unseen")
    launcher = process_launcher(tmp_path / "l", [])
    assert not launcher.devices().holders
    assert is_running(child) is not ends, "it may be of a group that has got the id of the replica's"
    await launcher.close()
    if not ends:
        os.kill(child, signal.SIGKILL)
    process.poll()


def family_that_writes_to(output: Path) -> subprocess.Popen[bytes]:
    with output.open("w") as file:
        return subprocess.Popen([sys.executable, "-S", "-c", FAMILY], stdout=file, start_new_session=True)
