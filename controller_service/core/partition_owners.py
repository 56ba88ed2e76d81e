"""The owners of an endpoint's partitions: the rule that the order of keyed calls depends on.

Purpose: each replica has its share (weight of its backend / ready replicas of it), reached by the fewest moves. A
partition with a live owner moves by a hand-over: it is marked as *leaving*, its owner is ordered to start nothing more
of it, and only when that owner has reported it empty it gets another one. A dead owner's move immediately. Owners that
an earlier generation named keep what they have (`inherited`) until they have ended, or were fenced: then it is given
anew, to them where they may have it.
Invariants, checked by tests/properties/test_controller_partitions.py:
  1. A partition has one owner or none.
  2. It changes hands only when its owner is dead, or has emptied it, or was fenced and runs nothing of it; each time
     its epoch grows, and is newer than the epoch floor.
  3. What is given away goes to the replicas furthest below their share; with all hand-overs done, each replica has its
     share within 1.
  4. A replica gives up no more partitions than it has too many, those that leave already not counted. A replica that
     drains keeps none.
  5. Equal inputs, equal outputs.
Owner: the reconcile loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

from slotmesh.calls.key_hash import PARTITIONS

NO_OWNER: Final = -1
"""Index of a partition without an owner."""


class Incarnation(NamedTuple):
    """One incarnation of a replica. A tuple: there are sets of all of them, and lists in order."""

    replica_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class PartitionOwnership:
    """Who owns the partitions of an endpoint. Endpoints with the same owners and epochs share one object."""

    owners: tuple[Incarnation, ...]
    """Those that own something, in order."""
    partition_owners: tuple[int, ...]
    """Of each partition: an index into `owners`, or NO_OWNER."""
    epochs: tuple[int, ...]
    """Of each partition: grows whenever it gets an owner."""
    leaving: tuple[int, ...] = ()
    """Partitions whose owners must give them up, ascending. Kept with the ownership, so that a controller that returns
    continues the hand-over: the owner refuses their calls from then on."""
    inherited: frozenset[int] = frozenset()
    """Partitions whose owners, and epochs, are those that an earlier generation named."""

    def leaving_by_owner(self) -> dict[Incarnation, dict[int, int]]:
        """What owners must give up: partition -> epoch that ends."""
        epochs_of: dict[Incarnation, dict[int, int]] = {}
        for number in self.leaving:
            epochs_of.setdefault(self.owners[self.partition_owners[number]], {})[number] = self.epochs[number]
        return epochs_of


def count_partitions(ownerships: Iterable[PartitionOwnership], replica_ids: Collection[str]) -> Counter[str]:
    """How many partitions these replicas own, of all that do not share their owners."""
    counts = Counter[str]()
    for each in {id(it): it for it in ownerships}.values():
        of = {index: it.replica_id for index, it in enumerate(each.owners) if it.replica_id in replica_ids}
        for index, number in Counter(each.partition_owners).items() if of else ():
            if index in of:
                counts[of[index]] += number
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerCandidate:
    """A replica that may be given partitions, and its share of all of them: > 0; the shares sum to 1."""

    owner: Incarnation
    share: float


def shares(weights: Mapping[str, float], ready: Mapping[str, Sequence[Incarnation]]) -> list[OwnerCandidate]:
    """The replicas that may own partitions, in order: each has its backend's weight over the backend's ready replicas.

    What backends without a ready replica weigh goes to the others, so that every partition can have an owner.
    """
    serving = {name: owners for name, owners in ready.items() if owners and weights.get(name, 0.0) > 0.0}
    total = sum(weights[name] for name in serving)
    return sorted(
        (
            OwnerCandidate(owner=owner, share=weights[name] / total / len(owners))
            for name, owners in serving.items()
            for owner in owners
        ),
        key=lambda candidate: candidate.owner,
    )


def assign(
    current: PartitionOwnership | None,
    candidates: Sequence[OwnerCandidate],
    is_dead: Callable[[Incarnation], bool],
    *,
    epoch_floor: int,
    emptied: Collection[tuple[Incarnation, int, int]] = (),
    busy: Collection[tuple[Incarnation, int]] = (),
    fenced_through: Callable[[Incarnation], int] = lambda _: 0,
) -> PartitionOwnership:
    """The ownership that should be: `current` with the partitions of dead owners, and those handed over, given away.

    `emptied` has (owner, partition, epoch) of what owners have given up. `fenced_through` is the epoch up to which an
    owner starts nothing any more, and `busy` has the partitions (owner, partition) in which it ran calls at that
    moment: what it has at these epochs it gets anew, or gives up. Returns `current` itself where nothing changes.
    Without candidates, partitions of dead owners have no owner, and hand-overs wait. With no `current`, all are given
    away, except that those of `busy` still have to leave their owners.
    """
    if current is None:
        current = _first(epoch_floor, busy)
    owners, of = current.owners, current.partition_owners
    dead = {index for index, owner in enumerate(owners) if is_dead(owner)}
    dead.add(NO_OWNER)
    void = _void(current, dead, [fenced_through(owner) for owner in owners])
    if len(dead) == 1 and not emptied and not void and NO_OWNER not in of:
        return current
    free = [number for number, index in enumerate(of) if index in dead]
    renewed: list[int] = []
    leaving = set(current.leaving)
    if candidates:
        if emptied:
            free += _handed_over(current, dead, emptied)
        serving = {candidate.owner for candidate in candidates}
        renewed, finishing, idle = _fenced(current, set(void).difference(free), serving, busy)
        leaving.update(finishing)
        free += idle
    has_more_leaving = len(leaving) > len(current.leaving)
    if not (free or renewed or has_more_leaving) or (not candidates and len(dead) == 1):
        return current

    owner_of: list[Incarnation | None] = [None if index in dead else owners[index] for index in of]
    for number in free:
        owner_of[number] = None
    epochs = list(current.epochs)
    for number in renewed:
        epochs[number] = max(epochs[number], epoch_floor) + 1
    staying = leaving.difference(free)
    if candidates:
        for number, owner in _given(sorted(free), candidates, owner_of, staying):
            owner_of[number] = owner
            epochs[number] = max(epochs[number], epoch_floor) + 1

    return ownership_of(
        owner_of,
        epochs,
        leaving=staying,
        inherited=current.inherited.difference(free, renewed),
    )


def ownership_of(
    owner_of: Sequence[Incarnation | None],
    epochs: Sequence[int],
    *,
    leaving: Collection[int] = (),
    inherited: frozenset[int] = frozenset(),
) -> PartitionOwnership:
    """The ownership with these owners of each partition."""
    owners = tuple(sorted({owner for owner in owner_of if owner is not None}))
    index_of = {owner: index for index, owner in enumerate(owners)}
    return PartitionOwnership(
        owners=owners,
        partition_owners=tuple(NO_OWNER if owner is None else index_of[owner] for owner in owner_of),
        epochs=tuple(epochs),
        leaving=tuple(sorted(leaving)),
        inherited=inherited,
    )


def inherit(
    current: PartitionOwnership | None, earlier: PartitionOwnership, is_dead: Callable[[Incarnation], bool]
) -> PartitionOwnership | None:
    """With the owners that an earlier generation named; None if that is nothing new.

    Of several such tables the newest epoch of each partition counts. What was given away since stays as it is.
    """
    if current is None:
        current = ownership_of([None] * PARTITIONS, [-1] * PARTITIONS)
    owner_of = [None if index == NO_OWNER else current.owners[index] for index in current.partition_owners]
    epochs = list(current.epochs)
    changed: list[int] = []
    for number, (index, epoch) in enumerate(zip(earlier.partition_owners, earlier.epochs, strict=True)):
        is_given = owner_of[number] is not None and number not in current.inherited
        if is_given or epoch <= epochs[number]:
            continue
        owner = None if index == NO_OWNER else earlier.owners[index]
        owner_of[number] = None if owner is None or is_dead(owner) else owner
        epochs[number] = epoch
        changed.append(number)
    if not changed:
        return None
    named = frozenset(number for number in changed if owner_of[number] is not None)
    return ownership_of(
        owner_of,
        epochs,
        leaving=set(current.leaving).difference(changed),
        inherited=current.inherited.difference(changed) | named,
    )


def hand_over(
    current: PartitionOwnership,
    candidates: Sequence[OwnerCandidate],
    *,
    is_draining: Callable[[Incarnation], bool],
    balance: bool,
    stays: Callable[[Incarnation], bool] = lambda _: False,
) -> PartitionOwnership:
    """Marks partitions that should leave their live owners; returns `current` itself where there are no new ones.

    All partitions of draining owners leave. With `balance`, so do those that the others have too many of, except that
    owners for which `stays` is true keep theirs, and the others share the rest.
    """
    if not candidates:
        return current
    keep = {index: 0 for index, owner in enumerate(current.owners) if is_draining(owner)}
    if balance:
        staying = Counter(current.partition_owners)
        staying.subtract(current.partition_owners[number] for number in current.leaving)
        held = {owner: staying[index] for index, owner in enumerate(current.owners)}
        fixed = {owner for owner in current.owners if stays(owner)}
        quotas = _quotas(candidates, held, PARTITIONS - sum(held[owner] for owner in fixed))
        for index, owner in enumerate(current.owners):
            if owner not in fixed and held[owner] > quotas.get(owner, 0):
                keep.setdefault(index, quotas.get(owner, 0))
    if not keep:
        return current
    leaving = set(current.leaving)
    for number, index in enumerate(current.partition_owners):
        if index in keep and number not in leaving:
            if keep[index]:
                keep[index] -= 1
            else:
                leaving.add(number)
    return current if len(leaving) == len(current.leaving) else replace(current, leaving=tuple(sorted(leaving)))


def _first(epoch_floor: int, busy: Collection[tuple[Incarnation, int]]) -> PartitionOwnership:
    """Without owners, except that those of `busy` have calls to finish."""
    owner_of: list[Incarnation | None] = [None] * PARTITIONS
    for owner, number in sorted(busy):
        owner_of[number] = owner
    return ownership_of(owner_of, [epoch_floor] * PARTITIONS, leaving={number for _, number in busy})


def _handed_over(
    current: PartitionOwnership, dead: Collection[int], emptied: Collection[tuple[Incarnation, int, int]]
) -> Iterator[int]:
    """The partitions that live owners were ordered to give up, and have given up."""
    owners, of = current.owners, current.partition_owners
    for number in current.leaving:
        if of[number] not in dead and (owners[of[number]], number, current.epochs[number]) in emptied:
            yield number


def _fenced(
    current: PartitionOwnership,
    numbers: Iterable[int],
    serving: Collection[Incarnation],
    busy: Collection[tuple[Incarnation, int]],
) -> tuple[list[int], list[int], list[int]]:
    """Of partitions whose owners were fenced: those that they get anew, those that they still run, and the others."""
    renewed: list[int] = []
    finishing: list[int] = []
    idle: list[int] = []
    leaving = frozenset(current.leaving)
    for number in numbers:
        owner = current.owners[current.partition_owners[number]]
        if owner in serving and number not in leaving:
            renewed.append(number)
        elif (owner, number) in busy:
            finishing.append(number)
        else:
            idle.append(number)
    return renewed, finishing, idle


def _given(
    numbers: Iterable[int],
    candidates: Sequence[OwnerCandidate],
    owner_of: Sequence[Incarnation | None],
    leaving: Collection[int],
) -> list[tuple[int, Incarnation]]:
    """The new owner of each of these partitions: the candidate furthest below its share, `leaving` not counted."""
    held = dict.fromkeys((candidate.owner for candidate in candidates), 0)
    for number, holder in enumerate(owner_of):
        if holder in held and number not in leaving:
            held[holder] += 1
    # Among equals in the order of their ids.
    needy = [(held[it.owner] - it.share * PARTITIONS, rank) for rank, it in enumerate(candidates)]
    heapify(needy)
    given: list[tuple[int, Incarnation]] = []
    for number in numbers:
        surplus, rank = needy[0]
        heapreplace(needy, (surplus + 1.0, rank))
        given.append((number, candidates[rank].owner))
    return given


def _void(current: PartitionOwnership, dead: Collection[int], fences: Sequence[int]) -> list[int]:
    """The partitions of which their living owner, being fenced, starts nothing at the epoch that it has."""
    if not any(fences):
        return []
    return [
        number
        for number, (index, epoch) in enumerate(zip(current.partition_owners, current.epochs, strict=True))
        if index not in dead and epoch <= fences[index]
    ]


def _quotas(
    candidates: Sequence[OwnerCandidate], held: Mapping[Incarnation, int], total: int
) -> dict[Incarnation, int]:
    """Whole partitions for each candidate, its share of all within 1; those that hold more already get the odd ones."""
    quotas = {it.owner: int(it.share * total) for it in candidates}
    odd = total - sum(quotas.values())
    eager = sorted(candidates, key=lambda it: (quotas[it.owner] - held.get(it.owner, 0), it.owner))
    for candidate in eager[:odd]:
        quotas[candidate.owner] += 1
    return quotas


def has_live_owner(ownership: PartitionOwnership | None, is_dead: Callable[[Incarnation], bool]) -> bool:
    """Whether any partition is served."""
    return ownership is not None and any(not is_dead(owner) for owner in ownership.owners)


def count_moves(before: PartitionOwnership | None, after: PartitionOwnership) -> tuple[int, int]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Handovers:
    """What is known of an endpoint's partitions that are being handed over. Kept in the observed state."""

    emptied: frozenset[tuple[Incarnation, int, int]] = frozenset()
    """(owner, partition, epoch): nothing of the partition is left at that owner, and nothing of the epoch starts."""
    balanced_at: float = float("-inf")
    """When partitions were last ordered to leave for better shares, seconds (monotonic)."""


NO_HANDOVERS: Final = Handovers()
