"""Where the code of a handler is, as replicas on this machine would import it.

Invariants: no user code is imported or executed. A handler whose module is not found, or is no file, has no root.
Owner: `shell.code.snapshots`, in a thread.
"""

from __future__ import annotations

import importlib.metadata
import site
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final

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
        return self.path.resolve() in {it.resolve() for it in (Path("/"), Path.home(), Path(tempfile.gettempdir()))}

    @property
    def is_installed(self) -> bool:
        """Below a `site-packages` folder, or part of Python itself."""
        return any(self.path.is_relative_to(it) for it in _installed())

    def distribution(self) -> str:
        """The installed distribution that the handler is part of, as `NAME==VERSION`. Empty if none is known."""
        return _distribution_of(self.name, self.path.stat().st_mtime_ns)


def root_of(handler: str) -> HandlerRoot | None:
    """The root of `MODULE:NAME`."""
    parts = handler.partition(":")[0].split(".")
    PathFinder.invalidate_caches()
    places: list[str] | None = [it or str(Path.cwd()) for it in sys.path]
    spec: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        if places is None:
            return None
        spec = _find(".".join(parts[:depth]), places, is_outermost=depth == 1)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        places = None if locations is None else [*locations]
    if spec is None or not spec.origin or not spec.has_location:
        return None
    file = Path(spec.origin).absolute()
    above = len(parts) - 1 if spec.submodule_search_locations is None else len(parts)
    return HandlerRoot(file.parents[above], file, parts[0]) if above < len(file.parents) and file.is_file() else None


def _find(name: str, places: list[str], *, is_outermost: bool) -> ModuleSpec | None:
    try:
        found = PathFinder.find_spec(name, places)
        if found is not None or not is_outermost:
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
