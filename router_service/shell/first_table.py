"""The first routing table: calls that come before it wait for it, for a bounded time.

Owner: the dispatcher holds it, the table watch says when the table has come.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

FIRST_TABLE_WAIT_S = 3.0
"""How long calls that come before the first routing table wait for it, at most."""


class FirstTable:
    """Whether there is a routing table."""

    def __init__(self) -> None:
        self._came = asyncio.Event()

    def came(self) -> None:
        """A table is in force."""
        self._came.set()

    async def wait(self) -> None:
        """Returns once there is a table, however long that takes."""
        await self._came.wait()

    async def wait_a_while(self) -> None:
        """Returns once there is a table, or after `FIRST_TABLE_WAIT_S`: a router that has just started gets it soon."""
        if not self._came.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_TABLE_WAIT_S):
                    await self._came.wait()
