"""A handler with a loop of its own, and methods of each kind on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from slotmesh.handlers import batch, deployment
from tests.support.wait import wait_until


@deployment(max_ongoing=64)
class Handler:
    """What its calls did is written down on the handler's thread, and read on the test's."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        """What `block` waits for, with the whole loop."""
        self.is_open = False
        """What `wait` waits for."""

    async def echo(self, payload: bytes) -> bytes:
        self.threads.add(threading.get_ident())
        self.started.append(payload)
        return payload

    async def pause(self, payload: bytes) -> bytes:
        self.started.append(payload)
        await asyncio.sleep(0.001)
        self.ended.append(payload)
        return payload

    async def wait(self, payload: bytes) -> bytes:
        self.started.append(payload)
        try:
            await wait_until(lambda: self.is_open, timeout=10)
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise
        return payload

    async def block(self, payload: bytes) -> bytes:
        self.started.append(payload)
        self.gate.wait(10)
        return payload

    def thread(self, payload: bytes) -> bytes:
        return payload

    @batch(max_batch_size=4)
    async def many(self, items: list[bytes]) -> list[bytes]:
        await asyncio.sleep(0)
        self.threads.add(threading.get_ident())
        return items

    async def count(self, to: int) -> AsyncIterator[int]:
        self.threads.add(threading.get_ident())
        for number in range(to):
            yield number
            await asyncio.sleep(0)

    async def endless(self, first: int) -> AsyncIterator[int]:
        try:
            while True:
                yield first
                first += 1
        finally:
            await asyncio.sleep(0.001)
            self.ended.append(b"endless")

    async def careful(self) -> AsyncIterator[int]:
        try:
            self.started.append(b"careful")
            self.gate.wait(10)
            yield 1
        finally:
            await asyncio.sleep(0.001)
            self.ended.append(b"careful")

    async def end(self, how: str) -> None:
        raise SystemExit(how)

    async def lock(self, name: str) -> object:
        return threading.Lock() if name == "lock" else name
