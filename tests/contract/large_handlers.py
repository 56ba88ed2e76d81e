"""A handler that takes and gives payloads of any size."""

from __future__ import annotations

import hashlib

from slotmesh.handlers import batch, deployment


@deployment(max_ongoing=8, prefetch=2)
class Handler:
    """Remembers the digests of what it was called with, in order."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def echo(self, payload: bytes) -> bytes:
        return payload

    async def digest(self, payload: bytes) -> bytes:
        self.seen.append(hashlib.blake2b(payload, digest_size=8).digest())
        return self.seen[-1]

    def digest_in_thread(self, payload: bytes) -> bytes:
        return hashlib.blake2b(payload, digest_size=8).digest()

    @batch(max_batch_size=4)
    async def digest_together(self, payloads: list[bytes]) -> list[bytes]:
        return [await self.digest(payload) for payload in payloads]

    async def make(self, size: bytes) -> bytes:
        """So many bytes."""
        return (size * (int(size) // len(size) + 1))[: int(size)]
