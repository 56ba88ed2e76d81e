"""The controller's own files, which are part of no snapshot: the state file, the launch directory.

Invariants: they are known by the folder that they are in, and not by its path: a project may be on the import path by
another path than that of the state file in it, as by a symlink. Files of the project that are only named alike, as
`run.py` beside the launch directory `run`, are not left out.
Owner: `shell.code.scanning`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

FileId = tuple[int, int]
"""Device and inode."""
_BESIDE: Final = re.compile(
    r"(-(wal|shm|journal|room)|\.(code|lock|events|damaged|unfinished)|\.backup-v\d+|\.standby-[\w-]+(\.new)?)*"
)
"""What the names of files that the store keeps beside the state file have after its name."""


class OwnFiles:
    """As they are when `look` was called last."""

    def __init__(self, own: Collection[Path]) -> None:
        self._paths = frozenset(path for it in own for path in (it.absolute(), it.resolve()))
        self._names: dict[FileId, set[str]] = {}
        """By the folder that they are in; also where there is no such file yet."""
        self._ids: set[FileId] = set()

    def look(self) -> None:
        """Before a walk: which folders and files they are."""
        self._names.clear()
        self._ids = {*_ids(self._paths)}
        for path in self._paths:
            for folder in _ids([path.parent]):
                self._names.setdefault(folder, set()).add(path.name)

    def has(self, found: FileId) -> bool:
        """Whether a file or folder is one of them, whatever the path by which it was found."""
        return found in self._ids

    def has_beside(self, folder: FileId, name: str) -> bool:
        """Whether what has that name in a folder is one of them, or kept beside one."""
        return any(
            name.startswith(it) and _BESIDE.fullmatch(name, len(it)) is not None for it in self._names.get(folder, ())
        )


def _ids(paths: Collection[Path]) -> Iterator[FileId]:
    for path in paths:
        with suppress(OSError):
            found = path.stat()
            yield found.st_dev, found.st_ino
