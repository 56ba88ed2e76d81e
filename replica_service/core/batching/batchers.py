"""The batchers of all batch methods, and the lanes that hold permits in them.

Invariants: a lane in a batcher, or in a batch that runs, holds one permit; an unkeyed call in a batcher holds one.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replica_service.core.batching.batcher import Batcher
from replica_service.core.batching.gathering import Weigh
from replica_service.core.calls import ReplicaLane
from replica_service.core.lanes.lanes import Lanes
from replica_service.core.permits.permits import Permits
from slotmesh.handlers.batching import BatchControl


class Batching:
    """All batchers of one replica."""

    __slots__ = ("_lanes", "_permits", "batchers", "gathering")

    def __init__(
        self,
        methods: Mapping[str, BatchControl | None],
        weigh: Mapping[str, Weigh],
        permits: Permits,
        lanes: Lanes,
    ) -> None:
        """`methods` has the settings of batch methods, by name. `weigh`: see `ReplicaScheduler`."""
        self.batchers = {
            name: Batcher(name, control, permits.max_ongoing, weigh.get(name))
            for name, control in methods.items()
            if control is not None
        }
        """By method."""
        self.gathering: dict[Batcher, None] = {}
        """Batchers in which calls wait."""
        self._permits = permits
        self._lanes = lanes

    def limit(self, max_ongoing: int) -> None:
        """Sets how many permits there are from now on."""
        for batcher in self.batchers.values():
            batcher.gathered.limit(max_ongoing)

    def recount(self, lane: ReplicaLane) -> None:
        """The calls of a lane have changed: where its first one is no call of the batch method now, it leaves."""
        if (batcher := lane.batcher) is not None and not batcher.recount(lane):
            self.release((lane,))

    def release(self, lanes: Iterable[ReplicaLane]) -> None:
        """Lanes that held a permit go back to where they wait for one, or out."""
        for lane in lanes:
            self._permits.in_use -= 1
            self._lanes.give_back(lane)
