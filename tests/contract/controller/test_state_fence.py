"""A state file is written by whoever left it: by generation, term and revision, each of them alone.

Another program changes one part of the head, in place: the file stays the same one, so that only its content tells.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import Conflict, LeadershipLost, StoreWriteFailed
from controller_service.store.sqlite.rows import read_head
from controller_service.store.sqlite.state_file import StateFile, read_file
from controller_service.store.sqlite.state_lock import StateLock, lock_path
from slotmesh.spec.model import Backend

V1: Final = ChangeSet(put_backends=(Backend(name="v1"),))
OTHER_HEADS: Final[dict[str, dict[str, Any]]] = {
    "generation": {"generation": "b" * 32},
    "a later term": {"term": 2},
    "an earlier term": {"term": 0},
    "a later revision": {"revision": 7},
    "an earlier revision": {"revision": 0},
}
LOST: Final = ("generation", "a later term", "an earlier term")
"""Those after which another controller has the file, and not this one's own past."""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    opened = StateFile.open(tmp_path / "state", lambda: ("a" * 32, Desired()))
    yield opened
    opened.close()


def put(path: Path, change: dict[str, Any]) -> None:
    """Writes one part of the head, with its checksum."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        head = replace(read_head(connection), **change)
        connection.execute(
            "UPDATE head SET generation = ?, revision = ?, configured_at = ?, epoch_floor = ?, term = ?, checksum = ?",
            (head.generation, head.revision, head.configured_at, head.epoch_floor, head.term, head.checksum),
        )


@pytest.mark.parametrize("what", OTHER_HEADS)
def test_nothing_is_written_to_a_file_whose_head_is_another_one(file: StateFile, what: str) -> None:
    assert (file.generation, file.term, file.desired.revision) == ("a" * 32, 1, 1)
    put(file.path, OTHER_HEADS[what])
    before = read_file(file.path)
    for _ in range(2):
        with pytest.raises((LeadershipLost, StoreWriteFailed, Conflict)):
            file.commit(V1, file.desired.revision)
        assert read_file(file.path) == before, "it is as the other one left it"


@pytest.mark.parametrize("what", LOST)
def test_a_controller_that_looks_sees_that_another_one_has_the_file(file: StateFile, what: str) -> None:
    assert file.check() == ()
    put(file.path, OTHER_HEADS[what])
    for _ in range(2):
        with pytest.raises(LeadershipLost, match="was taken over by"):
            file.check()


@pytest.mark.parametrize("what", LOST)
def test_after_an_error_the_file_is_opened_again_only_if_it_is_ones_own(file: StateFile, what: str) -> None:
    file._disconnect()
    put(file.path, OTHER_HEADS[what])
    with pytest.raises(LeadershipLost):
        file.commit(V1, file.desired.revision)


@pytest.mark.parametrize("off", [-1, 1, 2])
def test_a_change_is_of_the_revision_that_it_was_planned_for(file: StateFile, off: int) -> None:
    file.commit(V1, 1)
    before = read_file(file.path)
    with pytest.raises(Conflict):
        file.commit(V1, 2 + off)
    assert read_file(file.path) == before
    assert file.commit(V1, 2).revision == 3


# --- what is given back where a file is refused -----------------------------------------------------------------------


def make_directory(path: Path) -> None:
    path.mkdir()


def make_foreign(path: Path) -> None:
    path.write_bytes(b"no database at all")


def make_damaged(path: Path) -> None:
    StateFile.open(path, lambda: ("a" * 32, Desired())).close()
    put(path, {"configured_at": 99})


REFUSED: Final[dict[str, Callable[[Path], None]]] = {
    "a directory": make_directory,
    "no database": make_foreign,
    "rows that contradict each other": make_damaged,
    "no file": lambda _: None,
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_refused_is_left_to_others(tmp_path: Path, what: str) -> None:
    """Its lock is free again, and nobody has it open."""
    path = tmp_path / "state"
    REFUSED[what](path)
    for _ in range(3):
        with pytest.raises(Exception, match="state"):
            StateFile.open(path, None)
    StateLock.take(path).release()
    opened = {str(it.resolve()) for it in Path("/proc/self/fd").iterdir() if it.exists()}
    assert not {it for it in opened if it.startswith(str(tmp_path))}
    assert lock_path(path).exists()
