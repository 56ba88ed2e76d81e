"""A state file that cannot be used is refused: the message names it and the way out, and nothing of it is changed."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.protocol import StateRefused, StoreWriteFailed
from controller_service.store.rows import checksum_of
from controller_service.store.sqlite.rows import VERSION
from controller_service.store.sqlite.state_file import StateFile, read_file
from slotmesh.spec.model import Backend

V1 = ChangeSet(put_backends=(Backend(name="v1", handler="app:One"),))
ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65_534
"""A user without rights."""


def open_state(path: Path) -> StateFile:
    return StateFile.open(path, lambda: ("a" * 32, Desired(epoch_floor=7)))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A file with a backend, which nobody has open."""
    file = open_state(tmp_path / "state")
    file.commit(V1, file.desired.revision)
    file.close()
    return file.path


def refusal(path: Path, *, of: Callable[[Path], object] = open_state) -> str:
    """What it is refused with; nothing has changed."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    with pytest.raises(StateRefused) as refused:
        of(path)
    if before:
        assert contents(path.parent) == before
    assert str(refused.value).startswith(str(path))
    return str(refused.value)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but lock files, which stay."""
    found = (it for it in folder.iterdir() if it.is_file() and not it.name.endswith(".lock"))
    return {it.name: it.read_bytes() for it in found}


@pytest.mark.parametrize("of", [open_state, read_file])
def test_a_directory_in_its_place(tmp_path: Path, of: Callable[[Path], object]) -> None:
    assert "is a directory; name a file in it" in refusal(tmp_path, of=of)


@pytest.mark.parametrize("of", [open_state, read_file])
def test_a_path_that_is_no_utf_8(tmp_path: Path, of: Callable[[Path], object]) -> None:
    """As that of a relative path in such a directory."""
    folder = tmp_path / "a\udcff"
    folder.mkdir()
    with pytest.raises(
        StateRefused, match=r"a\\udcff/state': the path is no text in UTF-8: rename it, or name"
    ) as refused:
        of(folder / "state")
    assert "damaged" not in str(refused.value)
    assert not [*folder.iterdir()]


@pytest.mark.parametrize("of", [open_state, read_file])
def test_no_such_directory(tmp_path: Path, of: Callable[[Path], object]) -> None:
    assert f"mkdir -p {tmp_path}/a/b" in refusal(tmp_path / "a/b/state", of=of)


def test_a_file_that_is_not_there_is_created_by_whoever_writes_only(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "state", of=read_file)
    open_state(tmp_path / "state").close()
    assert read_file(tmp_path / "state") == ("a" * 32, Desired(revision=1, epoch_floor=7))


@pytest.mark.parametrize("log", ["state-wal", "state-journal"])
def test_a_log_without_its_file_is_not_taken_for_an_empty_state(state: Path, log: str) -> None:
    state.rename(state.with_name(log))
    assert f"is missing, but {state.with_name(log)} is there, a part of it" in refusal(state)


def test_a_copy_of_a_file_in_use_is_whole_and_nothing_stands_beside_it(tmp_path: Path) -> None:
    file = open_state(tmp_path / "state")
    file.commit(ChangeSet(put_backends=(Backend(name="v2"),)), file.desired.revision)
    assert {it.name for it in tmp_path.iterdir()} == {"state", "state.lock"}
    shutil.copy(file.path, tmp_path / "copy")
    assert read_file(tmp_path / "copy") == (file.generation, file.desired)
    file.close()


WRITE = """
import sys
from pathlib import Path
from random import Random
from controller_service.store.sqlite.state_file import StateFile
from tests.support.state_changes import random_change
file, random = StateFile.open(Path(sys.argv[1]), None), Random(3)
for _ in range(100):
    file.commit(random_change(random, file.desired), file.desired.revision)
file.close()
"""


def test_a_file_that_is_being_written_can_be_read_all_the_time(state: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITE, str(state)], cwd=ROOT) as writer:
        revisions = [read_file(state)[1].revision]
        while writer.poll() is None:
            revisions.append(read_file(state)[1].revision)
    assert writer.returncode == 0
    assert revisions == sorted(revisions)
    assert len(set(revisions)) > 1


def journal(records: int, pages: int, counter: int) -> bytes:
    """Of a change to a file with that many pages, whose first page has this counter."""
    first = bytes(24) + counter.to_bytes(4) + bytes(4_096 - 28)
    head = struct.pack(">8s5I", bytes.fromhex("d9d505f920a163d7"), records, 0, pages, 512, 4_096)
    return head.ljust(512, b"\0") + records * ((1).to_bytes(4) + first + bytes(4))


@pytest.mark.parametrize("of", [open_state, read_file])
@pytest.mark.parametrize("what", ["wal", "journal of a change", "journal without pages"])
def test_a_log_of_another_file_is_refused_and_the_file_starts_without_it(
    state: Path, what: str, of: Callable[[Path], object]
) -> None:
    """As after a copy over a file whose controller was killed."""
    before = state.read_bytes()
    counter, pages = int.from_bytes(before[24:28]), len(before) // 4_096
    log = state.with_name("state-wal" if what == "wal" else "state-journal")
    log.write_bytes(journal(1, pages, counter - 2) if what.endswith("change") else journal(0, pages - 1, counter))
    content = log.read_bytes()
    assert f"{log} belongs to another state file, which was here before" in refusal(state, of=of)
    assert (state.read_bytes(), log.read_bytes()) == (before, content)
    log.unlink()
    if isinstance(opened := of(state), StateFile):
        opened.close()


@pytest.mark.parametrize("of", [open_state, read_file])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "damaged (it is empty)"),
        (b"backends: {}\n" * 100, "is no state file of slotmesh"),
        (b"SQLite format 3\0", "is no state file of slotmesh"),
    ],
)
def test_what_is_no_state_file(tmp_path: Path, content: bytes, expected: str, of: Callable[[Path], object]) -> None:
    path = tmp_path / "state"
    path.write_bytes(content)
    assert expected in refusal(path, of=of)


@pytest.mark.parametrize("of", [open_state, read_file])
def test_a_database_of_another_program(tmp_path: Path, of: Callable[[Path], object]) -> None:
    path = tmp_path / "state"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE head (id)")
    connection.close()
    assert "of another program" in refusal(path, of=of)


def test_each_damaged_page_is_seen(state: Path) -> None:
    """Some bytes of a page are not used: those may change."""
    sound, page = state.read_bytes(), 4_096
    rows = re.compile(rb'backend.*?"handler":"app:One"|a{32}', re.DOTALL)
    spots = [match.start() for match in rows.finditer(sound)] + [match.end() - 2 for match in rows.finditer(sound)]
    spots += [*range(page, len(sound), page)]
    assert len(spots) > 5
    for at in spots:
        state.write_bytes(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1 :])
        told = refusal(state)
        assert "the state file is damaged" in told, at
        assert "slotmesh state import" in told
    state.write_bytes(sound[: len(sound) // 2])
    assert "the state file is damaged" in refusal(state)
    state.write_bytes(sound)
    open_state(state).close()


def test_rows_that_contradict_each_other(state: Path) -> None:
    with sqlite3.connect(state) as connection:
        text = '{"traffic":{"weights":{"v2":1.0},"shadows":{}}}'
        row = ("endpoint", "e", text, checksum_of("endpoint", "e", text))
        connection.execute("INSERT INTO resources VALUES (?, ?, ?, ?)", row)
    connection.close()
    assert "endpoint e names backend v2, which is not there" in refusal(state)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("v1", '{"gpu_memory":3}', "backend v1: this version of slotmesh knows no setting gpu_memory"),
        ("v1", '{"slo_scope":"psychic"}', "backend v1: slo_scope: this version of slotmesh knows no 'psychic'"),
        ("v1", '{"num_replicas":"3"}', "backend v1: num_replicas: '3' is no integer"),
        ("v1", "[]", "backend v1: must be a JSON object"),
    ],
)
def test_a_row_that_this_version_cannot_read(state: Path, name: str, text: str, expected: str) -> None:
    with sqlite3.connect(state) as connection:
        row = ("backend", name, text, checksum_of("backend", name, text))
        connection.execute("INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?)", row)
    connection.close()
    assert expected in refusal(state)


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_a_file_of_another_schema_is_left_as_it_is(state: Path, version: int) -> None:
    with sqlite3.connect(state) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = state.read_bytes()
    expected = f"another version of slotmesh (schema {version}; this version reads {VERSION})"
    assert expected in refusal(state)
    with pytest.raises(StateRefused) as export:
        read_file(state)
    assert expected in str(export.value)
    assert state.read_bytes() == before


def test_a_second_controller_hears_who_has_the_file(state: Path) -> None:
    first = open_state(state)
    first.serving_at("127.0.0.1:7070")
    by_another_name = state.with_name("link")
    by_another_name.symlink_to(state)
    for path in (state, by_another_name):
        with pytest.raises(StateRefused, match=rf"in use by the controller at 127\.0\.0\.1:7070 \(pid {os.getpid()}\)"):
            open_state(path)
    assert read_file(state) == (first.generation, first.desired)
    first.close()
    open_state(state).close()


def test_a_controller_whose_lock_was_deleted_changes_nothing_any_more(state: Path) -> None:
    first = open_state(state)
    state.with_name("state.lock").unlink()
    second = open_state(state)
    second.serving_at("h:2")
    for _ in range(2):
        with pytest.raises(StoreWriteFailed, match="was taken over by the controller at h:2") as refused:
            first.commit(ChangeSet(), first.desired.revision)
        assert refused.value.is_unwritten
    second.commit(V1, second.desired.revision)
    first.close()
    second.close()


def test_a_file_that_is_moved_away_takes_no_changes_until_it_is_back(state: Path) -> None:
    file = open_state(state)
    elsewhere = state.with_name("elsewhere")
    state.rename(elsewhere)
    with pytest.raises(StoreWriteFailed, match="was moved, deleted or replaced"):
        file.commit(V1, file.desired.revision)
    shutil.copy(elsewhere, state)
    with pytest.raises(StoreWriteFailed, match="was moved, deleted or replaced"):
        file.commit(V1, file.desired.revision)
    elsewhere.replace(state)
    file.commit(V1, file.desired.revision)
    file.close()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that other users can reach: each run of pytest takes their rights to its own directories away."""
    with tempfile.TemporaryDirectory(prefix="slotmesh-state-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize("mode", [0o500, 0o700])
def test_a_file_that_cannot_be_written(shared: Path, mode: int) -> None:
    """0o500: neither can its directory."""
    file = open_state(shared / "state")
    file.close()
    state = file.path
    for path in (state, state.with_name("state.lock")):
        path.chmod(0o444)
    code = f"import os, sys; from {__name__} import told; os.setuid({NOBODY}); told(sys.argv[1])"
    state.parent.chmod(0o555 if mode == 0o500 else 0o777)
    before = contents(state.parent)
    child = subprocess.run(
        [sys.executable, "-c", code, str(state)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert contents(state.parent) == before
    assert str(state) in child.stdout
    assert "ermission denied" in child.stdout


def told(path: str) -> None:
    """In a process of its own."""
    try:
        open_state(Path(path))
    except StateRefused as refused:
        sys.stdout.write(str(refused))
