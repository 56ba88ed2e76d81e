"""The folder in which snapshots of code are kept.

Invariants: a snapshot is complete or not there: it is written beside its place and renamed. It is never changed: its
files and folders are read-only. Files that two snapshots have in common are hard links, made only where the file of
the other one is as it was written.
Owner: `shell.code.snapshots`, in one thread at a time.
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

from slotmesh.code_manifest import (
    FILES,
    MANIFEST,
    BadManifest,
    CodeFile,
    CodeManifest,
    content_digest,
    manifest_of,
    manifest_text,
)
from slotmesh.telemetry.log import get_logger

_SYNCED_AT_ONCE: Final = 64
"""Up to so many new files are on the disk before the change is committed; more of them within seconds of it."""
_ON_DISK: Final = "on-disk"
"""Beside the manifest once all is on the disk: before, a power failure may have damaged what is there."""
_NEW: Final = "new-"

_log = get_logger(__name__)


class CodeChanged(Exception):
    """The files are not any more what the manifest says."""


@dataclass(frozen=True, slots=True)
class _KeptFile:
    """A file of a snapshot, as it was written."""

    path: str
    size: int
    changed_ns: int


class CodeStorage:
    """The snapshots in a folder."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        """`directory` is asked for at each use: it may follow from the port that the controller has got."""
        self._directory = directory
        self._files: dict[tuple[str, bool], _KeptFile] | None = None
        """Files that may be linked to, by content and whether they are executable; None: not looked for yet."""

    @property
    def directory(self) -> Path:
        return self._directory()

    def tree(self, code: str) -> Path:
        """Where a snapshot is, if it is there."""
        return self.directory / code

    def is_whole(self, code: str) -> bool:
        """Whether it is there, and its files are as they were written."""
        return _is_whole(self.tree(code))

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

    def keep(self, code: str, manifest: CodeManifest) -> None:
        """Stores the code of a manifest, unless it is there and whole. Raises CodeChanged, OSError."""
        tree = self.tree(code)
        if (known := _read(tree)) is not None and self.is_whole(code):
            if known.links != manifest.links or known.root != manifest.root:
                _relink(tree, known, manifest)
            os.utime(tree)
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=self.directory))
        try:
            written = self._write(new, manifest)
            if tree.exists():  # what a handler has changed in it is replaced
                _remove(tree)
            new.rename(tree)
        except BaseException:
            _remove(new)
            raise
        places = [*(f"{tree}/{it}" for it in written), f"{tree}/{MANIFEST}", str(self.directory)]
        if len(places) <= _SYNCED_AT_ONCE:
            _sync(tree, places)
        else:
            threading.Thread(target=_sync, args=(tree, places), name="sync-code", daemon=True).start()
        self._learn(tree, manifest)

    def _write(self, new: Path, manifest: CodeManifest) -> list[str]:
        """Returns the paths, within the snapshot, of files that are not links."""
        files, known = f"{new}/{FILES}", self._known()
        folders = {files}
        for path in (*(it.path for it in manifest.files), *manifest.links):
            while (path := path.rpartition("/")[0]) and f"{files}/{path}" not in folders:
                folders.add(f"{files}/{path}")
        for folder in sorted(folders):
            os.mkdir(folder)  # noqa: PTH102 - a text
        copied: list[str] = []
        for it in manifest.files:
            if not _linked(known.get((it.content, it.is_executable)), f"{files}/{it.path}"):
                _copy(f"{manifest.root}/{it.path}", f"{files}/{it.path}", it)
                copied.append(f"{FILES}/{it.path}")
        _link(Path(files), manifest)
        (new / MANIFEST).write_text(manifest_text(manifest), "utf-8")
        for folder in folders:
            os.chmod(folder, 0o555)  # noqa: PTH101, S103 - a text, for reading
        return copied

    def _known(self) -> dict[tuple[str, bool], _KeptFile]:
        if self._files is None:
            self._files = {}
            for tree in self._all():
                if (manifest := _read(tree)) is not None:
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


def _copy(source: str, target: str, file: CodeFile) -> None:
    """Raises CodeChanged: the source is not what the manifest says."""
    try:
        with open(source, "rb") as opened:  # noqa: PTH123 - thousands of them
            content = opened.read()
    except FileNotFoundError as error:
        raise CodeChanged(source) from error
    if content_digest(content) != file.content:
        raise CodeChanged(source)
    mode = 0o555 if file.is_executable else 0o444
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb", buffering=0) as out:  # noqa: PTH123 - a descriptor
        out.write(content)


def _read(tree: Path) -> CodeManifest | None:
    """None where there is no snapshot, or none that can be read."""
    try:
        return manifest_of((tree / MANIFEST).read_text("utf-8"))
    except (OSError, BadManifest):
        return None


def _is_whole(tree: Path) -> bool:
    """By sizes and times; by contents while these may not be on the disk."""
    if (manifest := _read(tree)) is None:
        return False
    try:
        if not (tree / _ON_DISK).exists():
            contents = (Path(tree, FILES, it.path).read_bytes() for it in manifest.files)
            return all(content_digest(found) == it.content for it, found in zip(manifest.files, contents, strict=True))
        changed_ns = (tree / MANIFEST).stat().st_mtime_ns
        found = (os.stat(f"{tree}/{FILES}/{it.path}") for it in manifest.files)  # noqa: PTH116 - thousands of them
        return all(
            stat.st_size == it.size and stat.st_mtime_ns <= changed_ns
            for it, stat in zip(manifest.files, found, strict=True)
        )
    except OSError:
        return False


def _linked(known: _KeptFile | None, target: str) -> bool:
    """Whether a file could be had of another snapshot."""
    if known is None:
        return False
    try:
        found = os.stat(known.path)  # noqa: PTH116 - thousands of them
        if found.st_size != known.size or found.st_mtime_ns > known.changed_ns:
            return False
        os.link(known.path, target)
    except OSError:  # it was removed, or the file system has no hard links, or no more of this file
        return False
    return True


def _link(files: Path, manifest: CodeManifest) -> None:
    for path, place in manifest.links.items():
        with suppress(FileExistsError):
            (files / path).symlink_to(place)


def _relink(tree: Path, known: CodeManifest, manifest: CodeManifest) -> None:
    """The files are the same, but what is ignored, or where the project is, has changed."""
    files = tree / FILES
    stamp = (tree / MANIFEST).stat()
    folders = {parent for path in (*known.links, *manifest.links) for parent in (files / path).parents}
    folders = {it for it in folders if it.is_relative_to(files)}
    for folder in sorted(folders):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    for path in known.links:
        if (files / path).is_symlink():
            (files / path).unlink()
    _link(files, manifest)
    new = tree / f"{MANIFEST}.new"
    new.write_text(manifest_text(replace(known, root=manifest.root, links=manifest.links)), "utf-8")
    os.utime(new, ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    new.replace(tree / MANIFEST)
    for folder in folders:
        folder.chmod(0o555)


def _sync(tree: Path, paths: Collection[str]) -> None:
    """Has them on the disk."""
    try:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        (tree / _ON_DISK).touch()
    except (
        OSError
    ) as error:  # it was removed meanwhile, or the disk is broken: it is looked at as a whole when it is used
        _log.warning("a snapshot of code may not be on the disk", snapshot=tree.name, error=str(error))


def _remove(tree: Path) -> None:
    """Its folders are read-only."""
    for folder, _, _ in os.walk(tree):
        with suppress(OSError):
            os.chmod(folder, 0o700)  # noqa: PTH101 - a text
    shutil.rmtree(tree, ignore_errors=True)
