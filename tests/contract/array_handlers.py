"""Handlers that take and return arrays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotmesh.handlers import batch, deployment


@deployment(max_ongoing=256)
class Arrays:
    """Singly and in batches, on the loop and in threads."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def echo(self, array: Any) -> Any:
        return array

    def norm(self, array: NDArray[np.float64]) -> float:
        return float(np.linalg.norm(array))

    async def total(self, numbers: list[float]) -> float:
        return sum(numbers)

    async def halves(self, array: np.ndarray) -> AsyncIterator[NDArray[Any]]:
        middle = len(array) // 2
        yield array[:middle]
        yield array[middle:]

    @batch(max_batch_size=64, batch_wait_timeout_s=0.0)
    async def scale(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        self.sizes.append(len(rows))
        rows *= 2
        return rows

    @batch(max_batch_size=64, batch_wait_timeout_s=0.0)
    def sums(self, rows: np.ndarray) -> NDArray[Any]:
        return np.asarray(rows.sum(axis=1))

    @batch(max_batch_size=64, batch_wait_timeout_s=0.0)
    async def shapes(self, arrays: list[np.ndarray]) -> list[list[int]]:
        return [list(array.shape) for array in arrays]
