"""Files of the state are readable for their user alone, from their first byte on, whatever the umask says."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.store.sqlite.state_file import StateFile, create_file
from slotmesh.spec.model import Backend

V1 = ChangeSet(put_backends=(Backend(name="v1", handler="app:One"),))


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """New files are readable for everybody, unless somebody sees to it."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_state(path: Path) -> StateFile:
    return StateFile.open(path, lambda: ("a" * 32, Desired(epoch_floor=7)))


def modes(folder: Path) -> dict[str, int]:
    return {it.name: it.stat().st_mode & 0o777 for it in folder.iterdir()}


def test_all_files_of_an_open_state_are_private(tmp_path: Path) -> None:
    file = open_state(tmp_path / "state")
    file.commit(V1, file.desired.revision)
    assert modes(tmp_path) == dict.fromkeys(["state", "state.lock"], 0o600)
    file.close()
    create_file(tmp_path / "imported", "b" * 32, Desired())
    assert modes(tmp_path)["imported"] == 0o600


def test_files_are_private_before_they_have_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    connect = sqlite3.connect

    def watch(database: Path | str, **options: object) -> sqlite3.Connection:
        if isinstance(database, Path):
            seen.append(database.stat().st_mode & 0o777 if database.exists() else 0)
        connection: sqlite3.Connection = connect(database, **options)  # type: ignore[call-overload]  # as it was called
        return connection

    monkeypatch.setattr(sqlite3, "connect", watch)
    open_state(tmp_path / "state").close()
    assert seen == [0o600]


def test_what_was_left_readable_is_shut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "state"
    open_state(path).close()
    for name in ("state", "state.lock"):
        (tmp_path / name).chmod(0o644)
    file = open_state(path)
    assert set(modes(tmp_path).values()) == {0o600}
    said = [record.getMessage() for record in caplog.records if "others could read" in record.getMessage()]
    assert sorted(line.rpartition(" path=")[2] for line in said) == [
        f"{tmp_path}/{name} mode=644" for name in ("state", "state.lock")
    ]
    file.close()
    caplog.clear()
    open_state(path).close()
    assert not caplog.records


def test_nothing_is_written_through_a_link_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    for name in ("state.unfinished", "state.unfinished-journal"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    open_state(tmp_path / "state").close()
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o666
