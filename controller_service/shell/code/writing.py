"""Writes the files and links of snapshots: what must survive a power failure is synced.

Invariants: no symlink of the snapshot is followed, so nothing in the project is touched. Links point to ignored files,
which are no part of the version and stay where they are; links other than those of the manifest are set anew.
Owner: `shell.code.storage`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from controller_service.shell.code.project_files import read_file
from slotmesh.code_manifest import CodeFile, CodeManifest, content_digest


def make_links(files: Path, links: Mapping[str, str]) -> None:
    """Those that are not there yet: the folders that they are in are, and can be written to."""
    for path, place in links.items():
        with suppress(FileExistsError):
            (files / path).symlink_to(place)


def has_links(files: Path, links: Mapping[str, str]) -> bool:
    """Whether each of these is there, and leads where it is to."""
    try:
        return all(os.readlink(files / path) == place for path, place in links.items())  # noqa: PTH115 - a text
    except OSError:
        return False


def set_links(files: Path, links: Mapping[str, str]) -> None:
    """Has these links, and no others, whatever is there: links of before, or a part of these."""
    for place, _, _ in os.walk(files):
        os.chmod(place, 0o755)  # noqa: PTH101, S103 - a text, for reading
    for place, folders, names in os.walk(files, topdown=False):
        for name in (*folders, *names):
            found = Path(place, name)
            if found.is_symlink():
                if links.get(found.relative_to(files).as_posix()) != str(found.readlink()):
                    found.unlink()
            elif name in folders:
                with suppress(OSError):  # it is not empty; else it was there for links only
                    found.rmdir()
    for path in links:
        (files / path).parent.mkdir(parents=True, exist_ok=True)
    make_links(files, links)
    for place, _, _ in os.walk(files):
        os.chmod(place, 0o555)  # noqa: PTH101, S103 - a text, for reading


BUFFER_BYTES: Final = 2**20


class CodeChanged(Exception):
    """The files differ from the manifest."""


def write_file(target: str, data: bytes, mode: int) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def write_pack(pack: Path, manifest: CodeManifest, data_of: Callable[[str], bytes | None]) -> None:
    """Raises CodeChanged, OSError."""
    with pack.open("xb", buffering=BUFFER_BYTES) as out:
        for it in manifest.files:
            if (data := data_of(it.content)) is None:
                data = _read_as_listed(f"{manifest.root}/{it.path}", it)
            out.write(data)
        out.flush()
        os.fsync(out.fileno())


def write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def sync(path: str | Path, within: int | None = None) -> None:
    """A file or a folder; `within`: the folder that a relative path begins in."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=within)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_as_listed(source: str, file: CodeFile) -> bytes:
    """Raises CodeChanged if the source differs from the manifest."""
    try:
        data = read_file(source, file.size)
    except FileNotFoundError as error:
        raise CodeChanged(source) from error
    if content_digest(data) != file.content:
        raise CodeChanged(source)
    return data
