"""Folders that also hold other things than code, in containers that lack some of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from controller_service.shell.code.roots import HandlerRoot
from controller_service.shell.launchers.launched_processes import default_directory
from slotmesh.runtime.exits import CannotStart


def is_wide(folder: Path) -> bool:
    return HandlerRoot(folder, folder / "app.py", "app").is_wide


def no_home(_path: str) -> str:
    """As for a user without HOME and without an entry of /etc/passwd."""
    return "~"


def no_temporary_folder() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


def test_home_and_temporary_files_are_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    assert [is_wide(it) for it in (Path("/"), tmp_path / "home", tmp_path / "tmp", tmp_path)] == [True] * 3 + [False]


def test_code_is_found_without_a_home_directory_and_a_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.expanduser", no_home)
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_folder)
    assert is_wide(Path("/"))
    assert not is_wide(tmp_path)


def test_without_a_folder_of_temporary_files_the_launcher_names_the_flag_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_folder)
    with pytest.raises(CannotStart, match=r"No usable temporary directory found in \['/tmp'\]: .* --launch-dir"):
        default_directory("127.0.0.1:7070", None)
