"""The replicas of one backend, and the index of all replicas: values that share what does not change.

Purpose: a mesh has thousands of replicas, and most changes concern one of them. A group is copied when one of its
replicas changes, and what is asked of all replicas is kept with each group: nobody walks over those that are as before.
Invariants: immutable; what `facts` says follows from the group alone; two equal histories give the same order.
Owner: `core.observed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from controller_service.core.observed_replica import ObservedReplica
from controller_service.core.partitions import Incarnation

_SHARDS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What has to be known of some of a group's replicas, whichever these are."""

    must_fence_through: int
    """The largest of replicas that are not gone; 0 where there is none."""
    has_unfenced: bool
    awaits_fence: bool
    """One that reports is not fenced."""
    busy: Mapping[str, tuple[tuple[Incarnation, int], ...]]
    """Partitions, by endpoint, of which something still ran at replicas when they were fenced."""


class ReplicaGroup(Mapping[str, ObservedReplica]):
    """Replicas by id."""

    __slots__ = ("_facts", "_replicas")

    def __init__(self, replicas: dict[str, ObservedReplica]) -> None:
        """`replicas` belongs to the group from now on."""
        self._replicas: Final = replicas
        self._facts: GroupFacts | None = None

    def __getitem__(self, replica_id: str) -> ObservedReplica:
        return self._replicas[replica_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    def copy(self) -> dict[str, ObservedReplica]:
        """What the next group is made of."""
        return self._replicas.copy()

    def replicas(self) -> Iterator[ObservedReplica]:
        """In the order in which they came."""
        return iter(self._replicas.values())

    @property
    def facts(self) -> GroupFacts:
        """Found at first use."""
        if self._facts is None:
            self._facts = self._find_facts()
        return self._facts

    def _find_facts(self) -> GroupFacts:
        there = [it for it in self._replicas.values() if not it.gone]
        busy: defaultdict[str, list[tuple[Incarnation, int]]] = defaultdict(list)
        for replica in there:
            for endpoint, numbers in replica.busy.items():
                busy[endpoint] += ((replica.owner, number) for number in numbers)
        return GroupFacts(
            must_fence_through=max((it.must_fence_through for it in there), default=0),
            has_unfenced=any(not it.is_fenced for it in self._replicas.values()),
            awaits_fence=any(not it.is_fenced and it.suspect_since is None for it in there),
            busy={endpoint: tuple(each) for endpoint, each in busy.items()},
        )


class BackendIndex(Mapping[str, str]):
    """Backend of each replica, by id. What changes copies a small part of it."""

    __slots__ = ("_shards", "_size")

    def __init__(self, shards: tuple[dict[str, str], ...] = ({},) * _SHARDS, size: int = 0) -> None:
        self._shards: Final = shards
        self._size: Final = size

    def __getitem__(self, replica_id: str) -> str:
        return self._shards[_shard(replica_id)][replica_id]

    def __iter__(self) -> Iterator[str]:
        for shard in self._shards:
            yield from shard

    def __len__(self) -> int:
        return self._size

    def with_changes(self, changes: Mapping[str, str | None]) -> BackendIndex:
        """With other backends of these replicas; None: the replica is no more."""
        if not changes:
            return self
        by_shard: defaultdict[int, dict[str, str | None]] = defaultdict(dict)
        for replica_id, backend in changes.items():
            by_shard[_shard(replica_id)][replica_id] = backend
        shards, size = [*self._shards], self._size
        for number, each in by_shard.items():
            merged: dict[str, str | None] = {**shards[number], **each}
            kept = {replica_id: backend for replica_id, backend in merged.items() if backend is not None}
            size += len(kept) - len(shards[number])
            shards[number] = kept
        return BackendIndex(tuple(shards), size)


def _shard(replica_id: str) -> int:
    return crc32(replica_id.encode()) % _SHARDS


NO_REPLICAS: Final = ReplicaGroup({})
