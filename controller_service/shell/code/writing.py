"""Writing the files of snapshots: what must survive a power failure is synced.

Owner: `shell.code.storage`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller_service.shell.code.scanning import read_file
from slotmesh.code_manifest import CodeFile, CodeManifest, content_digest

BUFFER_BYTES: Final = 2**20


class CodeChanged(Exception):
    """The files are not any more what the manifest says."""


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
    """Raises CodeChanged: the source is not what the manifest says."""
    try:
        data = read_file(source, file.size)
    except FileNotFoundError as error:
        raise CodeChanged(source) from error
    if content_digest(data) != file.content:
        raise CodeChanged(source)
    return data
