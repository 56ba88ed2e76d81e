"""Snapshots of handlers' code: what is part of a version, what is not, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from controller_service.shell.code import project_files
from controller_service.shell.code.project_files import CannotSnapshot
from controller_service.shell.code.snapshot_keeper import MOST_NAMED, CodeSnapshots
from controller_service.shell.code.writing import CodeChanged
from replica_service.shell.handler.loading import _checked, use_code
from slotmesh.code_manifest import FILES, MANIFEST, content_digest
from slotmesh.runtime.exits import CannotStart
from tests.unit.controller.code.project import HANDLER, Project

CHANGES = {
    "the module": ("shop/app.py", "class Shop: x = 1"),
    "an imported module": ("helpers.py", "PRICE = 2"),
    "a data file": ("shop/prices.json", "[1]"),
    "a file with a name of bytes": (os.fsdecode(b"shop/\xff.txt"), "x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_file_of_the_project_makes_another_version(change: str, project: Project) -> None:
    before, files = project.code(), project.keep()
    assert before.version == f"file:{before.code[:12]}"
    path, text = CHANGES[change]
    project.write(path, text)
    after = project.code()
    assert after.code != before.code
    newer = project.keep()
    assert (newer / path).read_text() == text
    assert not (files / path).exists() or (files / path).read_text() != text, "what was taken does not change"
    assert (newer / "shop/__init__.py").samefile(files / "shop/__init__.py"), "what is the same is there once"


def test_times_and_folders_make_no_other_version(project: Project) -> None:
    before = project.code()
    os.utime(project.root / "helpers.py", (1, 1))
    (project.root / "empty").mkdir()
    assert project.code() == before
    (project.root / "helpers.py").chmod(0o755)
    assert project.code() != before, "it can be executed now"


IGNORED = {
    ".slotmeshignore": ("copy", "*.bin\n!kept.key\n!sub/again.txt"),
    "weights.bin": ("link", ""),
    "kept.key": ("copy", ""),
    "lost.key": ("link", ""),
    ".gitignore": ("copy", "*.txt\n/models/"),
    "notes.txt": ("link", ""),
    "sub/again.txt": ("copy", ""),
    "sub/.gitignore": ("copy", "*.csv\n!notes.txt"),
    "sub/notes.txt": ("copy", ""),
    "sub/a.csv": ("link", ""),
    "a.csv": ("copy", ""),
    ".env": ("link", ""),
    "mesh.yaml": ("link", ""),
    "sub/mesh.yaml": ("copy", ""),
    "carts.sqlite": ("link", ""),
}
LEFT_OUT = [
    "__pycache__/app.cpython-311.pyc",
    ".git/HEAD",
    "node_modules/a.js",
    "env/pyvenv.cfg",
    "state",
    "state-wal",
    "state.code/x",
    "old.pyc",
]


def test_what_is_ignored_stays_where_it_is_and_replicas_find_it_there(project: Project) -> None:
    for path, (_, text) in IGNORED.items():
        project.write(path, text)
    project.write("models/large.onnx")
    for path in LEFT_OUT:
        project.write(path)
    assert project.shown() == {
        **{path: how for path, (how, _) in IGNORED.items()},
        **dict.fromkeys(("shop/__init__.py", "shop/app.py", "helpers.py"), "copy"),
        "models": "link",
    }
    before, files = project.code(), project.keep()
    project.write("weights.bin", "trained again")
    assert project.code() == before
    assert (files / "weights.bin").read_text() == "trained again"
    project.write("new.bin", "x")
    assert project.code() == before
    assert (project.keep() / "new.bin").read_text() == "x", "it came later, and is found all the same"


def test_patterns_of_the_repository_around_it_count(project: Project) -> None:
    (project.root.parent / ".git").mkdir()
    (project.root.parent / ".gitignore").write_text("/project/*.dat\n")
    project.write("a.dat")
    project.write("sub/a.dat")
    shown = project.shown()
    assert (shown["a.dat"], shown["sub/a.dat"]) == ("link", "copy")


def test_symlinks_are_followed_and_circles_end(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "shared"
    outside.mkdir()
    (outside / "rates.py").write_text("R = 1")
    (project.root / "shared").symlink_to(outside)
    (project.root / "around").symlink_to(project.root)
    (project.root / "nothing").symlink_to(tmp_path / "not there")
    before = project.code()
    assert project.shown()["shared/rates.py"] == "copy"
    (outside / "rates.py").write_text("R = 2")
    assert project.code() != before


def test_what_is_too_large_is_refused_with_the_largest_files_and_the_way_out(project: Project) -> None:
    project.write("large.onnx", "x" * 9_000)
    project.write("larger.onnx", "x" * 9_500)
    problem = project.code().problem
    assert "18," in problem
    assert "larger.onnx (9500B), large.onnx (9000B)" in problem
    assert "--max-code-size" in problem
    assert str(project.root / ".slotmeshignore") in problem
    project.write(".slotmeshignore", "large*.onnx")
    assert not project.code().problem
    for number in range(60):
        project.write(f"many/{number}")
    assert "more than the 50 files of --max-code-files" in project.code().problem


def test_a_file_that_changes_all_the_time_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = project.write("counter")

    def count(content: bytes) -> str:
        with changing.open("a") as file:
            file.write("x")
        return content_digest(content)

    monkeypatch.setattr(project_files, "content_digest", count)
    monkeypatch.setattr(project_files, "_PAUSE_S", 0.0)
    assert "counter below" in project.code().problem


def test_a_file_that_grows_faster_than_it_is_read_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a log or a ledger that handlers write."""
    growing, reads, read = project.write("ledger"), 0, os.read

    def grow_and_read(descriptor: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 200, "it is read without an end"
        with growing.open("a") as file:
            file.write("x")
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", grow_and_read)
    monkeypatch.setattr(project_files, "_PAUSE_S", 0.0)
    assert "ledger below" in project.code().problem


def test_what_was_read_for_the_version_is_what_is_copied(project: Project) -> None:
    code = project.code().code
    project.write("helpers.py", "PRICE = 7")
    project.snapshots.keep([code])
    assert Path(project.snapshots.tree_of(HANDLER, code), FILES, "helpers.py").read_text() == "PRICE = 1"
    assert project.code().code != code


@pytest.mark.parametrize("room", [0, 8])
def test_a_file_that_changes_between_the_look_and_the_copy_is_noticed(
    room: int, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again if there was no room for what was in it."""
    monkeypatch.setattr(project_files, "KEPT_BYTES", room)
    code = project.code().code
    project.write("helpers.py", "PRICE = 7")
    with pytest.raises(CodeChanged):
        project.snapshots.keep([code])
    assert not [*(project.root.parent / "state.code").iterdir()]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_named(project: Project) -> None:
    project.write("secret").chmod(0)
    assert f"{project.root}/secret cannot be read: Permission denied" in project.code().problem


def test_of_a_folder_that_holds_other_things_only_modules_and_packages_are_taken(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: project.root)
    project.write("notes")
    project.write("photos/1.jpg")
    project.write("tools/__init__.py")
    assert set(project.shown()) == {"shop/__init__.py", "shop/app.py", "helpers.py", "tools/__init__.py"}


def test_what_is_installed_has_the_version_of_its_distribution_and_is_checked() -> None:
    snapshots = CodeSnapshots(Path, max_bytes=1, max_files=1)
    (code,) = snapshots.versions_of(["yaml:load", "sys:One"]).values()
    assert code.code == code.version
    name, _, version = code.code.removeprefix("dist:").partition("==")
    assert name.lower() == "pyyaml"
    assert snapshots.tree_of("yaml:load", code.code) == code.code
    use_code(code.code)
    with pytest.raises(CannotStart, match=rf"runs {name} 0\.1, but {version} of it is installed"):
        use_code(f"dist:{name}==0.1")


def test_a_snapshot_goes_when_nothing_needs_it_and_it_has_settled(project: Project) -> None:
    first = project.keep().parent
    project.write("helpers.py", "PRICE = 3")
    second = project.keep().parent
    snapshots = project.snapshots
    assert not snapshots.collect([first.name]), "it was taken just now: its change may not be committed yet"
    assert snapshots.collect([first.name], settle_s=0.0) == [second.name]
    assert (first / FILES / "helpers.py").read_text() == "PRICE = 1"
    os.utime(first, (1, 1))
    project.write("helpers.py", "PRICE = 1")
    project.keep()
    assert not snapshots.collect([]), "it was applied again"


def test_a_snapshot_that_is_lost_is_taken_again_if_the_files_are_the_same(project: Project) -> None:
    files = project.keep()
    project.snapshots.collect([], settle_s=0.0)
    assert not files.exists()
    assert Path(project.snapshots.tree_of(HANDLER, files.parent.name), FILES) == files
    project.snapshots.collect([], settle_s=0.0)
    project.write("helpers.py", "PRICE = 4")
    with pytest.raises(CannotSnapshot, match="roll back to a version whose snapshot is there"):
        project.snapshots.tree_of(HANDLER, files.parent.name)
    other = CodeSnapshots(lambda: project.root.parent / "state.code", max_bytes=1, max_files=1)
    with pytest.raises(CannotSnapshot, match=files.parent.name):
        other.keep([files.parent.name])


def damage(files: Path) -> None:
    """As a handler does that writes to its own files, and may."""
    (files / "helpers.py").chmod(0o644)
    (files / "helpers.py").write_text("PRICE = 9")


PROGRAM = """
import sys
from replica_service.shell.handler.loading import _checked, use_code
use_code(sys.argv[1])
import helpers, shop_free
print(helpers.PRICE, shop_free.__file__, sys.path.count(sys.argv[2]))
"""


def test_replicas_import_the_snapshot_in_place_of_the_folder_and_refuse_a_damaged_one(project: Project) -> None:
    project.write("shop_free.py")
    files = project.keep()
    project.write("helpers.py", "PRICE = 5")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(project.root), str(Path.cwd())])}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(files.parent), str(project.root)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    assert run().stdout.split() == ["1", str(files / "shop_free.py"), "0"]
    damage(files)
    said = run()
    assert said.returncode
    assert "helpers.py changed since this version was applied" in said.stderr
    project.write("helpers.py", "PRICE = 1")
    project.keep()
    assert run().stdout.split()[0] == "1", "applied again, it is whole again"


@pytest.mark.parametrize("wrong", ["", "{}", "[1]"])
def test_a_manifest_that_cannot_be_read_is_refused(wrong: str, project: Project) -> None:
    files = project.keep()
    (files.parent / MANIFEST).write_text(wrong)
    with pytest.raises(CannotStart, match="is no snapshot"):
        use_code(str(files.parent))


def test_a_manifest_of_another_snapshot_is_refused(project: Project) -> None:
    files = project.keep()
    moved = files.parent.with_name("0" * 32)
    files.parent.rename(moved)
    with pytest.raises(CannotStart, match="has the manifest of snapshot"):
        use_code(str(moved))


@pytest.mark.parametrize("path", ["json.py", "shop/json.py", "more/json.py"])
@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_a_file_that_was_added_is_refused_and_goes_with_the_next_apply(kind: str, path: str, project: Project) -> None:
    """It would be imported in place of another module."""
    project.write("data.sqlite")
    files = project.keep()
    for folder in (files, files / "shop"):
        folder.chmod(0o755)
    (files / "shop" / "__pycache__").mkdir()
    (files / "shop" / "__pycache__" / "app.pyc").touch()
    _checked(files.parent)
    (files / path).parent.mkdir(exist_ok=True)
    if kind == "file":
        (files / path).write_text("raise SystemExit")
    else:
        (files / path).symlink_to(project.root)
    with pytest.raises(CannotStart, match=f"{path} came to the code since this version was applied"):
        _checked(files.parent)
    assert project.keep() == files
    assert not (files / path).is_symlink()
    assert not (files / path).exists()
    _checked(files.parent)


def test_the_working_directory_is_looked_at_first_as_replicas_do_whatever_path_the_controller_has(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "shop").mkdir(parents=True)
    (elsewhere / "shop" / "app.py").write_text("class Shop: ...")
    monkeypatch.setattr(sys, "path", [str(elsewhere), *(it for it in sys.path if it not in {"", str(project.root)})])
    monkeypatch.chdir(project.root)
    found = project.code()
    assert found.code
    monkeypatch.chdir(elsewhere)
    assert project.code().code not in {"", found.code}


def test_what_a_change_brings_names_the_folder_and_the_files_that_differ(project: Project) -> None:
    before = project.code().code
    project.keep()
    project.write("shop/app.py", "class Shop: x = 1")
    project.write("shop/new.py")
    (project.root / "helpers.py").unlink()
    (project.root / "shop/__init__.py").chmod(0o755)
    now = project.code().code
    (change,) = project.snapshots.changes({(before, now): ["c", "b"]})
    assert (change.backends, change.folder, change.files) == (("b", "c"), str(project.root), 3)
    assert change.size_bytes == sum(it.stat().st_size for it in project.root.rglob("*.py"))
    assert (change.added, change.changed) == (("shop/new.py",), ("shop/__init__.py", "shop/app.py"))
    assert (change.removed, change.unlisted_files) == (("helpers.py",), 0)
    (first,) = project.snapshots.changes({("", now): ["b"]})
    assert (first.files, first.added, first.changed, first.removed) == (3, (), (), ())
    assert project.snapshots.changes({(before, "of an earlier time"): ["b"]}) == ()


def test_only_so_many_files_of_a_change_are_named(project: Project) -> None:
    before = project.code().code
    project.keep()
    for number in range(MOST_NAMED + 2):
        project.write(f"shop/n{number:02}.py")
    (change,) = project.snapshots.changes({(before, project.code().code): ["b"]})
    assert (len(change.added), change.unlisted_files) == (MOST_NAMED, 2)


@pytest.mark.parametrize(
    "name",
    ["nohup.out", "app.log", "app.pid", "app.py~", ".app.py.swp", ".#app.py", "#app.py#", "app.py.orig", "x.bak"],
)
def test_output_and_what_editors_leave_make_no_other_version(name: str, project: Project) -> None:
    before = project.code()
    project.write(f"shop/{name}", "x")
    assert project.code() == before
    project.write(".slotmeshignore", f"!{name.replace('#', chr(92) + '#')}")
    included = project.code()
    project.write(f"shop/{name}", "xy")
    assert project.code().code != included.code


def test_a_project_that_is_too_large_names_what_raises_the_limit_in_each_place(project: Project) -> None:
    project.write("weights", "x" * 20_000)
    assert "SLOTMESH_MAX_CODE_SIZE, also for `slotmesh run`" in project.code().problem
    (project.root / "weights").unlink()
    for number in range(60):
        project.write(f"n{number}.py")
    assert "SLOTMESH_MAX_CODE_FILES, also for `slotmesh run`" in project.code().problem
