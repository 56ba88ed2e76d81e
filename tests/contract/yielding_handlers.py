"""Handlers that yield."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from slotmesh.handlers import batch, deployment
from slotmesh.handlers.context import context

steps: ContextVar[int] = ContextVar("steps", default=0)


@deployment(max_ongoing=4, prefetch=0)
class Handler:
    """Each kind in both colours; remembers what was begun, how far each call got, and what was closed."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.stepped: dict[bytes, int] = {}
        self.closed: list[bytes] = []
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.threads: set[str] = set()

    def open_all(self) -> None:
        self.gate.set()
        self.thread_gate.set()

    async def count(self, payload: bytes) -> AsyncIterator[bytes]:
        """`12` yields 0 … 11; `12 name` is the same."""
        with self._call(payload):
            for number in range(int(payload.split()[0])):
                self.stepped[payload] = number + 1
                yield b"%d" % number

    def count_in_thread(self, payload: bytes) -> Iterator[bytes]:
        with self._call(payload):
            for number in range(int(payload.split()[0])):
                self.threads.add(threading.current_thread().name)
                self.stepped[payload] = number + 1
                yield b"%d" % number

    async def numbers(self, count: int, then: str = "") -> AsyncIterator[object]:
        values: list[int] = []
        with self._call(b"numbers"):
            for number in range(count):
                values.append(number)
                yield values if then == "growing" else number
            if then == "fail":
                raise ValueError("no more")
            if then == "object":
                yield object()
                raise AssertionError("it goes on")

    def numbers_in_thread(self, count: int, then: str = "") -> Iterator[object]:
        values: list[int] = []
        with self._call(b"numbers"):
            for number in range(count):
                values.append(number)
                yield values if then == "growing" else number
            if then == "fail":
                raise ValueError("no more")
            if then == "object":
                yield object()
                raise AssertionError("it goes on")

    async def wait(self, payload: bytes) -> AsyncIterator[bytes]:
        """One value, then one when `open_all` is called."""
        with self._call(payload):
            yield payload
            await self.gate.wait()
            yield b"open"

    def wait_in_thread(self, payload: bytes) -> Iterator[bytes]:
        with self._call(payload):
            yield payload
            self.thread_gate.wait(10)
            yield b"open"

    async def inflate(self, payload: bytes) -> AsyncIterator[bytes]:
        """`3 5` yields 3 bytes, then 5 bytes."""
        with self._call(payload):
            for index, size in enumerate(payload.split()):
                self.stepped[payload] = index + 1
                yield bytes([index]) * int(size)

    async def in_time(self, payload: bytes) -> AsyncIterator[bytes]:
        """Values for as long as its own timeout lets it."""
        with self._call(payload):
            try:
                async with asyncio.timeout(0.05):
                    while True:
                        yield payload
            except TimeoutError:
                yield b"timeout"

    async def context(self, count: int) -> AsyncIterator[str]:
        for _ in range(count):
            steps.set(steps.get() + 1)
            await asyncio.sleep(0)
            yield f"{steps.get()} {dict(context().metadata)}"

    def context_in_thread(self, count: int) -> Iterator[str]:
        for _ in range(count):
            steps.set(steps.get() + 1)
            yield f"{steps.get()} {dict(context().metadata)}"

    @batch(max_batch_size=3, batch_wait_timeout_s=0.2)
    async def count_together(self, payloads: list[bytes]) -> AsyncIterator[list[bytes]]:
        name = b" ".join(payloads)
        with self._call(name):
            for number in range(1000):
                self.stepped[name] = number + 1
                yield [b"%b%d" % (payload, number) for payload in payloads]

    @batch(max_batch_size=3, batch_wait_timeout_s=0.2)
    def pair_in_thread(self, payloads: list[object]) -> Iterator[object]:
        with self._call(b"pair"):
            yield payloads
            yield [1 if payload == "odd" else payload for payload in payloads]
            if "short" in payloads:
                yield payloads[1:]
            if "object" in payloads:
                yield [object() if payload == "object" else payload for payload in payloads]
                yield payloads

    async def plain(self, payload: bytes) -> bytes:
        return payload

    def plain_in_thread(self, payload: bytes) -> bytes:
        if payload == b"fail":
            raise ValueError("no")
        return payload

    async def endless(self, payload: bytes) -> AsyncIterator[bytes]:
        """Never waits."""
        with self._call(payload):
            while True:
                yield payload

    def endless_in_thread(self, payload: bytes) -> Iterator[bytes]:
        with self._call(payload):
            while True:
                time.sleep(0)
                yield payload

    @contextlib.contextmanager
    def _call(self, payload: bytes) -> Iterator[None]:
        self.begun.append(payload)
        try:
            yield
        finally:
            self.closed.append(payload)
