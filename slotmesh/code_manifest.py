"""The manifest of a snapshot of handlers' code: the controller takes it, and replicas check it before an import. Pure.

Invariants: the digest covers the paths, contents and executable bits of the files, and nothing else: neither times nor
the folder that they came from. `links` name files that are not part of the version: they stay where they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

_WRITTEN_BY_PYTHON = "__pycache__"


def added_files(files: str, manifest: CodeManifest) -> Iterator[str]:
    """The paths of files and symlinks below the folder `files` that are not part of the snapshot.

    One of them could be imported in place of another module: a user to whom file modes do not apply, as root, can add
    it. No file is read, and no symlink is followed. `__pycache__`, which Python writes, is ignored.
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


MANIFEST: Final = "manifest.json"
"""Its file, beside the folder `FILES` of the snapshot."""
FILES: Final = "files"
"""The folder that replicas import from."""
_DIGEST_BYTES: Final = 16
_SNAPSHOT: Final = re.compile(f"[0-9a-f]{{{2 * _DIGEST_BYTES}}}")
_BEGIN: Final = b'{"root": "'
"""Of each manifest, as `manifest_text` writes it."""


class BadManifest(ValueError):
    """A manifest that cannot be read."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of a snapshot."""

    path: str
    """Relative to the root, with `/`."""
    size: int
    """Bytes."""
    content: str
    """`content_digest` of its bytes."""
    is_executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeManifest:
    """The content of a snapshot."""

    root: str
    """The folder that it was taken of: replicas import from the snapshot in its place."""
    files: tuple[CodeFile, ...]
    """By path."""
    links: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Ignored files and folders: where they are, by path."""

    @property
    def digest(self) -> str:
        """The identity of the code: equal exactly if all files are."""
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for it in self.files:
            digest.update(b"%s\0%d\0%s\n" % (os.fsencode(it.path), it.is_executable, it.content.encode()))
        return digest.hexdigest()


def content_digest(content: bytes) -> str:
    """Of the bytes of one file."""
    return blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def manifest_text(manifest: CodeManifest) -> str:
    """As it is stored."""
    files = [[it.path, it.size, it.content, it.is_executable] for it in manifest.files]
    return json.dumps({"root": manifest.root, "files": files, "links": dict(manifest.links)})


def is_snapshot(folder: str) -> bool:
    """Whether a folder is a snapshot, of any controller: by its name, and by the begin of its manifest."""
    if not _SNAPSHOT.fullmatch(folder.rpartition("/")[2]):
        return False
    try:
        with open(f"{folder}/{MANIFEST}", "rb") as file:  # noqa: PTH123 - thousands of them
            return file.read(len(_BEGIN)) == _BEGIN
    except OSError:
        return False


def manifest_of(text: str) -> CodeManifest:
    """Raises BadManifest."""
    try:
        document: dict[str, Any] = json.loads(text)
        files: Sequence[Sequence[Any]] = document["files"]
        return CodeManifest(
            root=document["root"], files=tuple(CodeFile(*it) for it in files), links=dict(document["links"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadManifest(str(error)) from error
