"""Waiting for what a client does, with a deadline, and what a client has not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

POLL_S: Final = 0.002
"""How soon a change is noticed, seconds."""


class NotKept(Exception):
    """The client has not done what it must do."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"expected: {expected}; got: {got}")
        self.expected = expected
        self.got = got


class AdapterError(Exception):
    """The adapter does not answer, has ended, or breaks the protocol of its lines: nothing is known of the client."""


async def until(predicate: Callable[[], Any], expected: str, *, timeout_s: float) -> Any:
    """Returns the first true value of `predicate`.

    Raises:
        NotKept: it did not become true in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not (value := predicate()):
        if loop.time() >= deadline:
            raise NotKept(expected, f"nothing of that within {timeout_s:g} s")
        await asyncio.sleep(POLL_S)
    return value
