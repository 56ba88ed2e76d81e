"""Random draws from a uniform source: how many calls of a run go where, and which.

Purpose: one draw per run instead of one per call. Each single call still goes to each backend with exactly its
probability, because the slices start at a random position in the run.
Owner: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import floor, lgamma, log, log1p, sqrt

Chance = Callable[[], float]
"""Draws uniformly from [0, 1)."""

Span = tuple[int, int]
"""From an index to another one, the second excluded."""

_FEW = 16
_SMALL_MEAN = 10.0


def binomial(count: int, probability: float, chance: Chance) -> int:
    """How many of `count` independent trials succeed, `probability` in [0, 1] each. Expected cost O(1).

    Source: Devroye, Non-Uniform Random Variate Generation (1986), X.4.3 (waiting times), and Hörmann, The generation of
    binomial random variates (1993), algorithm BTRS: the two that CPython's `random.binomialvariate` uses.
    """
    if probability <= 0.0:
        return 0
    if probability >= 1.0:
        return count
    if probability > 0.5:
        return count - binomial(count, 1.0 - probability, chance)
    if count <= _FEW:
        return sum(chance() < probability for _ in range(count))
    if count * probability < _SMALL_MEAN:
        return _by_waiting_times(count, probability, chance)
    return _btrs(count, probability, chance)


def contiguous(counts: Sequence[int], start: int) -> Iterator[tuple[int, Span]]:
    """Cuts a run of `sum(counts)` calls into slices, beginning at index `start` and going around at the end.

    Yields (index of the count, span), at most one count in two spans, none empty.
    """
    total = sum(counts)
    at = start
    for index, count in enumerate(counts):
        end = at + count
        if at < total < end:
            yield index, (at, total)
            yield index, (0, end - total)
        elif count:
            yield index, (at % total, (at % total) + count)
        at = end


def _by_waiting_times(count: int, probability: float, chance: Chance) -> int:
    """Jumps from success to success: gaps are geometric."""
    log_failure = log1p(-probability)
    successes, at = 0, 0
    while True:
        at += floor(log(1.0 - chance()) / log_failure) + 1
        if at > count:
            return successes
        successes += 1


def _btrs(count: int, probability: float, chance: Chance) -> int:
    """Transformed rejection with squeeze; needs `count * probability >= 10` and `probability <= 0.5`."""
    odds = probability / (1.0 - probability)
    spread = sqrt(count * probability * (1.0 - probability))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * probability
    c = count * probability + 0.5
    v_fast = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * spread
    mode = floor((count + 1) * probability)
    at_mode = lgamma(mode + 1) + lgamma(count - mode + 1)
    while True:
        u = chance() - 0.5
        us = 0.5 - abs(u)
        if not us:
            continue
        k = floor((2.0 * a / us + b) * u + c)
        if not 0 <= k <= count:
            continue
        v = chance()
        if us >= 0.07 and v <= v_fast:
            return k
        v *= alpha / (a / (us * us) + b)
        if not v or log(v) <= at_mode - lgamma(k + 1) - lgamma(count - k + 1) + (k - mode) * log(odds):
            return k
