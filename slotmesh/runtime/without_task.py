"""Going on with a coroutine without a task: what it waits for calls back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


def call_when_done(waits_for: Any, callback: Callable[[object], None], context: Context) -> Any:
    """Does what a task does with that for which its coroutine waits: None is a turn of the loop, all else a future.

    Returns what can be cancelled: the future, or the handle of the callback.
    """
    if waits_for is None:
        return asyncio.get_running_loop().call_soon(callback, None, context=context)
    waits_for._asyncio_future_blocking = False
    waits_for.add_done_callback(callback, context=context)
    return waits_for
