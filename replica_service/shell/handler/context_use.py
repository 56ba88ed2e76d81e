"""Whether users' code asks for contexts of calls, looked up before the first call.

Purpose: executors keep the place of each call only where users' code asks for contexts. The first question turns that
on; this module turns it on in time for a first question from a task whose call has ended.
Invariant: too often yes rather than too often no.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from slotmesh.handlers import context as context_module
from slotmesh.handlers import own_mesh

_NAME = re.compile(r"\b(contexts?\b|mesh(_sync)?\()")
_OURS = ("slotmesh", "replica_service")
_WAYS = (context_module.context, context_module.contexts, own_mesh.mesh, own_mesh.mesh_sync)


def asks_for_contexts(modules: Iterable[Any] | None = None) -> bool:
    """Whether the source of a module that imports slotmesh has the words `context` or `contexts`, or asks for the mesh.

    Calls that are made by `slotmesh.mesh()` take over what the call has left in which they are made.

    Without `modules` it looks at all modules that were imported.
    """
    if modules is None:
        modules = list(sys.modules.values())
    return any(_may_ask(module) for module in modules if isinstance(module, ModuleType))


def _may_ask(module: ModuleType) -> bool:
    if module.__name__.partition(".")[0] in _OURS:
        return False
    if not any(_is_ours(value) for value in list(vars(module).values())):
        return False
    try:
        source = Path(getattr(module, "__file__", None) or "").read_text("utf-8")
    except (OSError, ValueError):
        return True  # unknown
    return _NAME.search(source) is not None


def _is_ours(value: Any) -> bool:
    """Something of slotmesh by which contexts can be had."""
    if issubclass(type(value), ModuleType):  # its own word for its class may be anything
        return str(vars(value).get("__name__")).partition(".")[0] == "slotmesh"
    return any(value is each for each in _WAYS)
