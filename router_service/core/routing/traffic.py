"""How the calls of an endpoint are divided: weights, shard keys and shadows.

Invariants: immutable, so a change of the policy falls between two runs. Draws are independent of each other: the
primary's of each shadow's, and each shadow's of all others'.
Owner: the endpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TypeAlias

from router_service.core.routing import rendezvous
from router_service.core.routing.sampling import Chance, Span, binomial, contiguous

PolicyKey: TypeAlias = tuple[tuple[tuple[str, float], ...], tuple[tuple[str, float], ...]]


class TrafficShares:
    """A policy, prepared for drawing."""

    __slots__ = ("_bounds", "_from", "_names", "key", "only", "shadows", "weights")

    def __init__(self, weights: Mapping[str, float], shadows: Mapping[str, float]) -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight > 0}
        """Share of each backend, by name; none is 0."""
        self.shadows = {name: probability for name, probability in shadows.items() if probability > 0}
        """Probability of a copy, by backend; none is 0."""
        self.key = self.key_of(weights, shadows)
        """Equal for policies that were made of the same."""
        self._names = list(self.weights)
        self.only = self._names[0] if len(self._names) == 1 else None
        """The one backend that gets everything; None where there are several, or none."""
        shares = list(self.weights.values())
        self._bounds = list(accumulate(shares))
        self._from = list(accumulate(reversed(shares)))[::-1]
        """The weight of each backend and all behind it: summed up, for what is left of a difference may be 0."""

    @staticmethod
    def key_of(weights: Mapping[str, float], shadows: Mapping[str, float]) -> PolicyKey:
        """The key of the policy that would be made of these."""
        return tuple(weights.items()), tuple(shadows.items())

    def split(self, count: int, chance: Chance) -> list[tuple[str, Span]]:
        """Divides a run of `count` calls by weight, into contiguous slices. Empty without a policy."""
        names = self._names
        if not names:
            return []
        if count == 1:
            return [(names[self._draw(chance)], (0, 1))]
        counts: list[int] = []
        left = count
        for name, rest in zip(names[:-1], self._from, strict=False):
            drawn = binomial(left, self.weights[name] / rest, chance)
            counts.append(drawn)
            left -= drawn
        counts.append(left)
        return [(names[index], span) for index, span in contiguous(counts, int(chance() * count))]

    def of_shard(self, key: str) -> str | None:
        """The backend of a shard key; None without a policy."""
        return rendezvous.choose(key, self.weights) if self._names else None

    def copies(self, count: int, chance: Chance) -> Iterator[tuple[str, Span]]:
        """What each shadow gets of a run of `count` calls."""
        for name, probability in self.shadows.items():
            drawn = binomial(count, probability, chance)
            if drawn:
                for index, span in contiguous((drawn, count - drawn), int(chance() * count)):
                    if index == 0:
                        yield name, span

    def _draw(self, chance: Chance) -> int:
        index = bisect_right(self._bounds, chance() * self._bounds[-1])
        return min(index, len(self._names) - 1)
