"""Links of a snapshot to ignored files, when other files are ignored: they are set anew, and nothing else changes."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from tests.unit.controller.code.project import HANDLER, Project

PATTERNS = {
    "a folder": ("/data/\n", {"data"}),
    "what is in it": ("/data/*\n", {"data/secret.bin", "data/more"}),
    "what is deeper in it": ("/data/secret.bin\n/data/more/*\n", {"data/secret.bin", "data/more/rows.bin"}),
    "by its kind": ("*.bin\n", {"data/secret.bin", "data/more/rows.bin"}),
}


def links(files: Path) -> set[str]:
    return {it.relative_to(files).as_posix() for it in files.rglob("*") if it.is_symlink()}


def modes(folder: Path) -> dict[str, int]:
    return {str(it): it.stat().st_mode for it in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("after", PATTERNS)
@pytest.mark.parametrize("before", PATTERNS)
def test_other_patterns_for_the_same_files_set_the_links_anew(before: str, after: str, project: Project) -> None:
    (project.root.parent / ".git").mkdir()
    ignore = project.root.parent / ".gitignore"
    project.write("data/secret.bin", "secret").chmod(0o600)
    project.write("data/more/rows.bin", "rows").chmod(0o600)
    (project.root / "data").chmod(0o700)
    (project.root / "data" / "more").chmod(0o700)
    known = modes(project.root / "data")
    for name in (before, after, before):
        patterns, expected = PATTERNS[name]
        ignore.write_text(patterns.replace("/data", "/project/data"))
        files = project.keep()
        assert links(files) == expected
        assert (files / "data" / "more" / "rows.bin").read_text() == "rows"
        assert modes(project.root / "data") == known, "the project is not touched"
        folders = [it for it in (files, *files.rglob("*")) if it.is_dir() and not it.is_symlink()]
        assert {it.stat().st_mode & 0o777 for it in folders if project.root not in it.resolve().parents} == {0o555}


@pytest.mark.parametrize("order", [*permutations(("", "sub/", "sub/deep/"))])
def test_the_same_patterns_hold_for_each_root_from_where_they_are(
    order: tuple[str, ...], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers in a repository, in a folder of it, and in one below that: one `.gitignore` is read for all of them."""
    (project.root / ".git").mkdir()
    project.write(".gitignore", "/data\n/sub/keys\n/sub/deep/notes\n")
    for at, folder in enumerate(("", "sub/", "sub/deep/")):
        project.write(f"{folder}app{at}.py", "class App: ...")
        for name in ("data", "keys", "notes"):
            project.write(f"{folder}{name}/rows.txt", "rows")
        monkeypatch.syspath_prepend(str(project.root / folder))
    ignored = {"": {"data", "sub/keys", "sub/deep/notes"}, "sub/": {"keys", "deep/notes"}, "sub/deep/": {"notes"}}
    for folder in order:
        at = ("", "sub/", "sub/deep/").index(folder)
        assert links(project.keep(f"app{at}:App")) == ignored[folder], folder


@pytest.mark.parametrize("lost", ["gone", "to another place"])
def test_links_that_are_not_those_of_the_manifest_are_set_anew(lost: str, project: Project) -> None:
    """As after a controller that ended while it set them."""
    project.write("data.sqlite", "rows")
    code, files = project.code().code, project.keep()
    files.chmod(0o755)
    (files / "data.sqlite").unlink()
    if lost == "to another place":
        (files / "data.sqlite").symlink_to("/nowhere")
    project.snapshots.tree_of(HANDLER, code)  # as a replica starts
    assert (files / "data.sqlite").read_text() == "rows"
