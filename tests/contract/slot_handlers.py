"""A handler with two permits and room for one that waits, for the tests of slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from slotmesh.handlers import batch, deployment


@deployment(max_ongoing=2, prefetch=1)
class Handler:
    """One of each kind."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.started: list[bytes] = []
        """Calls that wait, or have waited."""
        self.yielded = 0
        self.closed = 0
        """Generators that were closed."""

    async def echo(self, payload: bytes) -> bytes:
        return payload

    def thread(self, payload: bytes) -> bytes:
        return payload

    async def wait(self, payload: bytes) -> bytes:
        """Returns when the gate is open."""
        self.started.append(payload)
        await self.gate.wait()
        return payload

    async def fail(self, payload: bytes) -> bytes:
        raise ValueError(payload.decode())

    async def greet(self, name: str) -> str:
        return f"hello, {name}"

    @batch(max_batch_size=2, batch_wait_timeout_s=0)
    async def upper(self, items: list[bytes]) -> list[bytes]:
        return [item.upper() for item in items]

    async def count(self, payload: bytes) -> AsyncIterator[bytes]:
        """Yields so many numbers."""
        try:
            for number in range(int(payload)):
                self.yielded += 1
                yield b"%d" % number
        finally:
            self.closed += 1

    async def blocks(self, payload: bytes) -> AsyncIterator[bytes]:
        """Yields so many blocks of 64 KiB."""
        try:
            for _ in range(int(payload)):
                self.yielded += 1
                yield bytes(65_536)
        finally:
            self.closed += 1

    async def count_slowly(self, payload: bytes) -> AsyncIterator[bytes]:
        """Yields once the gate is open."""
        self.started.append(payload)
        await self.gate.wait()
        yield payload

    async def large(self, payload: bytes) -> bytes:
        """A result of so many bytes."""
        return bytes(int(payload))
