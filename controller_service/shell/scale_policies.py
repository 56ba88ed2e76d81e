"""The operator's own policies: `MODULE:NAME` -> the function. The only place in the controller that imports such code.

Invariants: only what the controller was started with is imported, never what a configuration names; a name that cannot
be imported stops the start, with the way out.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotmesh.autoscaling import ScalePolicy
from slotmesh.foreign import described
from slotmesh.runtime.exits import CannotStart


def load_policies(names: tuple[str, ...]) -> Mapping[str, ScalePolicy]:
    """The functions of these names. Raises CannotStart."""
    return {name: _load(name) for name in names}


def _load(path: str) -> ScalePolicy:
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part, None)
    except KeyboardInterrupt:
        raise  # Ctrl-C, as far as can be known
    except BaseException as error:
        raise CannotStart(
            f"--autoscale-policies {path}: {module_name} cannot be imported ({described(error)}); start"
            f" where it lies (now in {here}), or install it"
        ) from error
    if not callable(found):
        raise CannotStart(f"--autoscale-policies {path}: {module_name} has no function {name}")
    policy: ScalePolicy = found
    return policy
