"""The handler of the session tests: each execution is a line in the file that `SLOTMESH_TEST_RECORDS` names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import slotmesh
from tests.support.recorder import Recorder

EXECUTION_S: Final = 0.008
"""What a call takes: long enough that faults fall into executions."""


@slotmesh.deployment(max_ongoing=10)  # few enough that calls wait at routers, too
class Ledger:
    """Appends each execution to the log of its key, and gives the call's tag back."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._records = Recorder.from_environment()

    async def append(self, key: str, tag: str) -> str:
        with self._records.executing(tag, key=key):
            await asyncio.sleep(EXECUTION_S)
        return tag

    async def spell(self, tag: str, count: int) -> AsyncIterator[str]:
        """Yields the tag, so often."""
        with self._records.executing(tag):
            for _ in range(count):
                await asyncio.sleep(EXECUTION_S)
                yield tag
