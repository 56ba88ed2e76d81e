"""A histogram in plain integers, so that recording costs next to nothing and a scrape reads it as it is.

Invariants: `counts[i]` has the values v with `bounds[i-1] < v <= bounds[i]`; the last one has all above.
Owner: the part that counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds for times, in seconds."""

CALL_TIMES = (
    *(0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0),
)
"""Bounds for the times that callers wait, in seconds: those of `slotmesh.v1.CallEnds.times`."""


class Histogram:
    """Weighted values in buckets."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float, weight: int) -> None:
        """`weight` calls had this value."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.total += value * weight

    def add(self, other: Histogram) -> None:
        """Adds the values of one with the same bounds."""
        self.counts = [one + another for one, another in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def quantile_bound(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The upper bound of the bucket with the quantile: the share `share` of the values is in it or below.

    None without values; infinite where it is above all bounds. `share` is above 0, and 1 at most.
    """
    wanted = share * sum(counts)
    if wanted <= 0:
        return None
    seen = 0
    for bound, count in zip(bounds, counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return inf
