"""Who owns which partition of an endpoint: the rule on which the order of keyed calls stands.

Invariants, checked by tests/properties/test_controller_partitions.py:
  1. A partition has one owner or none.
  2. It changes hands only when its owner is dead, and each time its epoch grows.
  3. The first assignment gives each replica its share (weight of its backend / ready replicas of it), within 1.
  4. Later ones give what lost its owner to the replicas furthest below their share. Equal inputs, equal outputs.
A replica that joins later therefore owns nothing until another dies: moving partitions away from a live owner takes a
hand-over that this version does not have.
Owner: the reconcile loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from slotmesh.partitions import PARTITIONS

NO_OWNER: Final = -1
"""Index of a partition that nobody owns."""


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One incarnation of a replica."""

    replica_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The partitions of one endpoint."""

    endpoint: str
    owners: tuple[Owner, ...]
    """Those that own something, in order."""
    partition_owners: tuple[int, ...]
    """Of each partition: an index into `owners`, or NO_OWNER."""
    epochs: tuple[int, ...]
    """Of each partition: grows whenever it gets an owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that may be given partitions, and its share of all of them: > 0; the shares sum to 1."""

    owner: Owner
    share: float


def shares(weights: Mapping[str, float], ready: Mapping[str, Sequence[Owner]]) -> list[Candidate]:
    """The replicas that may own partitions, in order: each has its backend's weight over the backend's ready replicas.

    What backends without a ready replica weigh goes to the others, so that every partition can have an owner.
    """
    serving = {name: owners for name, owners in ready.items() if owners and weights.get(name, 0.0) > 0.0}
    total = sum(weights[name] for name in serving)
    return sorted(
        (
            Candidate(owner=owner, share=weights[name] / total / len(owners))
            for name, owners in serving.items()
            for owner in owners
        ),
        key=lambda candidate: candidate.owner,
    )


def assign(
    endpoint: str,
    current: Ownership | None,
    candidates: Sequence[Candidate],
    is_dead: Callable[[Owner], bool],
    *,
    epoch_floor: int,
) -> Ownership:
    """The ownership that should be: `current` with the partitions of dead owners given away.

    Returns `current` itself where nothing changes. Without candidates, partitions of dead owners have no owner.
    """
    if current is None:
        nobody = (NO_OWNER,) * PARTITIONS
        current = Ownership(endpoint=endpoint, owners=(), partition_owners=nobody, epochs=(epoch_floor,) * PARTITIONS)
    dead = {index for index, owner in enumerate(current.owners) if is_dead(owner)}
    dead.add(NO_OWNER)
    orphans = [number for number, index in enumerate(current.partition_owners) if index in dead]
    if not orphans or (not candidates and len(dead) == 1):
        return current

    owner_of: list[Owner | None] = [
        None if index in dead else current.owners[index] for index in current.partition_owners
    ]
    epochs = list(current.epochs)
    if candidates:
        held = dict.fromkeys((candidate.owner for candidate in candidates), 0)
        for owner in owner_of:
            if owner in held:
                held[owner] += 1
        # The furthest below its share first; among equals in the order of their ids.
        needy = [(held[it.owner] - it.share * PARTITIONS, rank) for rank, it in enumerate(candidates)]
        heapify(needy)
        for number in orphans:
            surplus, rank = needy[0]
            heapreplace(needy, (surplus + 1.0, rank))
            owner_of[number] = candidates[rank].owner
            epochs[number] += 1

    owners = tuple(sorted({owner for owner in owner_of if owner is not None}))
    index_of = {owner: index for index, owner in enumerate(owners)}
    return Ownership(
        endpoint=endpoint,
        owners=owners,
        partition_owners=tuple(NO_OWNER if owner is None else index_of[owner] for owner in owner_of),
        epochs=tuple(epochs),
    )


def has_live_owner(ownership: Ownership | None, is_dead: Callable[[Owner], bool]) -> bool:
    """Whether any partition is served."""
    return ownership is not None and any(not is_dead(owner) for owner in ownership.owners)


def count_moves(before: Ownership | None, after: Ownership) -> tuple[int, int]:
    """Partitions that got a new owner, and partitions that lost theirs."""
    old = [NO_OWNER] * PARTITIONS if before is None else before.partition_owners
    epochs = [0] * PARTITIONS if before is None else before.epochs
    given = orphaned = 0
    for had, has, was, now in zip(old, after.partition_owners, epochs, after.epochs, strict=True):
        if has != NO_OWNER and now > was:
            given += 1
        elif has == NO_OWNER and had != NO_OWNER:
            orphaned += 1
    return given, orphaned
