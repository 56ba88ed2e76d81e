"""Stored files that were damaged with their size and time unchanged: replicas refuse them, `apply` restores them."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from controller_service.shell.code.project_files import CannotSnapshot
from controller_service.shell.code.snapshot_keeper import CodeSnapshots
from controller_service.shell.code.storage import CodeStorage
from replica_service.shell.handler.loading import use_code
from slotmesh.code_manifest import FILES, MANIFEST
from slotmesh.runtime.exits import CannotStart
from tests.unit.controller.code.project import HANDLER, Project


def damage(file: Path) -> None:
    """Changes a byte: neither the size nor the time of the last change shows it."""
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    file.chmod(0o444)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def on_disk() -> None:
    for thread in threading.enumerate():
        if thread.name == "sync-code":
            thread.join(30.0)


def test_apply_restores_what_replicas_refuse(project: Project) -> None:
    files = project.keep()
    on_disk()
    text = (files / "shop/app.py").read_text()
    damage(files / "shop/app.py")
    with pytest.raises(CannotStart, match=r"shop/app\.py changed since this version was applied.*apply the mesh again"):
        use_code(str(files.parent))
    assert (project.keep() / "shop/app.py").read_text() == text
    on_disk()


def test_a_damaged_file_of_another_snapshot_is_not_linked_to(project: Project) -> None:
    """Both snapshots have the same file by a hard link, so that one damage is in both."""
    project.write("prices.txt", "1")
    first = project.keep()
    on_disk()
    project.write("prices.txt", "2")
    second = project.keep()
    on_disk()
    text = (second / "shop/app.py").read_text()
    assert (first / "shop/app.py").samefile(second / "shop/app.py")
    damage(first / "shop/app.py")
    project.write("prices.txt", "3")
    code = project.code().code
    project.snapshots.keep([code])
    storage: CodeStorage = project.snapshots._storage
    assert storage.unpack(code)
    assert (storage.tree(code) / FILES / "shop/app.py").read_text() == text
    on_disk()
    project.write("prices.txt", "2")
    assert (project.keep() / "shop/app.py").read_text() == text
    on_disk()


def test_a_damaged_snapshot_whose_project_has_changed_cannot_be_applied_again(project: Project) -> None:
    files = project.keep()
    code = files.parent.name
    on_disk()
    damage(files / "shop/app.py")
    project.write("shop/app.py", "class Shop: later = 1")
    project.snapshots.versions_of([HANDLER])
    for _ in range(20):
        project.snapshots.versions_of([])  # the scan of the first files is forgotten
    with pytest.raises(CannotSnapshot, match=r"is not in .* any more: put back the folder"):
        project.snapshots.keep([code])


def test_a_manifest_that_follows_the_project_is_on_the_disk_with_its_name(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(".slotmeshignore", "notes\n")
    files = project.keep()
    on_disk()
    synced: list[tuple[str, str]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, (files.parent / MANIFEST).read_text()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    before = (files.parent / MANIFEST).read_text()
    project.write("notes")
    assert project.keep() == files
    after = (files.parent / MANIFEST).read_text()
    assert after != before, "the manifest names the link"
    assert synced == [(f"{MANIFEST}.new", before), (files.parent.name, after)]
    assert isinstance(project.snapshots._storage, CodeStorage)
    assert (files.parent / FILES / "notes").is_symlink()


def test_a_copy_of_the_folder_with_other_times_and_modes_is_whole(project: Project, tmp_path: Path) -> None:
    """As `cp -r` makes it of a backup: the files of the project may differ by then."""
    files = project.keep()
    on_disk()
    code, copy = files.parent.name, tmp_path / "copied.code"
    shutil.copytree(files.parent.parent, copy, symlinks=True, copy_function=shutil.copyfile)
    for at, path in enumerate(sorted(copy.rglob("*"), reverse=True)):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (2e9 + at, 2e9 + at))
    project.write("shop/app.py", "changed")
    copied = CodeSnapshots(lambda: copy, max_bytes=100_000, max_files=100)
    assert copied.tree_of(HANDLER, code) == str(copy / code)
    use_code(copied.tree_of(HANDLER, code))
    (copy / code / FILES / "shop/app.py").write_text("# " + (files / "shop/app.py").read_text()[2:])
    with pytest.raises(CannotSnapshot, match="is damaged in"):
        copied.tree_of(HANDLER, code)
    shutil.rmtree(copy / code)
    with pytest.raises(CannotSnapshot, match=r"is not in .*copied\.code"):
        copied.tree_of(HANDLER, code)
