"""The folder in which snapshots of code are kept.

Purpose: when a version is applied, one file is stored, its *pack*: the contents of all files, one after another. Of
thousands of files each would wait for the journal of the file system. They are unpacked when a replica needs them.
Invariants: a snapshot is complete or not there: it is written beside its place, synced and renamed. It is never
changed: its files and folders are read-only. The pack stays until the unpacked files are on the disk. Files that two
snapshots have in common are hard links, made only where the file of the other one is as it was written.
Owner: `shell.code.snapshot_keeper`, in one thread at a time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller_service.shell.code.writing import (
    BUFFER_BYTES,
    CodeChanged,
    has_links,
    make_links,
    set_links,
    sync,
    write_file,
    write_pack,
    write_synced,
)
from slotmesh.code_manifest import (
    FILES,
    MANIFEST,
    BadManifest,
    CodeManifest,
    added_files,
    content_digest,
    manifest_of,
    manifest_text,
)
from slotmesh.logs import get_logger

PACK: Final = "pack"
"""Beside the manifest: the contents of its files, in its order."""
_ON_DISK: Final = "on-disk"
"""Beside the manifest once all files are on the disk: before, a power failure may have damaged what is there."""
_NEW: Final = "new-"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _KeptFile:
    """A file of a snapshot, as it was written."""

    path: str
    size: int
    changed_ns: int


class CodeStorage:
    """The snapshots in a folder."""

    def __init__(self, directory: Callable[[], Path], lock: threading.Lock) -> None:
        """`directory` is called at each use: it may depend on the port that the controller has got.

        `lock` is held by the callers of all methods.
        """
        self._lock = lock
        self._directory = directory
        self._files: dict[tuple[str, bool], _KeptFile] | None = None
        """Files that may be linked to, by content and whether they are executable; None: not looked for yet."""

    @property
    def directory(self) -> Path:
        return self._directory()

    def tree(self, code: str) -> Path:
        """Where a snapshot is, if it is there."""
        return self.directory / code

    def manifest(self, code: str) -> CodeManifest | None:
        """That of a snapshot; None if it is not there."""
        return _read(self.tree(code)) if code else None

    def is_whole(self, code: str) -> bool:
        """Whether it is there: its files have the contents that were applied, or can be unpacked.

        Reads them all: a file may be damaged without that its size and its time change, and replicas refuse it.
        """
        tree = self.tree(code)
        if (manifest := _read(tree)) is None:
            return False
        return _has_pack(tree, manifest) or (_is_unpacked(tree, manifest) and _has_contents(tree, manifest))

    def unpack(self, code: str) -> bool:
        """Has the files of a snapshot as they were written. Returns whether they are. Raises OSError."""
        tree = self.tree(code)
        if (manifest := _read(tree)) is None:
            return False
        if _is_unpacked(tree, manifest):
            _require_links(tree / FILES, manifest)
            return True
        if not _has_pack(tree, manifest):
            return False
        new = tree / f"{FILES}.new"
        _remove(new)
        (tree / _ON_DISK).unlink(missing_ok=True)
        try:
            self._unpack(new, tree / PACK, manifest)
        except CodeChanged:
            _remove(new)
            (tree / PACK).unlink()  # nothing can be had of it: the snapshot is taken again, if the project is the same
            return False
        _remove(tree / FILES)
        new.rename(tree / FILES)
        os.utime(tree / MANIFEST)  # no file is younger, unless it was changed
        self._learn(tree, manifest)
        files = os.open(tree / FILES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        threading.Thread(
            target=_sync_files, args=(tree, files, manifest, self._lock), name="sync-code", daemon=True
        ).start()
        return True

    def remove_others(self, needed: Collection[str], *, settle_s: float) -> list[str]:
        """Removes the snapshots that are not needed, and were not taken or applied lately. Returns which."""
        removed: list[str] = []
        for path in self._all():
            with suppress(OSError):
                if path.name not in needed and time.time() - path.stat().st_mtime >= settle_s:
                    _remove(path)
                    removed.append(path.name)
        if removed:
            self._files = None
        return removed

    def discard(self) -> None:
        """Removes all, and the folders, where these are empty then."""
        self.remove_others((), settle_s=0.0)
        with suppress(OSError):
            self.directory.rmdir()
            self.directory.parent.rmdir()

    def keep(self, code: str, manifest: CodeManifest, data_of: Callable[[str], bytes | None]) -> None:
        """Stores the code of a manifest, unless it is there and whole. Raises CodeChanged, OSError.

        `data_of`: the content of a digest, if it is at hand; else it is read from the files that the manifest is of.
        """
        tree = self.tree(code)
        if (known := _read(tree)) is not None and self.is_whole(code):
            if known.links != manifest.links or known.root != manifest.root:
                _relink(tree, known, manifest)
            os.utime(tree)
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.directory))
        try:
            write_pack(new / PACK, manifest, data_of)
            write_synced(new / MANIFEST, manifest_text(manifest).encode("utf-8"))
            sync(new)
            if tree.exists():  # what a handler has changed in it is replaced
                _remove(tree)
            new.rename(tree)
            sync(self.directory)
        except BaseException:
            _remove(new)
            raise

    def _unpack(self, files: Path, pack: Path, manifest: CodeManifest) -> None:
        """Raises CodeChanged: the pack is damaged."""
        folders, known = {str(files)}, self._known_beside(files.parent)
        for path in (*(it.path for it in manifest.files), *manifest.links):
            while (path := path.rpartition("/")[0]) and f"{files}/{path}" not in folders:
                folders.add(f"{files}/{path}")
        for folder in sorted(folders):
            os.mkdir(folder)  # noqa: PTH102 - a text
        with pack.open("rb", buffering=BUFFER_BYTES) as packed:
            for it in manifest.files:
                data = packed.read(it.size)
                if not _linked(known.get((it.content, it.is_executable)), f"{files}/{it.path}", data):
                    if content_digest(data) != it.content:
                        raise CodeChanged(str(pack))
                    write_file(f"{files}/{it.path}", data, 0o555 if it.is_executable else 0o444)
        make_links(files, manifest.links)
        for folder in folders:
            os.chmod(folder, 0o555)  # noqa: PTH101, S103 - a text, for reading

    def _known_beside(self, tree: Path) -> dict[tuple[str, bool], _KeptFile]:
        """Files that may be linked to: those of other snapshots, as the files of this one may be damaged."""
        return {key: it for key, it in self._known().items() if not it.path.startswith(f"{tree}/")}

    def _known(self) -> dict[tuple[str, bool], _KeptFile]:
        if self._files is None:
            self._files = {}
            for tree in self._all():
                if (tree / _ON_DISK).exists() and (manifest := _read(tree)) is not None:
                    self._learn(tree, manifest)
        return self._files

    def _all(self) -> Iterator[Path]:
        if self.directory.is_dir():
            yield from self.directory.iterdir()

    def _learn(self, tree: Path, manifest: CodeManifest) -> None:
        if self._files is None:
            return
        changed_ns = (tree / MANIFEST).stat().st_mtime_ns
        for it in manifest.files:
            self._files[it.content, it.is_executable] = _KeptFile(f"{tree}/{FILES}/{it.path}", it.size, changed_ns)


def _read(tree: Path) -> CodeManifest | None:
    """None if there is no snapshot, or none that can be read."""
    try:
        return manifest_of((tree / MANIFEST).read_text("utf-8"))
    except (OSError, BadManifest):
        return None


def _has_pack(tree: Path, manifest: CodeManifest) -> bool:
    """It was on the disk before the snapshot was there: its size shows whether it is whole."""
    try:
        return (tree / PACK).stat().st_size == sum(it.size for it in manifest.files)
    except OSError:
        return False


def _is_unpacked(tree: Path, manifest: CodeManifest) -> bool:
    """By sizes and times; by contents while these may not be on the disk, or where times differ, as those of a copy.

    Symlinks of earlier links do not count.
    """
    if any(not os.path.islink(f"{tree}/{FILES}/{it}") for it in added_files(f"{tree}/{FILES}", manifest)):  # noqa: PTH114
        return False
    try:
        if not (tree / _ON_DISK).exists():
            return _has_contents(tree, manifest)
        changed_ns = (tree / MANIFEST).stat().st_mtime_ns
        found = (os.stat(f"{tree}/{FILES}/{it.path}") for it in manifest.files)  # noqa: PTH116 - thousands of them
        if all(
            stat.st_size == it.size and stat.st_mtime_ns <= changed_ns
            for it, stat in zip(manifest.files, found, strict=True)
        ):
            return True
    except OSError:
        return False
    return _has_contents(tree, manifest)


def _has_contents(tree: Path, manifest: CodeManifest) -> bool:
    try:
        for it in manifest.files:
            with open(f"{tree}/{FILES}/{it.path}", "rb", buffering=0) as file:  # noqa: PTH123 - thousands of them
                if content_digest(file.read()) != it.content:
                    return False
    except OSError:
        return False
    return True


def _linked(known: _KeptFile | None, target: str, data: bytes) -> bool:
    """Whether a file with this content could be had of another snapshot."""
    if known is None:
        return False
    try:
        found = os.stat(known.path)  # noqa: PTH116 - thousands of them
        if found.st_size != known.size or found.st_mtime_ns > known.changed_ns:
            return False
        with open(known.path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of them
            if file.read() != data:
                return False
        os.link(known.path, target)
    except OSError:  # it was removed, or the file system has no hard links, or no more of this file
        return False
    return True


def _require_links(files: Path, manifest: CodeManifest) -> None:
    if not has_links(files, manifest.links) or any(added_files(str(files), manifest)):
        set_links(files, manifest.links)


def _relink(tree: Path, known: CodeManifest, manifest: CodeManifest) -> None:
    """The files are the same, but what is ignored, or where the project is, has changed.

    The manifest comes last: if this is ended half-way, the links do not match it, and are set anew.
    """
    if (tree / FILES).exists():
        set_links(tree / FILES, manifest.links)
    stamp = (tree / MANIFEST).stat()
    new = tree / f"{MANIFEST}.new"
    new.unlink(missing_ok=True)
    write_synced(new, manifest_text(replace(known, root=manifest.root, links=manifest.links)).encode("utf-8"))
    os.utime(new, ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    new.replace(tree / MANIFEST)
    sync(tree)


def _sync_files(tree: Path, files: int, manifest: CodeManifest, lock: threading.Lock) -> None:
    """Flushes unpacked files to the disk, then removes the pack. Closes `files`, the descriptor of their folder.

    Also those that another snapshot has, too: they may have been unpacked just before.
    """
    try:
        for it in manifest.files:
            sync(it.path, files)
        for folder, _, _ in os.walk(tree):
            sync(folder)
        with lock:
            if os.path.samestat(os.fstat(files), (tree / FILES).stat()):  # else there are others in their place
                sync(tree / MANIFEST)  # its time shows which files have changed since
                (tree / _ON_DISK).touch()
                sync(tree)
                (tree / PACK).unlink(missing_ok=True)
    except OSError as error:  # it was removed meanwhile, or the disk is broken: the pack stays
        _log.warning("a snapshot of code may not be on the disk", snapshot=tree.name, error=str(error))
    finally:
        os.close(files)


def _remove(tree: Path) -> None:
    """Its folders are read-only."""
    for folder, _, _ in os.walk(tree):
        with suppress(OSError):
            os.chmod(folder, 0o700)  # noqa: PTH101 - a text
    shutil.rmtree(tree, ignore_errors=True)
