"""Handlers of every kind, for calls by HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import slotmesh


class Kinds:
    """A method of each kind."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()
        self.closed = asyncio.Event()
        self.calls = 0

    async def add(self, a: int, b: int = 1) -> int:
        self.calls += 1
        return a + b

    def slow_add(self, a: int, b: int = 1) -> int:
        return a + b

    @slotmesh.batch(max_batch_size=4, batch_wait_timeout_s=0.001)
    async def double(self, numbers: list[int]) -> Sequence[int]:
        return [2 * number for number in numbers]

    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    def count_in_threads(self, to: int) -> Iterator[int]:
        yield from range(to)

    async def echo(self, value: bytes) -> bytes:
        return value

    async def measure(self, name: str, image: bytes, scale: int = 1) -> dict[str, Any]:
        return {"name": name, "bytes": scale * len(image), "end": list(image[-3:])}

    async def pick(self, image: bytes, as_text: bool = False) -> bytes | str:
        return "text" if as_text else image

    async def labelled(self, label: Any = "all", image: bytes = b"") -> bytes:
        return str(label).encode() + b":" + image

    async def rows(self, image: bytes, width: int = 2) -> AsyncIterator[list[int]]:
        for at in range(0, len(image), width):
            yield list(image[at : at + width])

    async def size(self, image: bytes) -> int:
        self.calls += 1
        return len(image)

    async def unannotated(self, image):  # type: ignore[no-untyped-def]
        return image[::-1]

    async def anything(self, **named: Any) -> dict[str, Any]:
        return named

    async def typed(self, word: str, numbers: list[int], ratio: float = 0.0, flag: bool = False) -> dict[str, Any]:
        return {"word": word, "numbers": numbers, "ratio": ratio, "flag": flag}

    async def context(self) -> dict[str, Any]:
        told = slotmesh.context()
        return {"metadata": dict(told.metadata), "ordering_key": told.ordering_key}

    async def fail(self) -> None:
        raise ValueError("no such digit")

    async def abort(self, status: str) -> None:
        slotmesh.abort(status, "the handler says so")

    async def wait(self) -> str:
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "done"

    async def drip(self, fails: bool = False) -> AsyncIterator[str]:
        try:
            yield "first"
            self.started.set()
            await self.gate.wait()
            if fails:
                raise ValueError("in the middle")
            yield "last"
        finally:
            self.closed.set()

    async def fail_at_once(self) -> AsyncIterator[str]:
        slotmesh.abort("NOT_FOUND", "there are none")
        yield ""

    async def flood(self, size: int) -> AsyncIterator[str]:
        try:
            while True:
                self.calls += 1
                yield "x" * size
        finally:
            self.closed.set()


async def greet(name: str) -> str:
    return f"Hello, {name}!"
