"""Objects of users' own that a service loads at its start, by the name `MODULE:NAME` in one of its options."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from slotmesh.runtime.exits import CannotStart
from slotmesh.user_code import described

PlugInT = TypeVar("PlugInT")


def load_plug_in(option: str, path: str, checked: Callable[[Any], PlugInT]) -> PlugInT:
    """The object of this name, also from the folder that the service runs in.

    `checked` returns the object as what it is to be, or raises. Raises CannotStart, which names the option.
    """
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
        return checked(found)
    except KeyboardInterrupt:
        raise  # Ctrl-C, as far as can be known
    except BaseException as error:
        raise CannotStart(
            f"{option} {path}: cannot be loaded ({described(error)}); start where {module_name} lies (now in {here}),"
            " or install it"
        ) from error
