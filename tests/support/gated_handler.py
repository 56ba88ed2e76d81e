"""A handler of replicas that run on the test's own event loop: it notes what it executes, and ends it when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import slotmesh


@slotmesh.deployment(max_ongoing=4)
class Gated:
    """Calls end when the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.seen: list[bytes] = []
        """What was executed, in order."""

    async def __call__(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        await self.gate.wait()
        return payload

    async def values(self, payload: bytes) -> AsyncIterator[bytes]:
        """Yields the payload at once, and again when the gate is open."""
        yield payload
        await self.gate.wait()
        yield payload
