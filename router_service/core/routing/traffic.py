"""How the calls of an endpoint are divided: weights, shard keys and shadows.

`choose` is weighted rendezvous hashing: every router sends a shard key to the same backend, also after a restart,
without exchanging messages. The same key, weights and names give the same backend. A key moves only to a backend whose
weight grew, or away from one whose weight shrank; if one backend grows at the cost of the others alike, keys move only
to it, and only in proportion to its weight. Source: Schindelhauer and Schomaker, Weighted Distributed Hash Tables
(2005), the logarithmic method.
Invariants: immutable, so a change of the policy takes effect between two runs. Draws are independent: the primary's of
each shadow's, and each shadow's of all others'.
Owner: the endpoint; `PolicyStandings` belongs to the topology.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from math import inf, log
from typing import Final, TypeAlias

from router_service.core.limits.admission import Account
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing_table import EndpointRoute
from router_service.core.sampling import Chance, Span, binomial, contiguous
from slotmesh.spec import model

_SEED = b"slotmesh.shard"
"""Part of the contract: another one moves every key."""
_SCALE = 2.0**-53


def choose(key: str, weights: Mapping[str, float]) -> str:
    """The backend of the key; `weights` has one positive weight at least."""
    data = key.encode()
    best, lowest = "", inf
    for name, weight in weights.items():
        if weight <= 0.0:
            continue
        digest = blake2b(data, digest_size=8, key=name.encode(), person=_SEED).digest()
        uniform = ((int.from_bytes(digest, "big") >> 11) + 0.5) * _SCALE
        cost = -log(uniform) / weight
        if cost < lowest or (cost == lowest and name < best):
            best, lowest = name, cost
    return best


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
        """The one backend that gets everything; None if there are several, or none."""
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
        return choose(key, self.weights) if self._names else None

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


_DEFAULTS: Final = model.Backend(name="")


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """Which backends of one policy can serve, and what may wait for them."""

    policy: TrafficShares
    """What was announced."""
    traffic: TrafficShares
    """What calls are divided by: the backends that can serve, or may soon."""
    is_unavailable: bool
    """No backend of the policy can serve, and no replica of them is on its way: calls fail immediately."""
    only: Account | None
    """That of the one backend that gets everything; None if there are several, or none."""
    max_calls: int
    """The widest limit of its backends, as are the next two; the defaults of a backend where there is none."""
    max_bytes: int
    max_queue_time_s: float


class PolicyStandings:
    """The standings of all policies, at one moment.

    Purpose: thousands of endpoints have few different policies; what follows from one is computed once for all of them.
    Invariants: a standing is valid until a backend changes, or starts or stops being able to serve; the topology then
    makes new ones.
    """

    def __init__(self, backends: Mapping[str, RoutedBackend[RoutedReplica]], policies: Iterable[TrafficShares]) -> None:
        """`policies` are those that there are: equal ones are not made again."""
        self._backends = backends
        self._policies = {policy.key: policy for policy in policies}
        self._known: dict[TrafficShares, PolicyStanding] = {}

    def of_route(self, route: EndpointRoute) -> PolicyStanding:
        """That of an endpoint's policy."""
        key = TrafficShares.key_of(route.weights or {}, route.shadows)
        if (policy := self._policies.get(key)) is None:
            policy = self._policies[key] = TrafficShares(route.weights or {}, route.shadows)
        return self.of(policy)

    def of(self, policy: TrafficShares) -> PolicyStanding:
        """That of a policy."""
        if (standing := self._known.get(policy)) is None:
            standing = self._known[policy] = self._found(policy)
        return standing

    def _found(self, policy: TrafficShares) -> PolicyStanding:
        """Where no backend can serve, calls are divided among those that may soon.

        A backend of the policy that no table has named may be named by the next one.
        """
        backends, names = self._backends, policy.weights
        serving = [name for name in names if (each := backends.get(name)) is not None and each.is_serving]
        coming = serving or [name for name in names if (each := backends.get(name)) is None or each.is_coming]
        accounts = [backends[name].account for name in names if name in backends]
        only = backends.get(policy.only) if policy.only is not None else None
        return PolicyStanding(
            policy=policy,
            traffic=_among(policy, coming),
            is_unavailable=bool(names) and not coming,
            only=None if only is None else only.account,
            max_calls=max((one.max_calls for one in accounts), default=_DEFAULTS.max_queued_calls),
            max_bytes=max((one.max_bytes for one in accounts), default=_DEFAULTS.max_queued_bytes),
            max_queue_time_s=max((one.max_queue_time_s for one in accounts), default=_DEFAULTS.max_queue_time_s),
        )


def _among(policy: TrafficShares, names: Collection[str]) -> TrafficShares:
    weights = policy.weights
    if len(names) == len(weights):
        return policy
    return TrafficShares({name: weights[name] for name in names}, policy.shadows)
