"""Handlers that inferences call, in each form that there is."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

import slotmesh


class Pair(TypedDict):
    """Two tensors by name."""

    a: NDArray[np.float32]
    b: NDArray[np.int64]


@dataclasses.dataclass
class Found:
    """Two outputs by name."""

    total: NDArray[np.float64]
    names: list[str]


class Model:
    """Most forms of methods."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.seen: list[dict[str, str]] = []

    async def infer(self, x: Any) -> np.ndarray:
        self.shapes.append(np.shape(x))
        return np.asarray(x)

    async def named(self, images: NDArray[np.float32], scale: float = 2.0) -> NDArray[np.float32]:
        return images * np.float32(scale)

    async def pair(self, tensors: Pair) -> tuple[np.ndarray, np.ndarray]:
        return tensors["a"] + 1, tensors["b"] + 1

    def everything(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {f"{name}_back": each for name, each in tensors.items()}

    async def found(self, texts: list[str]) -> Found:
        return Found(np.asarray([float(len(texts))]), [each.upper() for each in texts])

    async def nothing(self) -> None:
        return None

    async def context(self) -> list[str]:
        call = slotmesh.context()
        self.seen.append(dict(call.metadata))
        return [f"{name}={value}" for name, value in sorted(call.metadata.items())] + [call.ordering_key]

    async def half(self) -> NDArray[np.float16]:
        return np.asarray([0.5, -2.0], np.float16)

    async def strange(self) -> Any:
        return np.asarray([1j])

    async def fails(self) -> None:
        raise ValueError("no such luck")

    async def count(self, up_to: int) -> AsyncIterator[NDArray[np.int64]]:
        for number in range(up_to):
            yield np.asarray([number])
        if up_to > 5:
            raise ValueError("too far")


class Batches:
    """Batch methods, which get rows."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.05)
    async def infer(self, x: NDArray[np.float32]) -> np.ndarray:
        self.sizes.append(len(x))
        x *= 2
        return x

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.05)
    async def labels(self, texts: list[str], weights: np.ndarray) -> list[str]:
        self.sizes.append(len(texts))
        assert len(texts) == len(weights)
        return [f"{text}:{weight:g}" for text, weight in zip(texts, weights, strict=True)]

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.05)
    def several(self, x: np.ndarray) -> dict[str, Any]:
        return {"sum": x.sum(axis=1), "names": [f"row{len(row)}" for row in x]}

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.05)
    async def picky(self, x: list[float]) -> list[Any]:
        return [ValueError("negative") if each < 0 else each * 10 for each in x]

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.0)
    async def short(self, x: np.ndarray) -> np.ndarray:
        return x[:-1]


class Only:
    """One method, of another name."""

    async def classify(self, x: np.ndarray) -> list[int]:
        return [int(x.sum())]


class Several:
    """Two methods, of which none is `infer`."""

    async def one(self, x: np.ndarray) -> np.ndarray:
        return x

    async def two(self, x: np.ndarray) -> np.ndarray:
        return x


def double(x: np.ndarray) -> np.ndarray:
    """A function is a handler, too."""
    return 2 * x
