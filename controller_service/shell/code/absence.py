"""Whether a handler's module exists for the replicas that this controller starts, and what was probably meant.

Invariants: no user code is imported or executed. A module is absent only where a new interpreter does not find its
outermost package either, which may have been installed since this process started; or where it is missing in a package
of the project. Other modules, as of packages that change where they look, are left to the replicas.
Owner: `shell.code.snapshots`, in a thread.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter
from pathlib import Path
from typing import Final

from controller_service.shell.code.roots import HandlerRoot, root_of
from slotmesh.runtime.environment import importable_here
from slotmesh.suggestions import did_you_mean

_LOOK: Final = "import sys, importlib.util as u; sys.exit(3 * (u.find_spec(sys.argv[1]) is None))"
"""Exits with 3 where there is no such module. The outermost name alone: a dotted one imports its packages."""
_ABSENT: Final = 3
_LOOK_S: Final = 10.0


def absence_of(handler: str) -> str:
    """Why the module of `MODULE:NAME` is not there, in words; empty where it is, or may be."""
    module, _, name = handler.partition(":")
    parts = module.split(".")
    if parts[-1] == "py" and len(parts) > 1 and (root_of(meant := f"{module.removesuffix('.py')}:{name}")) is not None:
        return f"there is no module {module!r}; did you mean {meant}?"
    if (outermost := root_of(parts[0])) is None:
        return "" if _is_found(parts[0]) else _not_in(Path.cwd(), parts[0])
    for depth in range(2, len(parts) + 1):
        package = root_of(".".join(parts[: depth - 1]))
        if package is None or not _is_plain(package):
            return ""
        if root_of(".".join(parts[:depth])) is None:
            folder = package.file.parent
            if (folder / parts[depth - 1]).is_dir():
                return ""  # a package without a file of its own
            return _not_in(folder, parts[depth - 1], ".".join(parts[: depth - 1]), root=outermost.path)
    return ""


def _is_plain(package: HandlerRoot) -> bool:
    """A package of the project whose modules are the files beside its `__init__.py`."""
    if package.is_installed or package.file.name != "__init__.py":
        return False
    try:
        return "__path__" not in package.file.read_text("utf-8", errors="replace")
    except OSError:
        return False


def _not_in(folder: Path, name: str, package: str = "", *, root: Path | None = None) -> str:
    before = f"{package}." if package else ""
    near = did_you_mean(name, [it.name for it in pkgutil.iter_modules([str(folder)])])
    near = near.replace("mean ", f"mean {before}", 1)
    elsewhere = "" if package else ", and is not installed"
    return f"module {before + name!r} is not in {root or folder}{elsewhere}{near}"


def _is_found(name: str) -> bool:
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return True
    try:
        looked = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _LOOK, name],
            env=importable_here(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return looked.returncode != _ABSENT
