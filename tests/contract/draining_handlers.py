"""Handlers for replicas that are asked to stop while calls run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

from slotmesh.handlers import batch, deployment


@deployment(max_ongoing=16)
class Handler:
    """Each kind of method runs until it is cancelled, or, in threads, until the gate opens."""

    def __init__(self) -> None:
        self.thread_gate = threading.Event()
        self.began: list[bytes] = []
        self.cancelled: list[bytes] = []

    async def hang(self, payload: bytes) -> bytes:
        self.began.append(payload)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise
        return payload

    async def insist(self, payload: bytes) -> bytes:
        """Is cancelled, and has a result all the same."""
        self.began.append(payload)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(payload)
        return payload

    async def ignore(self, payload: bytes) -> bytes:
        """Goes on for ever, however often it is cancelled, as long as the event loop does."""
        self.began.append(payload)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(payload)
                if len(self.cancelled) > 1:
                    raise  # by then the replica has given it up, and its loop ends

    def hang_in_thread(self, payload: bytes) -> bytes:
        self.began.append(payload)
        self.thread_gate.wait(30)
        return payload

    async def count(self, payload: bytes) -> AsyncIterator[bytes]:
        self.began.append(payload)
        try:
            yield payload
            await asyncio.Event().wait()
        finally:
            self.cancelled.append(payload)

    def count_in_thread(self, payload: bytes) -> Iterator[bytes]:
        self.began.append(payload)
        try:
            while True:
                yield payload
        finally:
            self.cancelled.append(payload)

    @batch(max_batch_size=2, batch_wait_timeout_s=0.0)
    async def pairs(self, items: list[bytes]) -> list[bytes]:
        self.began += items
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += items
            raise
        return items

    async def block(self, payload: bytes) -> bytes:
        """Keeps the event loop to itself for a moment."""
        self.began.append(payload)
        threading.Event().wait(0.2)
        return payload
