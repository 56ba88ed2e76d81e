"""Which endpoints a backend's replicas concern, and which replicas own anything.

Purpose: a change of one replica makes the loop look at its own backend and those endpoints, not at all of them.
Owner: `shell.reconcile_loop`, which builds it anew only when policies or ownership changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass

from controller_service.core.desired import Desired
from controller_service.core.observed import Observed


@dataclass(frozen=True, slots=True, kw_only=True)
class Concerns:
    """An index of one revision."""

    endpoints_of: Mapping[str, Set[str]]
    """By backend: the endpoints whose policies name it, and those that its replicas own partitions of."""
    owner_ids: Set[str]
    """Replicas that own a partition of any endpoint."""


def find_concerns(desired: Desired, observed: Observed) -> Concerns:
    endpoints_of: defaultdict[str, set[str]] = defaultdict(set)
    owner_ids: set[str] = set()
    for name, endpoint in desired.endpoints.items():
        if endpoint.traffic is not None:
            for backend in endpoint.traffic.weights:
                endpoints_of[backend].add(name)
    backends_of: dict[int, set[str]] = {}
    """By object: endpoints share what is the same for them."""
    for name, ownership in desired.ownership.items():
        backends = backends_of.get(id(ownership))
        if backends is None:
            ids = [owner.replica_id for owner in ownership.owners]
            owner_ids.update(ids)
            backends = backends_of[id(ownership)] = {of for it in ids if (of := observed.backend_of.get(it))}
        for backend in backends:
            endpoints_of[backend].add(name)
    return Concerns(endpoints_of=endpoints_of, owner_ids=owner_ids)


def changed_keys(before: Desired, after: Desired) -> tuple[set[str], set[str]]:
    """The backends and the endpoints that differ between two revisions, by name."""
    return (
        _differing(before.backends, after.backends) | _differing(before.rollouts, after.rollouts),
        _differing(before.endpoints, after.endpoints) | _differing(before.ownership, after.ownership),
    )


def _differing(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    if before is after:
        return set()
    return {name for name in {**before, **after} if before.get(name) is not after.get(name)}
