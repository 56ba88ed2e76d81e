"""Batch methods for `test_replica_batching.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import slotmesh


@slotmesh.deployment(max_ongoing=64)
class Batching:
    """Each batch is remembered."""

    def __init__(self) -> None:
        self.given: list[list[bytes]] = []
        self.gate = asyncio.Event()

    @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=60.0)
    async def gathered(self, items: list[bytes]) -> list[Any]:
        self.given.append(items)
        return [KeyError(item.decode()) if item.startswith(b"bad") else item.upper() for item in items]

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=60.0, batch_size_fn=len)
    def weighed(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        return items

    @slotmesh.batch(max_batch_size=3, batch_wait_timeout_s=60.0)
    async def counted(self, counts: list[int]) -> AsyncIterator[list[Any]]:
        for step in range(max(counts)):
            yield [step if step < count else StopAsyncIteration for count in counts]

    @slotmesh.batch(max_batch_size=2, batch_wait_timeout_s=0.0)
    async def held(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        await self.gate.wait()
        return items

    async def settle_for(self, max_batch_size: int, batch_wait_timeout_s: float) -> str:
        """Sets what `gathered` goes by, as callers ask; says so where they ask for nonsense."""
        try:
            self.gathered.set_max_batch_size(max_batch_size)
            self.gathered.set_batch_wait_timeout_s(batch_wait_timeout_s)
        except ValueError as error:
            return str(error)
        return ""

    async def state_of_held(self) -> dict[str, Any]:
        state = self.held.batch_state()
        return {
            "is_alive": state.is_alive,
            "waiting": state.waiting,
            "running": [batch.calls for batch in state.running],
            "stacks": [batch.stack for batch in state.running],
        }
