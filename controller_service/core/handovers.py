"""Hand-overs of partitions, as they change what is observed: which owners give up what, and what still runs there.

Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from controller_service.core.known_handovers import NO_HANDOVERS, Handovers
from controller_service.core.observed import Observed
from controller_service.core.partitions import Incarnation, PartitionOwnership
from controller_service.core.transitions import Transition


def emptied(observed: Observed, owner: Incarnation, endpoints: Mapping[str, Mapping[int, int]]) -> Transition:
    """A replica reported that it has emptied these partitions (endpoint -> partition -> epoch)."""
    changed: dict[str, Handovers] = {}
    alike: dict[tuple[Handovers, int], Handovers] = {}
    for endpoint, epochs in endpoints.items():
        known = observed.handovers.get(endpoint, NO_HANDOVERS)
        if (after := alike.get((known, id(epochs)))) is None:
            said = known.emptied | {(owner, partition, epoch) for partition, epoch in epochs.items()}
            after = alike[known, id(epochs)] = replace(known, emptied=said)
        changed[endpoint] = after
    return Transition(observed.with_handovers(changed))


def fenced(
    observed: Observed, owner: Incarnation, through_epoch: int, busy: Mapping[str, frozenset[int]]
) -> Transition:
    """A replica reported that it starts nothing up to this epoch, and in which partitions calls still run."""
    known = observed.replica(owner.replica_id)
    if known is None or known.incarnation != owner.incarnation or through_epoch <= known.fenced_through:
        return Transition(observed)
    return Transition(observed.with_replica(replace(known, fenced_through=through_epoch, busy=busy)))


def told_to_leave(
    observed: Observed, ownership: Mapping[str, PartitionOwnership], *, balancing: Collection[str], now: float
) -> Transition:
    """The hand-overs of these endpoints are those of their owners now. Reports of owners on others are dropped.

    `balancing` has the endpoints of which partitions leave for better shares.
    """
    changed: dict[str, Handovers] = {}
    alike: dict[tuple[Handovers, int, bool], Handovers] = {}
    for endpoint, owned in ownership.items():
        known, is_balancing = observed.handovers.get(endpoint, NO_HANDOVERS), endpoint in balancing
        if (after := alike.get((known, id(owned), is_balancing))) is None:
            leaving = {(owned.owners[owned.partition_owners[it]], it, owned.epochs[it]) for it in owned.leaving}
            balanced_at = now if is_balancing else known.balanced_at
            after = replace(known, emptied=known.emptied & leaving, balanced_at=balanced_at)
            alike[known, id(owned), is_balancing] = after
        if after != known:
            changed[endpoint] = after
    return Transition(observed.with_handovers(changed))


def endpoints_deleted(observed: Observed, endpoints: Collection[str]) -> Transition:
    """Nothing of them is on the move any more."""
    return Transition(observed.without_handovers(endpoints) if endpoints else observed)
