"""A snapshot is stored as one file, and unpacked when a replica needs it: damage, power failures, a full disk."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller_service.shell.code import storage
from controller_service.shell.code.project_files import CannotSnapshot
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from controller_service.shell.code.storage import PACK
from controller_service.shell.code.writing import write_file
from slotmesh.code_manifest import FILES, MANIFEST

HANDLER = "shop.app:Shop"
FILES_OF_SHOP = {"shop/__init__.py": "", "shop/app.py": "class Shop: ...", "prices.txt": "1", "empty.txt": ""}


class PackedProject:
    """A folder on the import path whose snapshot was taken, and not unpacked."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.snapshots = CodeSnapshots(lambda: folder, max_bytes=100_000, max_files=100)
        for path, text in FILES_OF_SHOP.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        self.code = self.take()
        self.tree = folder / self.code

    def take(self) -> str:
        code = self.snapshots.versions_of([HANDLER])[HANDLER].code
        self.snapshots.keep([code])
        return code

    def unpack(self) -> dict[str, str]:
        """The texts that replicas find."""
        assert self.snapshots.tree_of(HANDLER, self.code) == str(self.tree)
        files = self.tree / FILES
        return {it.relative_to(files).as_posix(): it.read_text() for it in files.rglob("*") if it.is_file()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackedProject]:
    monkeypatch.syspath_prepend(str(tmp_path / "project"))
    project = PackedProject(tmp_path / "project", tmp_path / "state.code")
    yield project
    on_disk()
    project.snapshots.collect((), settle_s=0.0)


def on_disk() -> None:
    """Waits until what was unpacked is on the disk."""
    for thread in threading.enumerate():
        if thread.name == "sync-code":
            thread.join(30.0)


@pytest.fixture
def never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power fails before unpacked files are on the disk."""
    monkeypatch.setattr(storage, "_sync_files", lambda *_: None)


def names(tree: Path) -> set[str]:
    return {it.name for it in tree.iterdir()}


def test_what_is_stored_at_first_is_one_file_and_its_manifest(project: PackedProject) -> None:
    assert names(project.tree) == {MANIFEST, PACK}
    assert project.unpack() == FILES_OF_SHOP
    on_disk()
    assert PACK not in names(project.tree), "once the files are on the disk they are all that is needed"
    assert project.unpack() == FILES_OF_SHOP


@pytest.mark.usefixtures("never_synced")
@pytest.mark.parametrize("damage", ["", "2", "longer"])
def test_files_that_were_not_on_the_disk_yet_are_unpacked_again(damage: str, project: PackedProject) -> None:
    """Also if the project has changed meanwhile."""
    project.unpack()
    file = project.tree / FILES / "prices.txt"
    file.chmod(0o644)
    file.write_text(damage)
    os.utime(file, (1, 1))  # neither its time nor, for one of them, its size tells it
    (project.root / "prices.txt").write_text("7")
    again = CodeSnapshots(lambda: project.tree.parent, max_bytes=100_000, max_files=100)
    assert again.tree_of(HANDLER, project.code) == str(project.tree)
    assert file.read_text() == "1"


def test_an_unpacking_that_was_cut_short_is_begun_anew(project: PackedProject) -> None:
    unfinished = project.tree / f"{FILES}.new"
    (unfinished / "shop").mkdir(parents=True)
    (unfinished / "shop" / "left.py").write_text("x")
    assert project.unpack() == FILES_OF_SHOP


@pytest.mark.parametrize("pack", ["class Shop: ???1", "", "class Shop: ...1 and more"])
def test_a_damaged_pack_is_taken_again_if_the_files_are_the_same(pack: str, project: PackedProject) -> None:
    (project.tree / PACK).write_text(pack)
    (project.root / "prices.txt").write_text("7")
    with pytest.raises(CannotSnapshot, match="is damaged in"):
        project.unpack()
    assert not (project.tree / FILES).exists()
    (project.root / "prices.txt").write_text("1")
    assert project.unpack() == FILES_OF_SHOP


def test_a_pack_that_was_cut_short_is_found_out_before_a_version_is_gone_back_to(project: PackedProject) -> None:
    os.truncate(project.tree / PACK, 3)
    other = CodeSnapshots(lambda: project.tree.parent, max_bytes=100_000, max_files=100)
    with pytest.raises(CannotSnapshot, match="is not in"):
        other.keep([project.code])


def test_what_is_ignored_meanwhile_is_linked_when_it_is_unpacked(project: PackedProject) -> None:
    (project.root / "data.sqlite").write_text("rows")
    assert project.take() == project.code
    assert names(project.tree) == {MANIFEST, PACK}
    assert project.unpack() == {**FILES_OF_SHOP, "data.sqlite": "rows"}
    assert (project.tree / FILES / "data.sqlite").is_symlink()


def test_a_disk_without_room_for_the_files_is_named(project: PackedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "write_file", no_room)
        with pytest.raises(CannotSnapshot, match=r"cannot be unpacked in .*: No space left on device"):
            project.unpack()
    assert project.unpack() == FILES_OF_SHOP


def test_replicas_that_start_at_the_same_time_find_the_same_files(
    project: PackedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writing = write_file, threading.Lock()

    def alone(target: str, data: bytes, mode: int) -> None:
        assert writing.acquire(blocking=False), "two unpack at the same time"
        try:
            threading.Event().wait(0.01)  # long enough for the others to come
            write(target, data, mode)
        finally:
            writing.release()

    monkeypatch.setattr(storage, "write_file", alone)
    with ThreadPoolExecutor(8) as pool:
        trees = {*pool.map(lambda _: project.snapshots.tree_of(HANDLER, project.code), range(32))}
    assert trees == {str(project.tree)}
    assert project.unpack() == FILES_OF_SHOP


def test_a_project_without_content_has_an_empty_pack(project: PackedProject) -> None:
    for path in FILES_OF_SHOP:
        (project.root / path).write_text("")
    project.code = project.take()
    project.tree = project.tree.parent / project.code
    assert project.unpack() == dict.fromkeys(FILES_OF_SHOP, "")


def test_files_that_another_snapshot_has_are_on_the_disk_before_the_pack_goes(
    project: PackedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails before those of the first snapshot are, which the second one has links to."""
    with monkeypatch.context() as patched:
        patched.setattr(storage, "_sync_files", lambda *_: None)
        project.unpack()
    synced: set[int] = set()
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    (project.root / "prices.txt").write_text("7")
    project.code = project.take()
    project.tree = project.tree.parent / project.code
    monkeypatch.setattr(os, "fsync", note)
    project.unpack()
    on_disk()
    assert PACK not in names(project.tree)
    found = [it for it in (project.tree / FILES).rglob("*") if it.is_file()]
    assert any(it.stat().st_nlink > 1 for it in found)
    assert not [it for it in (project.tree / FILES, *found) if it.stat().st_ino not in synced]


@pytest.mark.parametrize("special", ["run.sh", "same.sh", "alike.sh"])
@pytest.mark.parametrize(("before", "after"), [(0o644, 0o755), (0o755, 0o644), (0o644, 0o644), (0o755, 0o755)])
def test_a_file_is_had_of_another_snapshot_only_with_its_content_and_its_mode(
    before: int, after: int, special: str, project: PackedProject
) -> None:
    """Three files with one content, of which one changes its mode, and another file that makes another version."""
    scripts = ("run.sh", "same.sh", "alike.sh")
    for name in scripts:
        (project.root / name).write_text("exit 0")
        (project.root / name).chmod(before if name == special else 0o644)
    project.snapshots.tree_of(HANDLER, project.take())
    on_disk()
    (project.root / special).chmod(after)
    (project.root / "prices.txt").write_text("2")
    files = Path(project.snapshots.tree_of(HANDLER, project.take()), FILES)
    assert {name: (files / name).read_text() for name in scripts} == dict.fromkeys(scripts, "exit 0")
    modes = {name: stat.S_IMODE((files / name).stat().st_mode) for name in scripts}
    assert modes == {name: 0o555 if name == special and after == 0o755 else 0o444 for name in scripts}


@pytest.mark.parametrize("by", ["a pack", "its files"])
def test_what_takes_the_place_of_files_that_are_being_synced_is_not_on_the_disk_by_that(
    by: str, project: PackedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, begun, goes_on = os.fsync, threading.Event(), threading.Event()

    def wait(descriptor: int) -> None:
        if threading.current_thread().name == "sync-code" and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            begun.set()  # the files are on the disk already
            assert goes_on.wait(30.0)
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", wait)
        project.unpack()
        assert begun.wait(30.0)
        project.snapshots.collect((), settle_s=0.0)
        project.take()
        if by == "its files":
            patched.setattr(storage, "_sync_files", lambda *_: None)
            project.unpack()
        goes_on.set()
        on_disk()
    assert names(project.tree) == {MANIFEST, PACK} | ({FILES} if by == "its files" else set())
    assert project.unpack() == FILES_OF_SHOP
