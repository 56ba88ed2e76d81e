"""The less loaded of two replicas drawn at random among those with room.

For many routers with little knowledge of each other's load: they do not all choose the same replica.
Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001).
Invariants: `_open` has exactly the replicas with room, `_place` the position of each of them. O(1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from router_service.core.balancers import CandidateT, register
from router_service.core.sampling import Chance
from slotmesh.balancers import ANY_CALLS, Calls


@register("power_of_two")
class PowerOfTwo(Generic[CandidateT]):
    """Draws two, keeps one."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._open: list[CandidateT] = []
        self._place: dict[CandidateT, int] = {}

    def changed(self, replica: CandidateT) -> None:
        """See `FollowsReplicas`."""
        place = self._place.get(replica)
        if replica.free > 0:
            if place is None:
                self._place[replica] = len(self._open)
                self._open.append(replica)
        elif place is not None:
            last = self._open.pop()
            del self._place[replica]
            if last is not replica:
                self._open[place] = last
                self._place[last] = place

    def pick(self, _calls: Calls = ANY_CALLS, _candidates: Sequence[CandidateT] = ()) -> CandidateT | None:
        """See `Balancer.pick`."""
        count = len(self._open)
        if count < 2:
            return self._open[0] if count else None
        first = int(self._chance() * count)
        second = int(self._chance() * (count - 1))
        second += second >= first
        one, other = self._open[first], self._open[second]
        return one if one.load <= other.load else other
