"""The files of an unpacked snapshot: whether there are others than its manifest has. The controller and replicas ask.

Invariants: nothing is read, and no symlink is followed. What Python itself writes, `__pycache__`, does not count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from slotmesh.code_manifest import CodeManifest

_WRITTEN_BY_PYTHON = "__pycache__"


def added_files(files: str, manifest: CodeManifest) -> Iterator[str]:
    """The paths of files and symlinks below the folder `files` that are not part of the snapshot.

    One of them may be imported in place of another module: a user whom modes do not hold, as root, can add it.
    """
    known = {it.path for it in manifest.files} | manifest.links.keys()
    for place, folders, names in os.walk(files):
        inside = place[len(files) + 1 :]
        if _WRITTEN_BY_PYTHON in folders:
            folders.remove(_WRITTEN_BY_PYTHON)
        symlinks = [it for it in folders if os.path.islink(f"{place}/{it}")]  # noqa: PTH114 - thousands of them
        for name in (*names, *symlinks):
            path = f"{inside}/{name}" if inside else name
            if path not in known:
                yield path
