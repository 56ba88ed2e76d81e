"""Which owner epochs this replica still serves, by endpoint and partition.

Purpose: the fence that keeps calls of one ordering key in order across replicas: a run that was sent at an older epoch
is refused, and goes on being refused, so that no later call overtakes it.
Invariants: a partition's floor never falls; floors that a fence makes superfluous are dropped. Bounded by 4,096
partitions an endpoint of the mesh.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping


class ServedEpochs:
    """Partition -> lowest epoch that is still served."""

    __slots__ = ("_fence", "_floors", "newest")

    def __init__(self) -> None:
        self._floors: dict[str, dict[int, int]] = {}
        self._fence = 0
        """The floor of partitions that have none of their own: theirs are higher."""
        self.newest = 0
        """The newest owner epoch seen in calls and in orders of the controller."""

    def admit(self, endpoint: str, partition: int, epoch: int) -> bool:
        """Whether a run sent at this epoch may be taken. A higher epoch than before makes it the new floor."""
        floors = self._floors.get(endpoint)
        if floors is None:
            floors = self._floors[endpoint] = {}
        self.newest = max(self.newest, epoch)
        floor = floors.get(partition, self._fence)
        if epoch < floor:
            return False
        if epoch > floor:
            floors[partition] = epoch
        return True

    def serves(self, endpoint: str, partition: int, epoch: int) -> bool:
        """Whether what was taken at this epoch may still start."""
        floors = self._floors.get(endpoint)
        return epoch >= (self._fence if floors is None else floors.get(partition, self._fence))

    def revoke(self, endpoint: str, epochs: Mapping[int, int]) -> None:
        """From now on refuses these epochs (by partition) and older ones."""
        floors = self._floors.setdefault(endpoint, {})
        self.newest = max(self.newest, *epochs.values()) if epochs else self.newest
        for partition, epoch in epochs.items():
            floors[partition] = max(floors.get(partition, self._fence), epoch + 1)

    def fence(self, epoch: int) -> None:
        """From now on refuses this epoch and older ones, of all partitions of all endpoints."""
        self.newest = max(self.newest, epoch)
        self._fence = max(self._fence, epoch + 1)
        above = {
            endpoint: {partition: floor for partition, floor in floors.items() if floor > self._fence}
            for endpoint, floors in self._floors.items()
        }
        self._floors = {endpoint: floors for endpoint, floors in above.items() if floors}
