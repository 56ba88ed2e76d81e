"""Waiting for what becomes true, with a deadline. The only place in the tests where time is allowed to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

ValueT = TypeVar("ValueT")

POLL_S = 0.002
"""How soon a wait sees what changed, seconds."""


async def wait_until(predicate: Callable[[], ValueT], *, timeout: float = 5.0, what: str = "") -> ValueT:
    """Returns the first true value of `predicate`, which is asked between turns of the event loop.

    Raises:
        AssertionError: it did not become true within `timeout` seconds; the message says `what` did not.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not (value := predicate()):
        if loop.time() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what or predicate} (last: {value!r})")
        await asyncio.sleep(POLL_S)
    return value
