"""What is made of measurements. Pure.

Invariant: machines drift, so things are compared within a round only, and a round's outlier moves no median.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Sample:
    """One workload in one round."""

    calls: int
    elapsed_s: float
    """From the first call to the last reply."""
    latencies_s: array[float]
    """What callers waited: a figure for each call, or for each list of calls."""

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One workload over all rounds."""

    calls_per_s: float
    """Median of the rounds."""
    lowest_calls_per_s: float
    highest_calls_per_s: float
    p50_s: float
    """Median of the rounds' medians."""
    p99_s: float
    """Median of the rounds' 99th percentiles."""
    ratio: float
    """Calls a second against the baseline's of the same round; the median of the rounds."""


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The nearest rank: the smallest value that is not below `percent` of the values.

    Raises:
        ValueError: there are no values, or `percent` is not within 0 and 100.
    """
    if not ascending:
        raise ValueError("no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be within 0 and 100, got {percent}")
    return ascending[max(math.ceil(len(ascending) * percent / 100), 1) - 1]


def summarise(rounds: Sequence[Sample], baseline: Sequence[Sample]) -> Summary:
    """Sums up a workload, beside the baseline of the same rounds.

    Raises:
        ValueError: there are no rounds, or not as many of both.
    """
    if not rounds:
        raise ValueError("no rounds")
    rates = [sample.calls_per_s for sample in rounds]
    ascending = [sorted(sample.latencies_s) for sample in rounds]
    return Summary(
        calls_per_s=median(rates),
        lowest_calls_per_s=min(rates),
        highest_calls_per_s=max(rates),
        p50_s=median(percentile(latencies, 50) for latencies in ascending),
        p99_s=median(percentile(latencies, 99) for latencies in ascending),
        ratio=median(rate / beside.calls_per_s for rate, beside in zip(rates, baseline, strict=True)),
    )
