"""Handlers that contract tests host in a replica."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from slotmesh.handlers import batch, deployment


@deployment(max_ongoing=8)
class Handler:
    """One of each kind."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.started: list[bytes] = []
        """Calls that wait, or have waited."""

    def open_all(self) -> None:
        self.gate.set()
        self.thread_gate.set()

    async def echo(self, payload: bytes) -> bytes:
        return payload

    def wait_in_thread(self, payload: bytes) -> bytes:
        """Returns when `open_all` is called."""
        self.started.append(payload)
        self.thread_gate.wait(10)
        return payload

    async def wait(self, payload: bytes) -> bytes:
        """Returns when `open` is called."""
        self.started.append(payload)
        await self.gate.wait()
        return payload

    async def open(self, payload: bytes) -> bytes:
        self.gate.set()
        return payload

    async def greet(self, name: str) -> str:
        return f"{self.greeting}, {name}"

    async def fail(self, payload: bytes) -> bytes:
        raise ValueError(payload.decode())

    async def stream(self, count: int) -> AsyncIterator[int]:
        for index in range(count):
            yield index

    def thread(self, payload: bytes) -> bytes:
        return payload

    @batch(max_batch_size=4)
    async def upper(self, items: list[bytes]) -> list[bytes]:
        return [item.upper() for item in items]


@deployment
async def shout(payload: bytes) -> bytes:
    return payload.upper()


class Broken:
    """Its constructor fails."""

    def __init__(self) -> None:
        raise RuntimeError("no model here")

    async def echo(self, payload: bytes) -> bytes:
        return payload


class Slow:
    """Its constructor takes until a file is there."""

    def __init__(self, until: str) -> None:
        while not Path(until).exists():
            time.sleep(0.005)

    async def echo(self, payload: bytes) -> bytes:
        return payload


class Endless:
    """Calls that do not end."""

    async def hang(self, payload: bytes) -> bytes:
        await asyncio.Event().wait()
        return payload

    def hang_in_thread(self, payload: bytes) -> bytes:
        time.sleep(3600)
        return payload
