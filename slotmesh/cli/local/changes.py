"""Which files of a local mesh have changed: the modules of its handlers, and the file that it comes from.

Invariants: a change is seen once; a file that is missing for a while, as when an editor replaces it, has not changed
until it is there again. No module is imported to find its file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_Stamp = tuple[int, int]
"""Time of the last change in nanoseconds, and size in bytes."""


class FileChanges:
    """Compares files with what they were when they were looked at last."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _stamp(path) for path in paths}

    def watch(self, paths: Iterable[Path]) -> frozenset[Path]:
        """Looks at these from now on, and no others. Returns those that it did not look at before."""
        before = self._seen
        self._seen = {path: before[path] if path in before else _stamp(path) for path in paths}
        return frozenset(self._seen.keys() - before.keys())

    def take(self) -> frozenset[Path]:
        """The files that have changed since the last time."""
        now = {path: _stamp(path) for path in self._seen}
        changed = {path: stamp for path, stamp in now.items() if stamp is not None and stamp != self._seen[path]}
        self._seen.update(changed)
        return frozenset(changed)


def module_file(handler: str, folders: Iterable[str]) -> Path | None:
    """The source file of the module of `MODULE:NAME`, in the first of these folders that has it."""
    parts = handler.partition(":")[0].split(".")
    for folder in folders:
        base = Path(folder or os.curdir, *parts)
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if path.is_file():
                return path.resolve()
    return None


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
