"""A state file whose writer is killed at any moment, or whose last writes are torn, has the old or the new state."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from controller_service.core.desired.state import Desired
from controller_service.store.sqlite.state_file import StateFile, read_file
from tests.support.state_changes import random_change

ROOT = Path(__file__).resolve().parents[3]
KILLS = 200
FRAME_HEADER = 24
PAGE = 4_096


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_random_points_the_last_acknowledged_change_is_there(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.state_killing", str(tmp_path), str(KILLS), "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    assert (told := re.fullmatch(rf"{KILLS} kills, (\d+) changes, (\d+) of them not acknowledged\n", child.stdout))
    assert int(told[1]) > KILLS / 2


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[Desired], list[int]]:
    """A file that an earlier version has left in a crash: with a write-ahead log.

    Also the states that it went through, and how long its log was after each of them.
    """
    file = StateFile.open(tmp_path / "state", lambda: ("a" * 32, Desired()))
    assert file._connection is not None
    file._connection.execute("PRAGMA journal_mode = WAL")
    file.commit(random_change(Random(4), file.desired), file.desired.revision)
    log, random = tmp_path / "state-wal", Random(5)
    states, sizes = [file.desired], [log.stat().st_size]
    for _ in range(12):
        states.append(file.commit(random_change(random, states[-1]), states[-1].revision))
        sizes.append(log.stat().st_size)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("state", "state-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    file.close()
    assert sizes == sorted(set(sizes)), "each change is in the log"
    return crashed, states, sizes


def state_with(folder: Path, log: bytes) -> Desired:
    (folder / "state-wal").write_bytes(log)
    (folder / "state-shm").unlink(missing_ok=True)
    main = (folder / "state").read_bytes()
    found = read_file(folder / "state")[1]
    (folder / "state").write_bytes(main)
    return found


def test_a_log_that_ends_anywhere_has_the_state_of_its_last_whole_change(
    history: tuple[Path, list[Desired], list[int]],
) -> None:
    folder, states, sizes = history
    log = (folder / "state-wal").read_bytes()
    assert state_with(folder, log) == states[-1]
    random = Random(1)
    ends = {*sizes[1:], *(size - 1 for size in sizes[1:]), *random.sample(range(sizes[0], sizes[-1]), 40)}
    for end in sorted(ends):
        whole = max(number for number, size in enumerate(sizes) if size <= end)
        assert state_with(folder, log[:end]) == states[whole], end


def test_a_last_change_with_any_byte_wrong_is_not_there(history: tuple[Path, list[Desired], list[int]]) -> None:
    folder, states, sizes = history
    log, random = (folder / "state-wal").read_bytes(), Random(2)
    spots = random.sample(range(sizes[-2], sizes[-1]), 40)
    for at in spots:
        torn = log[:at] + bytes([log[at] ^ (1 << random.randrange(8))]) + log[at + 1 :]
        assert state_with(folder, torn) == states[-2], at


def test_what_stands_behind_the_last_change_counts_for_nothing(
    history: tuple[Path, list[Desired], list[int]],
) -> None:
    """A disk may have got part of a write, whatever it is, or an older log's end."""
    folder, states, sizes = history
    log, random = (folder / "state-wal").read_bytes(), Random(3)
    for rest in (bytes(PAGE + FRAME_HEADER), random.randbytes(PAGE + FRAME_HEADER), log[sizes[0] : sizes[1]]):
        assert state_with(folder, log + rest) == states[-1]


def test_a_file_with_a_log_goes_on_without_one(history: tuple[Path, list[Desired], list[int]]) -> None:
    folder, states, _ = history
    file = StateFile.open(folder / "state", None)
    assert replace(file.desired, revision=0, terms=()) == replace(states[-1], revision=0, terms=())
    assert {it.name for it in folder.iterdir()} == {"state", "state.lock"}
    file.close()
