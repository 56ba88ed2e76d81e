"""A histogram in plain integers, so that recording costs next to nothing and a scrape reads it as it is.

Invariants: `counts[i]` has the values v with `bounds[i-1] < v <= bounds[i]`; the last one has all above.
Owner: the part that counts.
"""

from __future__ import annotations

from bisect import bisect_left

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds for times, in seconds."""


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
