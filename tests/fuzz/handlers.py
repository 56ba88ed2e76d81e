"""A handler with parameters of every kind, which does nothing with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slotmesh


class Fuzzed:
    """Each method takes what it can get."""

    async def __call__(self, value: Any = None) -> Any:
        return value

    async def numbers(self, values: list[float], by_name: dict[str, int] | None = None) -> float:
        return float(len(values))

    async def array(self, values: NDArray[np.float32]) -> int:
        return int(values.size)

    async def rest(self, *values: int, **named: list[str]) -> int:
        return len(values)

    @slotmesh.batch(max_batch_size=8)
    async def items(self, values: list[list[float]]) -> list[int]:
        return [len(value) for value in values]

    @slotmesh.batch(max_batch_size=8)
    async def rows(self, values: NDArray[np.float64]) -> list[int]:
        return [int(row.size) for row in values]

    async def stream(self, count: int) -> AsyncIterator[int]:
        for at in range(min(count, 4)):
            yield at
