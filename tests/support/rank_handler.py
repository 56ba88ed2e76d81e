"""A handler that other handlers call."""

from __future__ import annotations

from collections.abc import AsyncIterator

import slotmesh


class Rank:
    """Says what its caller's call was like."""

    async def score(self, number: int) -> int:
        return number * 10

    async def left(self) -> float | None:
        return slotmesh.context().time_left()

    async def left_of(self, number: int) -> float | None:
        return slotmesh.context().time_left()

    async def trace(self) -> str:
        return slotmesh.context().traceparent

    async def count(self, number: int) -> AsyncIterator[int]:
        for each in range(number):
            yield each
