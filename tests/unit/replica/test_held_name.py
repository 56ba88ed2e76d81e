"""Names that replicas of one machine share: of a crashed one, or the lowest free one, held until the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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
def holder(directory: Path, backend: str = "v1", program: str = HOLD) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Another process, with its name."""
    command = [sys.executable, "-c", program, str(directory), backend]
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


def test_a_process_that_was_forked_and_outlives_the_holder_does_not_keep_the_name(tmp_path: Path) -> None:
    forking = HOLD.replace("print", "import os\nif os.fork(): print")  # the child lives until its input ends
    with holder(tmp_path, program=forking) as (first, process):
        process.kill()
        process.wait(timeout=60)
        with holder(tmp_path) as (again, _):
            assert (first, again) == ("v1-0", "v1-0")


def test_a_released_name_is_closed_once_and_not_again_in_forked_processes(tmp_path: Path) -> None:
    HeldName.take(tmp_path, "v1").release()
    with (tmp_path / "other").open("w+") as other:  # has the descriptor that the name had
        child = os.fork()
        if not child:
            os._exit(0 if os.fstat(other.fileno()).st_nlink else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_name_of_a_crashed_process_goes_before_lower_ones_that_have_ended(tmp_path: Path) -> None:
    """As after an upgrade by surge."""
    old = [HeldName.take(tmp_path, "v1") for _ in range(2)]
    with holder(tmp_path) as (crashed, process), holder(tmp_path) as (other, _):
        assert (crashed, other) == ("v1-2", "v1-3")
        for it in old:
            it.has_ended()
            it.release()
        process.kill()
        process.wait(timeout=60)
        with holder(tmp_path) as (again, _), holder(tmp_path) as (more, _), holder(tmp_path) as (last, _):
            assert (again, more, last) == ("v1-2", "v1-0", "v1-1")


def test_of_several_crashed_ones_the_name_that_lived_last_is_taken_first(tmp_path: Path) -> None:
    """A name that was left for good, as by scaling down with SIGKILL, does not stand in the way."""
    held = [HeldName.take(tmp_path, "v1") for _ in range(4)]
    for it in held:
        it.release()
    for number, age_s in enumerate((50, 400, 10, 100)):
        then = time.time() - age_s
        os.utime(tmp_path / f"v1-{number}.lock", (then, then))
    assert names_taken(tmp_path, 5) == ["v1-2", "v1-0", "v1-3", "v1-1", "v1-4"]


def test_a_holder_notes_that_it_lives_until_its_end_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "ALIVE_EVERY_S", 0.01)
    held, file = HeldName.take(tmp_path, "v1"), tmp_path / "v1-0.lock"
    os.utime(file, (1, 1))
    deadline = time.monotonic() + 60
    while file.stat().st_mtime < 2 and time.monotonic() < deadline:
        os.sched_yield()
    assert file.stat().st_mtime > time.time() - 60
    held.has_ended()
    assert file.stat().st_mtime == 0
    held.release()
    assert file.stat().st_mtime == 0


def test_files_of_an_older_version_or_with_any_content_are_names_like_others(tmp_path: Path) -> None:
    (tmp_path / "v1-0.lock").write_text("half writt")
    (tmp_path / "v1-1.lock").touch()
    os.utime(tmp_path / "v1-0.lock", (5, 5))
    assert names_taken(tmp_path, 3) == ["v1-1", "v1-0", "v1-2"]


def names_taken(directory: Path, count: int) -> list[str]:
    """By one after another, all held at once."""
    held = [HeldName.take(directory, "v1") for _ in range(count)]
    for it in held:
        it.release()
    return [it.name for it in held]


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
