"""The handler that inferences are measured with: it gives back what it gets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slotmesh.handlers import deployment


@deployment(max_ongoing=512)
class EchoModel:
    """As an array, and as bytes for the rpc beside it."""

    async def infer(self, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return x

    async def echo(self, payload: bytes) -> bytes:
        return payload
