"""Who is disturbed: a client that makes one call at a time, and notes how long each took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import slotmesh
from benchmarks.workloads import PAYLOAD


class OneCaller:
    """Makes a call when the last one has its outcome."""

    def __init__(self, method: slotmesh.Method[bytes]) -> None:
        self._method = method
        self.failures: list[BaseException] = []

    async def call(self, times_s: list[float]) -> None:
        started = time.perf_counter()
        try:
            await self._method(PAYLOAD)
        except slotmesh.SlotmeshError as failure:
            self.failures.append(failure)
        else:
            times_s.append(time.perf_counter() - started)

    async def calls_for(self, seconds: float) -> list[float]:
        """The times of all calls that end within so long, ascending."""
        times_s: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            await self.call(times_s)
        return sorted(times_s)

    @asynccontextmanager
    async def calling(self, times_s: list[float]) -> AsyncIterator[None]:
        """Calls go on for as long as the block lasts."""
        done = asyncio.Event()

        async def go_on() -> None:
            while not done.is_set():
                await self.call(times_s)

        async with asyncio.TaskGroup() as group:
            group.create_task(go_on())
            try:
                yield
            finally:
                done.set()
