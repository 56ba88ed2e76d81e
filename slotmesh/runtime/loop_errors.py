"""Logs errors on an event loop that no code awaits: of tasks left behind, callbacks, generators that were not closed.

Purpose: in place of asyncio's own report, which shows the arguments of callbacks.
Invariants: what is logged has names, types and texts of exceptions, and their tracebacks; no arguments, and no `repr`
of an object that is not ours. No texts where users' code runs on the loop: they may quote what calls have sent.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from slotmesh.telemetry.log import get_logger
from slotmesh.telemetry.textless import without_text

_log = get_logger(__name__)


def log_loop_errors(loop: asyncio.AbstractEventLoop, *, texts: bool = True) -> None:
    """Has the loop log errors that no code awaits by this module. `texts`: with the texts of exceptions."""
    loop.set_exception_handler(partial(_log_error, texts))


def _log_error(texts: bool, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if error is not None and not texts:
        error = without_text(error)
    handle, future = context.get("handle"), context.get("task") or context.get("future")
    if handle is not None:
        _log.error(
            "a callback of the event loop failed", callback=_name(getattr(handle, "_callback", None)), exc_info=error
        )
    elif isinstance(future, asyncio.Task):
        what = "a task failed, and nobody waited for it" if error is not None else "a task was dropped before its end"
        _log.error(what, task=future.get_name(), of=_name(future.get_coro()), exc_info=error)
    else:
        what = "something failed on the event loop, and nobody waited for it"
        _log.error(what, of=type(future).__name__ if future is not None else "", exc_info=error)


def _name(code: object) -> str:
    """What a traceback calls it. A `partial` is what it calls."""
    code = getattr(code, "func", code)
    return str(getattr(code, "__qualname__", type(code).__name__))
