"""The versions of handlers' code: digests of the files of their modules, as replicas on this machine would import them.

Invariants: nothing is imported, nor executed; a handler whose module is not found, or is no file, has no version. Only
the module itself counts: for what it imports, operators write a `version`.
Owner: the configurator, in a thread of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from slotmesh.spec.model import CODE

MAX_BYTES: Final = 16 * 2**20
"""A larger file has no version."""


def read_code(handlers: Collection[str]) -> Mapping[str, str]:
    """The version of each handler, `MODULE:NAME`, that is found."""
    found: dict[str, str] = {}
    for handler in handlers:
        path = _file_of(handler.partition(":")[0])
        if path is None:
            continue
        try:
            with path.open("rb") as file:
                code = file.read(MAX_BYTES + 1)
        except OSError:
            continue
        if len(code) <= MAX_BYTES:
            found[handler] = CODE + blake2b(code, digest_size=6).hexdigest()
    return found


def _file_of(module: str) -> Path | None:
    """Where a module's source is. Its parents are not imported for that."""
    PathFinder.invalidate_caches()
    places: list[str] | None = [*sys.path]
    path: Path | None = None
    name = ""
    for part in module.split("."):
        if places is None:
            return None
        name = f"{name}.{part}" if name else part
        try:
            spec = PathFinder.find_spec(name, places)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None:
            return None
        path = Path(spec.origin) if spec.origin and spec.has_location else None
        places = None if spec.submodule_search_locations is None else [*spec.submodule_search_locations]
    return path
