"""The first routing table: whoever comes before it waits for it, for a while.

Owner: the dispatcher holds it, the table watch says when the table has come.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

FIRST_TABLE_WAIT_S = 3.0
"""How long whoever comes before the first routing table waits for it, at most."""


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
                await asyncio.wait_for(self._came.wait(), FIRST_TABLE_WAIT_S)
