"""Where the code of a handler is, as replicas on this machine would import it, and whether its module exists.

Invariants: no user code is imported or executed. A handler whose module is not found, or is no file, has no root. A
module is absent only if a new interpreter does not find its outermost package either, which may have been installed
since this process started, or if it is missing in a package of the project. Other modules, as of packages that change
their search path, are left to the replicas.
Owner: `shell.code.snapshot_keeper`, in a thread.
"""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import re
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final, NamedTuple

from controller_service.core.desired.handler_code import HandlerKey
from slotmesh.names import did_you_mean
from slotmesh.runtime.environment import importable_here

FileId = tuple[int, int]
"""Device and inode."""
_BESIDE: Final = re.compile(
    r"(-(wal|shm|journal|room)|\.(code|lock|events|damaged|unfinished)|\.standby-[\w-]+(\.new)?)*"
)
"""What the names of files that the store keeps beside the state file have after its name."""


class OwnFiles:
    """The controller's own files, which are part of no snapshot: the state file, the launch directory.

    They are identified by their folder, and not by its path: a project may be on the import path by another path than
    that of the state file in it, as by a symlink. Files of the project with similar names, as `run.py` beside the
    launch directory `run`, are not left out. The state is that of the last `look`.
    """

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


_OTHERS: Final = (BuiltinImporter, FrozenImporter, PathFinder)


@dataclass(frozen=True, slots=True)
class HandlerRoot:
    """The folder of a handler's code."""

    path: Path
    """The folder on the import path that has the handler's outermost package or module."""
    file: Path
    """The source of the handler's module."""
    name: str
    """Of the outermost package or module: all that is copied beside modules and packages if the root `is_wide`."""

    @property
    def is_wide(self) -> bool:
        """A folder that also holds other things: `/`, the home directory, the folder of temporary files."""
        return self.path.resolve() in {Path("/"), *_shared_folders()}

    @property
    def is_installed(self) -> bool:
        """Below a `site-packages` folder, or part of Python itself."""
        return any(self.path.is_relative_to(it) for it in _installed())

    def distribution(self) -> str:
        """The installed distribution that the handler is part of, as `NAME==VERSION`. Empty if none is known."""
        return _distribution_of(self.name, self.path.stat().st_mtime_ns)


def _shared_folders() -> Iterator[Path]:
    """The home directory and the folder of temporary files, of which a container may have neither."""
    with suppress(RuntimeError):  # neither HOME nor an entry of /etc/passwd
        yield Path.home().resolve()
    with suppress(FileNotFoundError):
        yield Path(tempfile.gettempdir()).resolve()


class ImportPath(NamedTuple):
    """Where replicas of a backend look for modules."""

    folders: tuple[str, ...]
    """Their working directory first."""
    is_of_this_python: bool = True
    """Whether their interpreter is that of this process, whose installed modules are on the path."""


def import_path_of(key: HandlerKey) -> ImportPath:
    """Of another interpreter, what is installed in it is not looked at."""
    here = str(Path.cwd())
    if isinstance(key, str):
        # Replicas import from the working directory first, whether this process does (`python -P` does not).
        return ImportPath((here, *(it or here for it in sys.path)))
    cwd = os.path.join(here, key.cwd)  # noqa: PTH118 - the path may be absolute
    path = os.environ.get("PYTHONPATH", "") if key.path is None else key.path
    own = [os.path.join(cwd, it) for it in path.split(os.pathsep) if it]  # noqa: PTH118 - likewise
    return ImportPath((cwd, *own, *(() if key.python else (it or here for it in sys.path))), not key.python)


def root_of(handler: str, path: ImportPath | None = None) -> HandlerRoot | None:
    """The root of `MODULE:NAME`."""
    parts = handler.partition(":")[0].split(".")
    path = path or import_path_of(handler)
    PathFinder.invalidate_caches()
    places: list[str] | None = [*path.folders]
    spec: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        if places is None:
            return None
        spec = _find(".".join(parts[:depth]), places, has_finders=depth == 1 and path.is_of_this_python)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        places = None if locations is None else [*locations]
    if spec is None or not spec.origin or not spec.has_location:
        return None
    file = Path(spec.origin).absolute()
    above = len(parts) - 1 if spec.submodule_search_locations is None else len(parts)
    return HandlerRoot(file.parents[above], file, parts[0]) if above < len(file.parents) and file.is_file() else None


def _find(name: str, places: list[str], *, has_finders: bool) -> ModuleSpec | None:
    try:
        found = PathFinder.find_spec(name, places)
        if found is not None or not has_finders:
            return found
        # Distributions that are installed in editable mode may have a finder of their own.
        finders: list[Any] = [it for it in sys.meta_path if it not in _OTHERS and hasattr(it, "find_spec")]
        specs = (it.find_spec(name, None) for it in finders)
        return next((it for it in specs if it is not None), None)
    except KeyError:
        return _without_a_file(name, places)
    except (ImportError, ValueError, OSError):
        return None


def _without_a_file(name: str, places: list[str]) -> ModuleSpec | None:
    """A package that is a folder alone, inside a package: PathFinder looks for the outer one among imported modules."""
    folders = [Path(it, name.rpartition(".")[2]) for it in places]
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(it) for it in folders if it.is_dir()]
    return spec if spec.submodule_search_locations else None


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    folders = map(sysconfig.get_path, ("purelib", "platlib", "stdlib", "platstdlib"))
    paths = [*site.getsitepackages(), site.getusersitepackages(), *folders]
    return tuple(Path(it) for it in dict.fromkeys(paths))


@lru_cache(maxsize=64)
def _distribution_of(package: str, changed_ns: int) -> str:  # noqa: ARG001 - a key: what is installed has changed
    names = importlib.metadata.packages_distributions().get(package, [])
    return f"{names[0]}=={importlib.metadata.version(names[0])}" if names else ""


_LOOK: Final = "import sys, importlib.util as u; sys.exit(3 * (u.find_spec(sys.argv[1]) is None))"
"""Exits with 3 where there is no such module. The outermost name alone: a dotted one imports its packages."""
_ABSENT: Final = 3
_LOOK_S: Final = 10.0


def absence_of(handler: str, path: ImportPath | None = None) -> str:
    """Why the module of `MODULE:NAME` is not there, in words; empty where it is, or may be."""
    module, _, name = handler.partition(":")
    path = path or import_path_of(handler)
    if not path.is_of_this_python:
        return ""
    cwd = Path(path.folders[0])
    parts = module.split(".")
    if (
        parts[-1] == "py"
        and len(parts) > 1
        and (root_of(meant := f"{module.removesuffix('.py')}:{name}", path)) is not None
    ):
        return f"there is no module {module!r}; did you mean {meant}?"
    if (outermost := root_of(parts[0], path)) is None:
        return "" if _is_found(parts[0], cwd) else _not_in(cwd, parts[0])
    for depth in range(2, len(parts) + 1):
        package = root_of(".".join(parts[: depth - 1]), path)
        if package is None or not _is_plain(package):
            return ""
        if root_of(".".join(parts[:depth]), path) is None:
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


def _is_found(name: str, cwd: Path) -> bool:
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return True
    try:
        looked = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", _LOOK, name],
            env=importable_here(os.environ, cwd),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return looked.returncode != _ABSENT
