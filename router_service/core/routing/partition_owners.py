"""The owners of an endpoint's partitions, in little memory: an endpoint has 4,096, and a mesh may have many endpoints.

Invariants: immutable; `keys` has each replica once that owns a partition, in order; two with the same owners and epochs
are equal, however they came about.
Owner: the routing table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from router_service.core.routing.rosters import ReplicaKey
from slotmesh.wire.partitions import PARTITIONS

UNOWNED: Final = -1
"""Index of a partition without an owner."""

OwnerAtEpoch = tuple[ReplicaKey | None, int]
"""The owner of a partition, if it has one, and the epoch."""


class PartitionOwners:
    """Owner and epoch of each partition; empty where none has an owner."""

    __slots__ = ("_epochs", "_indexes", "keys")

    def __init__(self, keys: Sequence[ReplicaKey], indexes: Iterable[int], epochs: Iterable[int]) -> None:
        """`indexes` into `keys`, or UNOWNED. Raises ValueError where these do not fit together."""
        try:
            places, self._epochs = array("h", indexes), array("q", epochs)
        except OverflowError as error:
            raise ValueError(f"no index of an owner, or no epoch: {error}") from None
        if len(places) not in {0, PARTITIONS} or len(self._epochs) != len(places):
            raise ValueError(f"{len(places)} owners and {len(self._epochs)} epochs: must be {PARTITIONS}, or none")
        if places and not UNOWNED <= min(places) <= max(places) < len(keys):
            raise ValueError(f"an owner is none of the {len(keys)} that are named")
        used = sorted({keys[place] for place in {*places} if place != UNOWNED})
        self.keys: Final = tuple(used)
        if self.keys != tuple(keys):
            place_of = {key: place for place, key in enumerate(used)}
            moved = [*(place_of.get(key, UNOWNED) for key in keys), UNOWNED]  # the last one is that of UNOWNED
            places = array("h", map(moved.__getitem__, places))
        self._indexes: Final = places

    @classmethod
    def of(cls, owners: Sequence[OwnerAtEpoch]) -> PartitionOwners:
        """Those of all partitions, or of none."""
        keys = sorted({key for key, _ in owners if key is not None})
        place_of = {key: place for place, key in enumerate(keys)}
        indexes = (UNOWNED if key is None else place_of[key] for key, _ in owners)
        return cls(keys, indexes, (epoch for _, epoch in owners))

    def moved(self, changes: Mapping[int, OwnerAtEpoch]) -> PartitionOwners:
        """With other owners of these partitions, of which there are some."""
        indexes, epochs = array("h", self._indexes), array("q", self._epochs)
        keys = [*self.keys]
        place_of = {key: place for place, key in enumerate(keys)}
        for number, (key, epoch) in changes.items():
            if key is not None and key not in place_of:
                place_of[key] = len(keys)
                keys.append(key)
            indexes[number] = UNOWNED if key is None else place_of[key]
            epochs[number] = epoch
        return PartitionOwners(keys, indexes, epochs)

    def indexes(self) -> Sequence[int]:
        """Of each partition: an index into `keys`, or UNOWNED."""
        return self._indexes

    def epochs(self) -> Sequence[int]:
        """Of each partition."""
        return self._epochs

    def __getitem__(self, number: int) -> OwnerAtEpoch:
        index = self._indexes[number]
        return (self.keys[index] if index != UNOWNED else None), self._epochs[number]

    def __iter__(self) -> Iterator[OwnerAtEpoch]:
        return map(self.__getitem__, range(len(self._indexes)))

    def __len__(self) -> int:
        return len(self._indexes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionOwners):
            return NotImplemented
        return self is other or (
            self.keys == other.keys and self._indexes == other._indexes and self._epochs == other._epochs
        )

    def __hash__(self) -> int:
        return hash((self.keys, self._indexes.tobytes(), self._epochs.tobytes()))


NO_OWNERS: Final = PartitionOwners((), (), ())
"""Of an endpoint whose partitions were never given away."""
