"""A handler whose calls wait, and which records each start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from slotmesh.handlers import deployment


@deployment(max_ongoing=256)
class Recording:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started: list[bytes] = []

    async def echo(self, payload: bytes) -> bytes:
        return payload

    async def wait(self, payload: bytes) -> bytes:
        """Returns once the gate is open."""
        self.started.append(payload)
        await self.gate.wait()
        return payload

    async def values(self, payload: bytes) -> AsyncIterator[bytes]:
        """One value, and another one once the gate is open."""
        self.started.append(payload)
        yield payload
        await self.gate.wait()
        yield payload
