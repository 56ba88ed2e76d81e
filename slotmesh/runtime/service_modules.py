"""The modules of the services, which stand beside `slotmesh` on the import path: they have to be found first.

Purpose: users' code may have a module of such a name. Python would import it in place of the service, or the service in
place of it, and the error that follows would name neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.machinery import PathFinder
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
