"""The code that a replica imports: a snapshot that the controller has taken, or an installed distribution.

Invariants: nothing is imported from a snapshot whose files are not what was applied. On the import path the snapshot
takes the place of the folder that it was taken of; other entries stay, and so does the working directory.
Owner: `shell.handler.loading`, once in the life of a process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from slotmesh.code_files import added_files
from slotmesh.code_manifest import FILES, MANIFEST, BadManifest, CodeManifest, content_digest, manifest_of
from slotmesh.runtime.exits import CannotStart
from slotmesh.spec.model import DISTRIBUTION

_PATHS: dict[str, str] = {}
"""Of the snapshot that is imported from: the beginning of its paths, and that of the same ones in the project."""


def shown_paths(text: str) -> str:
    """A text for the author of the handler: with the paths of the project, and not those of a snapshot."""
    for files, root in _PATHS.items():
        text = text.replace(files, root)
    return text


def use_code(code: str) -> None:
    """Has modules imported from it. Raises CannotStart: it is not what was applied."""
    if code.startswith(DISTRIBUTION):
        _require_installed(*code.removeprefix(DISTRIBUTION).split("=="))
        return
    tree = Path(code)
    manifest = _checked(tree)
    files, root = str(tree / FILES), manifest.root
    _PATHS[f"{files}{os.sep}"] = f"{root}{os.sep}"
    sys.path[:] = [files if _leads_to(it, root) else it for it in sys.path]
    if files not in sys.path:
        sys.path.insert(0, files)
    if path := os.environ.get("PYTHONPATH"):  # of what the handler starts
        os.environ["PYTHONPATH"] = os.pathsep.join(
            files if _leads_to(it, root) else it for it in path.split(os.pathsep)
        )
    importlib.invalidate_caches()


def _require_installed(name: str, version: str) -> None:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = "no version"
    if found != version:
        raise CannotStart(
            f"this backend runs {name} {version}, but {found} of it is installed: install {name}=={version}, or apply "
            "the mesh again to run what is installed"
        )


def _checked(tree: Path) -> CodeManifest:
    try:
        manifest = manifest_of((tree / MANIFEST).read_text("utf-8"))
    except (OSError, BadManifest) as error:
        raise CannotStart(f"{tree}: is no snapshot of code: {error}; apply the mesh again") from error
    if manifest.digest != tree.name:
        raise CannotStart(f"{tree}: has the manifest of snapshot {manifest.digest}; apply the mesh again")
    changed = [*_changed(tree / FILES, manifest)]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise CannotStart(
            f"{tree}: {', '.join(changed[:3])}{more} changed since this version was applied, so it does not start. A "
            "handler must not write to its own files; apply the mesh again to restore them"
        )
    added = [*added_files(str(tree / FILES), manifest)]
    if added:
        more = f" and {len(added) - 3} more" if len(added) > 3 else ""
        raise CannotStart(
            f"{tree}: {', '.join(added[:3])}{more} came to the code since this version was applied, so it does not "
            "start: it might be imported in place of another module. A handler must not write beside its code; apply "
            "the mesh again to restore it"
        )
    return manifest


def _changed(files: Path, manifest: CodeManifest) -> Iterator[str]:
    for it in manifest.files:
        try:
            with open(f"{files}/{it.path}", "rb") as file:  # noqa: PTH123 - thousands of them
                content = file.read()
        except OSError:
            yield it.path
            continue
        if len(content) != it.size or content_digest(content) != it.content:
            yield it.path


def _leads_to(entry: str, root: str) -> bool:
    """Whether an entry of the import path is this folder."""
    return os.path.realpath(entry or os.curdir) == os.path.realpath(root)
