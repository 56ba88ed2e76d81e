"""What a walk over a project costs is bounded: also by folders that have no files, and whatever symlinks lead to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller_service.shell.code.project_files import MOST_LEVELS
from tests.unit.controller.code.project import Project

MAX_FILES = 50
"""Of the snapshots of `Project`."""


def test_folders_that_symlinks_multiply_are_refused(project: Project, tmp_path: Path) -> None:
    for level in range(12):
        folder = tmp_path / "levels" / str(level)
        folder.mkdir(parents=True)
        for name in "ab":
            (folder / name).symlink_to(folder.parent / str(level + 1))
    (project.root / "maze").symlink_to(tmp_path / "levels" / "0")
    problem = project.code().problem
    assert f"more than {MAX_FILES} folders" in problem
    assert "as in maze/" in problem
    assert str(project.root / ".slotmeshignore") in problem
    project.write(".slotmeshignore", "maze\n")
    assert not project.code().problem


def test_as_many_folders_as_files_are_allowed(project: Project) -> None:
    for number in range(MAX_FILES - 2):  # beside the root, and the package of the handler
        (project.root / f"empty-{number}").mkdir()
    assert not project.code().problem
    (project.root / "one-more").mkdir()
    assert f"more than {MAX_FILES} folders" in project.code().problem


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 300])
def test_folders_that_are_too_deep_are_refused(levels: int, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project.snapshots._scanner, "_max_files", 10 * levels)
    (project.root / "deep").mkdir()
    here = os.open(project.root / "deep", os.O_RDONLY)
    for _ in range(levels - 1):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    problem = project.code().problem
    assert f"more than {MOST_LEVELS} levels deep" in problem
    assert "as in deep/" in problem


def test_folders_as_deep_as_is_allowed_are_copied(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project.snapshots._scanner, "_max_files", 10 * MOST_LEVELS)
    path = "d/" * MOST_LEVELS + "deep.txt"
    project.write(path, "deep")
    assert (project.keep() / path).read_text() == "deep"
