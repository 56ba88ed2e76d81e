"""Names that replicas of one machine share: the lowest free one, held until the process has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replica_service import config
from replica_service.config import HeldName, ReplicaSettings
from slotmesh.config import SettingsError
from slotmesh.runtime.exits import CannotStart

HOLD = """
import sys
from pathlib import Path
from replica_service.config import HeldName
held = HeldName.take(Path(sys.argv[1]), sys.argv[2])
print(held.name, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(directory: Path, backend: str = "v1") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Another process, with its name."""
    command = [sys.executable, "-c", HOLD, str(directory), backend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def test_each_process_has_a_name_of_its_own_and_the_next_one_that_of_one_that_was_killed(tmp_path: Path) -> None:
    with holder(tmp_path) as (first, process), holder(tmp_path) as (second, _), holder(tmp_path, "v2") as (other, _):
        assert (first, second, other) == ("v1-0", "v1-1", "v2-0")
        process.kill()
        process.wait(timeout=60)
        with holder(tmp_path) as (again, _), holder(tmp_path) as (more, _):
            assert (again, more) == ("v1-0", "v1-2")


def test_a_name_is_free_once_it_was_released(tmp_path: Path) -> None:
    held = [HeldName.take(tmp_path / "new", "v1") for _ in range(3)]
    assert [it.name for it in held] == ["v1-0", "v1-1", "v1-2"]
    held[1].release()
    again = HeldName.take(tmp_path / "new", "v1")
    assert again.name == "v1-1"
    for it in (held[0], held[2], again):
        it.release()


def test_what_a_name_is_made_of_leaks_to_no_child(tmp_path: Path) -> None:
    held = HeldName.take(tmp_path, "v1")
    subprocess.run([sys.executable, "-c", "import sys; sys.exit(0)"], check=True, close_fds=False, timeout=60)
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout is not None
        child.stdout.readline()
        held.release()
        assert HeldName.take(tmp_path, "v1").name == "v1-0"
        child.communicate(b"\n", timeout=60)


def test_a_directory_that_cannot_be_used_is_named_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match=r"file.*--replica-names"):
        HeldName.take(tmp_path / "file", "v1")


def test_the_number_of_names_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "MAX_NAMES", 2)
    held = [HeldName.take(tmp_path, "v1") for _ in range(2)]
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(CannotStart, match="all 2 names of backend v1 are in use"):
        HeldName.take(tmp_path, "v1")
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    for it in held:
        it.release()


def test_a_replica_has_one_name() -> None:
    flags = ["--handler=app:One", "--replica-id=a", "--replica-names=/names"]
    with pytest.raises(SettingsError, match="--replica-id and --replica-names: give one of them"):
        ReplicaSettings.parse(flags, {}, prog="replica_service")
