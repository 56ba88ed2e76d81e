"""Near replicas first: those of the router's own zone, until they are full; then the others.

Invariants: each replica is in one of two balancers of one policy, by its zone, which it keeps. Costs at most two picks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic

from router_service.core.balancers import CandidateT, OwnBalancer
from slotmesh.balancers import ANY_CALLS, Calls


class NearFirst(Generic[CandidateT]):
    """Two balancers: for near replicas and for the others."""

    def __init__(self, make: Callable[[], OwnBalancer[CandidateT]]) -> None:
        """`make` makes one of the two."""
        self._near, self._others = make(), make()

    def changed(self, replica: CandidateT) -> None:
        """See `FollowsReplicas`."""
        (self._near if replica.is_near else self._others).changed(replica)

    def pick(self, _calls: Calls = ANY_CALLS, _candidates: Sequence[CandidateT] = ()) -> CandidateT | None:
        """See `Balancer.pick`."""
        near = self._near.pick(ANY_CALLS, ())
        return self._others.pick(ANY_CALLS, ()) if near is None else near
