"""One replica with room after another: for calls that all cost the same.

Invariants: `_turns` has exactly the replicas with room. One that joins, or has room again, is inserted at a random end,
so that routers that start together do not send in the same order. O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic

from router_service.core.balancers import CandidateT, register
from router_service.core.sampling import Chance
from slotmesh.balancers import ANY_CALLS, Calls


@register("round_robin")
class RoundRobin(Generic[CandidateT]):
    """A ring of turns."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._turns: OrderedDict[CandidateT, None] = OrderedDict()

    def changed(self, replica: CandidateT) -> None:
        """See `FollowsReplicas`."""
        if replica.free <= 0:
            self._turns.pop(replica, None)
        elif replica not in self._turns:
            self._turns[replica] = None
            if self._chance() < 0.5:
                self._turns.move_to_end(replica, last=False)

    def pick(self, _calls: Calls = ANY_CALLS, _candidates: Sequence[CandidateT] = ()) -> CandidateT | None:
        """See `Balancer.pick`."""
        if not self._turns:
            return None
        replica = next(iter(self._turns))
        self._turns.move_to_end(replica)
        return replica
