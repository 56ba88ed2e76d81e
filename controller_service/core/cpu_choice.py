"""Which CPUs a replica is pinned to. Pure.

Invariant: what is in use is an argument, derived from the replicas that live: nothing is stored that could leak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from math import ceil


def choose_cpus(
    wanted: float, allowed: Collection[int], held: Iterable[tuple[Collection[int], float]]
) -> frozenset[int]:
    """As many of `allowed` as `wanted`, rounded up, those in use least first. `held`: CPUs of replicas, with the share.

    Raises ValueError: there are not that many.
    """
    if (count := ceil(wanted)) > len(allowed):
        raise ValueError(f"{wanted:g} CPUs for each replica, and there are {len(allowed)}")
    used: Counter[int] = Counter()
    for cpus, share in held:
        for cpu in cpus:
            used[cpu] += share / len(cpus)  # type: ignore[assignment]  # Counter is typed for integers
    return frozenset(sorted(allowed, key=lambda cpu: (used[cpu], cpu))[:count])
