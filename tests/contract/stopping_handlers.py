"""A handler whose calls fail where their payload says so."""

from __future__ import annotations

import asyncio
import threading

from slotmesh.handlers import batch, deployment


@deployment(max_ongoing=8)
class Handler:
    """Remembers what it was called with, in order."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()

    def open_all(self) -> None:
        self.gate.set()
        self.thread_gate.set()

    async def work(self, payload: bytes) -> bytes:
        return self._result(payload)

    async def work_waiting(self, payload: bytes) -> bytes:
        await asyncio.sleep(0)
        return self._result(payload)

    def work_in_thread(self, payload: bytes) -> bytes:
        return self._result(payload)

    @batch(max_batch_size=2)
    async def work_together(self, payloads: list[bytes]) -> list[bytes]:
        return [self._result(payload) for payload in payloads]

    @batch(max_batch_size=8, batch_wait_timeout_s=0.2)
    async def work_gathered(self, payloads: list[bytes]) -> list[bytes]:
        return [self._result(payload) for payload in payloads]

    async def wait(self, payload: bytes) -> bytes:
        """Returns when `open_all` is called."""
        self.seen.append(payload)
        await self.gate.wait()
        if payload == b"bad":
            raise ValueError("bad")
        return payload

    def wait_in_thread(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        self.thread_gate.wait(10)
        return payload

    async def unsendable(self, payload: bytes) -> object:
        self.seen.append(payload)
        return object()

    def huge_in_thread(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        return bytes(4 * 1024 * 1024 + 1)

    def _result(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        if payload == b"bad":
            raise ValueError("bad")
        return payload
