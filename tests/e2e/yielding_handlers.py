"""A handler that yields, for meshes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import slotmesh


@slotmesh.deployment(max_ongoing=8)
class Speller:
    """Counts how many of its generators were closed."""

    def __init__(self) -> None:
        self._closed = 0

    async def count(self, count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            self._closed += 1

    def count_in_thread(self, count: int) -> Iterator[int]:
        yield from range(count)

    async def fail_after(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number
        raise ValueError("enough")

    async def inflate(self, sizes: list[int]) -> AsyncIterator[bytes]:
        for size in sizes:
            yield bytes(size)

    @slotmesh.batch(max_batch_size=3, batch_wait_timeout_s=0.5)
    async def repeat(self, letters: list[str]) -> AsyncIterator[list[str]]:
        for _ in range(400):
            yield letters

    async def echo(self, letter: str) -> str:
        return letter

    async def closed(self) -> int:
        return self._closed
