"""Which owner epochs this replica still serves, by endpoint and partition.

Purpose: the fence that keeps calls of one ordering key in order across replicas: a run that was sent at an older epoch
is refused, and goes on being refused, so that no later call overtakes it.
Invariants: a partition's floor never falls while it is remembered; floors that a fence makes superfluous are dropped.
The newest floors are remembered: `MAX_FLOORS` of them, whole endpoints at a time, so that endpoints that come and go
take no more memory.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_FLOORS: Final = 1_048_576
"""Partitions, of all endpoints, of which a floor is remembered: some 100 bytes each."""


class ServedEpochs:
    """Partition -> lowest epoch that is still served."""

    __slots__ = ("_count", "_fence", "_floors", "_max_floors", "newest")

    def __init__(self, max_floors: int = MAX_FLOORS) -> None:
        """`max_floors`: the floors that are remembered, beside those of the endpoint that had the newest one."""
        self._max_floors = max_floors
        self._floors: dict[str, dict[int, int]] = {}
        """By endpoint and partition; the endpoint that had a new floor last is last."""
        self._count = 0
        """Floors in all."""
        self._fence = 0
        """The floor of partitions that have none of their own: theirs are higher."""
        self.newest = 0
        """The newest owner epoch seen in calls and in orders of the controller."""

    def admit(self, endpoint: str, partition: int, epoch: int) -> bool:
        """Whether a run sent at this epoch may be taken. A higher epoch than before makes it the new floor."""
        floors = self._floors.get(endpoint)
        self.newest = max(self.newest, epoch)
        floor = self._fence if floors is None else floors.get(partition, self._fence)
        if epoch < floor:
            return False
        if epoch > floor:
            self._raise(endpoint, {partition: epoch})
        return True

    def serves(self, endpoint: str, partition: int, epoch: int) -> bool:
        """Whether what was taken at this epoch may still start."""
        floors = self._floors.get(endpoint)
        return epoch >= (self._fence if floors is None else floors.get(partition, self._fence))

    def revoke(self, endpoint: str, epochs: Mapping[int, int]) -> None:
        """From now on refuses these epochs (by partition) and older ones."""
        self.newest = max(self.newest, *epochs.values()) if epochs else self.newest
        known = self._floors.get(endpoint, {})
        self._raise(
            endpoint,
            {partition: max(known.get(partition, self._fence), epoch + 1) for partition, epoch in epochs.items()},
        )

    def fence(self, epoch: int) -> None:
        """From now on refuses this epoch and older ones, of all partitions of all endpoints."""
        self.newest = max(self.newest, epoch)
        self._fence = max(self._fence, epoch + 1)
        above = {
            endpoint: {partition: floor for partition, floor in floors.items() if floor > self._fence}
            for endpoint, floors in self._floors.items()
        }
        self._floors = {endpoint: floors for endpoint, floors in above.items() if floors}
        self._count = sum(map(len, self._floors.values()))

    def _raise(self, endpoint: str, raised: Mapping[int, int]) -> None:
        """These are the floors of partitions of the endpoint now."""
        floors = self._floors.pop(endpoint, {})
        self._count -= len(floors)
        floors.update(raised)
        self._floors[endpoint] = floors
        self._count += len(floors)
        while self._count > self._max_floors and len(self._floors) > 1:
            self._count -= len(self._floors.pop(next(iter(self._floors))))
