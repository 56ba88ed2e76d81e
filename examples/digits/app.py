"""The handler: `slotmesh run examples.digits.app:Digits`.

Callers classify one image a call; the replica hands over batches, and a batch is classified at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import slotmesh
from examples.digits.data import SIDE, Image, split
from examples.digits.models import Model, train


@slotmesh.deployment
class Digits:
    """Says which digit an image of 8 × 8 pixels shows.

    The arguments of the constructor are the backend's `user_config`, here `{model: svc}`.
    """

    def __init__(self, model: Model = "logistic") -> None:
        learn, _held_out = split()
        self._model = model
        self._learned_from = len(learn.labels)
        self._classify = train(model, learn)

    @slotmesh.batch(max_batch_size=256, batch_wait_timeout_s=0.0)
    async def classify(self, images: list[Image]) -> list[int]:
        """The digit on each image. No waiting for a fuller batch: under load the next one fills while this one runs."""
        pixels = np.frombuffer(b"".join(map(bytes, images)), np.uint8).reshape(-1, SIDE * SIDE)
        digits: list[int] = self._classify(pixels).tolist()
        return digits

    async def info(self) -> dict[str, Any]:
        """What this replica runs."""
        return {"model": self._model, "learned_from": self._learned_from, "side": SIDE}
