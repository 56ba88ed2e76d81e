"""A handler that tells which replica it is in."""

from __future__ import annotations

import asyncio
import os

import slotmesh


@slotmesh.deployment(max_ongoing=8)
class Ranked:
    def __init__(self) -> None:
        self.rank_at_start = slotmesh.replica().rank
        self.waiting = 0
        self.may_end = asyncio.Event()

    async def where(self) -> tuple[int | None, int | None, int, int | None]:
        here = slotmesh.replica()
        return here.rank, self.rank_at_start, os.getpid(), here.num_replicas

    async def wait(self) -> int:
        self.waiting += 1
        await self.may_end.wait()
        return os.getpid()

    async def waits(self) -> int:
        return self.waiting

    async def go_on(self) -> None:
        self.may_end.set()
