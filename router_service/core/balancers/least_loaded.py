"""The replica with the smallest share of its permits in use; equals in turn, or the one whose load is known best.

A router without other routers knows all loads, and picks equals in turn. Other routers may have taken room that a
replica reported. Then a replica that has just ended one of this router's calls is picked first, because other routers
learn later that its permit is free; replicas whose room is known from reports only are picked last. So routers avoid
each other without exchanging messages.
Invariants: every replica with room is in the level of its load; `_order` has every level that is not empty. A change
costs O(1), and O(log levels) if a level appears or vanishes; there are as many levels as different loads, however many
replicas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Generic

from router_service.core.balancers import CandidateT, register
from router_service.core.sampling import Chance
from slotmesh.balancers import ANY_CALLS, Calls

Level = OrderedDict[CandidateT, None]
SHARED_PICKS = 1024
"""Picks for which the replicas count as shared after one of them was seen to have calls that are not this router's."""


@register("least_loaded")
class LeastLoaded(Generic[CandidateT]):
    """Replicas by load."""

    def __init__(self, _chance: Chance | None = None) -> None:
        """Nothing is drawn."""
        self._levels: dict[float, Level[CandidateT]] = {}
        self._order: list[float] = []
        self._level_of: dict[CandidateT, Level[CandidateT]] = {}
        self._own: dict[CandidateT, int] = {}
        """This router's calls at each replica that takes calls, at its last change."""
        self._shared = 0
        """Picks for which the replicas still count as shared."""

    def changed(self, replica: CandidateT) -> None:
        """See `FollowsReplicas`."""
        level = self._level_of.pop(replica, None)
        if level is not None:
            del level[replica]
        if not replica.taking:
            self._own.pop(replica, None)
            return
        own = replica.own
        has_ended_some = own < self._own.get(replica, 0)
        self._own[replica] = own
        if replica.capacity.others > 0:
            self._shared = SHARED_PICKS
        if replica.limit <= own:
            return
        load = replica.load
        level = self._levels.get(load)
        if level is None:
            level = self._levels[load] = OrderedDict()
            heappush(self._order, load)
        level[replica] = None
        if has_ended_some and self._shared > 0:
            level.move_to_end(replica, last=False)
        self._level_of[replica] = level

    def pick(self, _calls: Calls = ANY_CALLS, _candidates: Sequence[CandidateT] = ()) -> CandidateT | None:
        """See `Balancer.pick`."""
        order = self._order
        if self._shared:
            self._shared -= 1
        while order:
            level = self._levels[order[0]]
            if level:
                return next(iter(level))
            del self._levels[heappop(order)]
        return None
