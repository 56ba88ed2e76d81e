"""Modules of users' code with the name of a service, which stands beside `slotmesh`, or of what slotmesh imports.

Purpose: Python would import one in place of the other, and the error that follows would name neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import slotmesh
from slotmesh.runtime.exits import CannotStart

SERVICES: Final = ("controller_service", "router_service", "replica_service", "ingress_service")


def check_services(path: Sequence[str]) -> None:
    """Raises CannotStart if this import path leads to another module under the name of a service."""
    ours = Path(slotmesh.__file__).resolve().parents[1]
    for name in SERVICES:
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() == ours / name / "__init__.py":
            continue
        raise CannotStart(
            f"{spec.origin} has the name of slotmesh's own {name}, and would be imported in its place: rename it, or "
            "take its folder off the import path, which is the working directory and PYTHONPATH"
        )


def check_imported(folder: Path, handlers: Iterable[str]) -> None:
    """Raises CannotStart if a module of this folder has the name of one that this process imported from elsewhere.

    Also if the module of a handler (`MODULE:NAME`) has the name of one of the standard library.
    """
    of_handlers = {it.partition(":")[0].partition(".")[0] for it in handlers} & sys.stdlib_module_names
    for name in sorted({it for it in sys.modules if "." not in it and it != "__main__"} | of_handlers):
        module = sys.modules.get(name)
        imported = find_spec(name) if module is None else getattr(module, "__spec__", None)
        # Modules that Python contains are found before any folder.
        if imported is None or imported.origin in {None, "built-in", "frozen"}:
            continue
        found = PathFinder.find_spec(name, [str(folder)])
        if found is None or found.origin is None or Path(found.origin).resolve() == Path(imported.origin).resolve():
            continue
        raise CannotStart(
            f"{found.origin} has the name of {name}, which slotmesh or Python imports, and would be imported in its"
            " place: rename it"
        )
