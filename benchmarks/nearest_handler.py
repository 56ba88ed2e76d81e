"""A vectorised handler: numpy on a whole batch at once. Imported only where numpy is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import slotmesh

FEATURES = 64
BATCH_CALLS = 128

Rows = NDArray[np.float32]


def rows(count: int, seed: int = 0) -> Rows:
    """So many rows, the same ones each time."""
    return np.random.default_rng(seed).random((count, FEATURES), dtype=np.float32)


@slotmesh.deployment(max_ongoing=4 * BATCH_CALLS, prefetch=4 * BATCH_CALLS)
class Nearest:
    """Says which of its centroids each row is nearest to.

    It does so by elementwise numpy, which never takes more than one processor: how long a batch takes is a matter of
    `centroids` alone, wherever it is called from.
    """

    def __init__(self, centroids: int, at_a_time: int = 1) -> None:
        """`at_a_time`: batches. numpy lets go of the interpreter's lock, so that a second one can be made ready."""
        self._centroids = rows(centroids, seed=1)
        self.nearest.set_max_concurrent_batches(at_a_time)

    @slotmesh.batch(max_batch_size=BATCH_CALLS, batch_wait_timeout_s=0.002)
    def nearest(self, points: Rows) -> NDArray[np.int32]:
        """The index of the centroid for each row."""
        apart = points[:, np.newaxis, :] - self._centroids
        np.multiply(apart, apart, out=apart)
        nearest: NDArray[np.int32] = apart.sum(axis=2).argmin(axis=1).astype(np.int32)
        return nearest
