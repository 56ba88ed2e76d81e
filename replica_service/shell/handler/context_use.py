"""Whether users' code asks for contexts of calls, looked up before the first call.

Purpose: executors say of each call where they are only where somebody asks. Whoever asks makes that known, from then
on; this makes it known in time for a first question that comes from a task whose call has ended.
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

_NAME = re.compile(r"\bcontexts?\b")
_OURS = ("slotmesh", "replica_service")


def asks_for_contexts(modules: Iterable[Any] | None = None) -> bool:
    """Whether the source of a module that has slotmesh speaks of `context` or `contexts`.

    It looks at all modules that were imported, where it is not told at which.
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
        return True  # nobody knows
    return _NAME.search(source) is not None


def _is_ours(value: Any) -> bool:
    """Something of slotmesh by which contexts can be had."""
    if issubclass(type(value), ModuleType):  # its own word for its class may be anything
        return str(vars(value).get("__name__")).partition(".")[0] == "slotmesh"
    return value is context_module.context or value is context_module.contexts
