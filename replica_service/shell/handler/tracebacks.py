"""A handler's exception as its author reads it: the frames above the author's own code are left out.

Invariant: all below the first frame of the author's stays, also frames of libraries. The log has the others, too.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import traceback
from pathlib import Path
from typing import Final

from replica_service.shell.handler.code import shown_paths
from slotmesh import version
from slotmesh.foreign import described

_ABOVE: Final = (
    f"{Path(__file__).parents[1]}{os.sep}",
    *(f"{Path(module.__file__ or '').parent}{os.sep}" for module in (version, importlib, asyncio)),
    "<frozen importlib",
)
"""Prefixes of the names of files that are not the author's: this service, slotmesh, and what calls for them."""


def users_traceback(error: BaseException) -> str:
    """The traceback as Python writes it; the bare exception where the author's code has no part in it.

    Raises nothing: of an exception whose class does as it is written, what can be written is left.
    """
    try:
        return _written(error)
    except BaseException:  # noqa: BLE001 - the class may raise anything
        return f"{described(error)}\n"


def _written(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error)
    pending = [shown]
    while pending:
        each = pending.pop()
        stack = each.stack
        above = next((at for at, frame in enumerate(stack or ()) if not frame.filename.startswith(_ABOVE)), None)
        if above is None:
            each.stack = None  # type: ignore[assignment]  # as of an exception that was never raised: no heading
        else:
            del stack[:above]
        others = (each.__cause__, each.__context__, *(getattr(each, "exceptions", None) or ()))
        pending += [other for other in others if other is not None]
    return shown_paths("".join(shown.format()))
