"""Hand-overs of partitions, as they change what is observed: which owners give up what, and what still runs there.

Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller_service.core.known_handovers import Handovers
from controller_service.core.observed import Observed
from controller_service.core.partitions import Incarnation, PartitionOwnership
from controller_service.core.transitions import Transition


def emptied(observed: Observed, owner: Incarnation, endpoints: Mapping[str, Mapping[int, int]]) -> Transition:
    """A replica reported that it has emptied these partitions (endpoint -> partition -> epoch)."""
    for endpoint, epochs in endpoints.items():
        known = observed.handovers.get(endpoint, Handovers())
        said = known.emptied | {(owner, partition, epoch) for partition, epoch in epochs.items()}
        observed = observed.with_handovers(endpoint, replace(known, emptied=said))
    return Transition(observed)


def fenced(
    observed: Observed, owner: Incarnation, through_epoch: int, busy: Mapping[str, frozenset[int]]
) -> Transition:
    """A replica reported that it starts nothing up to this epoch, and in which partitions calls still run."""
    known = observed.replica(owner.replica_id)
    if known is None or known.incarnation != owner.incarnation or through_epoch <= known.fenced_through:
        return Transition(observed)
    return Transition(observed.with_replica(replace(known, fenced_through=through_epoch, busy=busy)))


def told_to_leave(observed: Observed, ownership: PartitionOwnership, *, balancing: bool, now: float) -> Transition:
    """The hand-overs of an endpoint are these now. Reports of owners on others are dropped."""
    known = observed.handovers.get(ownership.endpoint, Handovers())
    leaving = {
        (ownership.owners[ownership.partition_owners[number]], number, ownership.epochs[number])
        for number in ownership.leaving
    }
    changed = replace(known, emptied=known.emptied & leaving, balanced_at=now if balancing else known.balanced_at)
    return Transition(observed if changed == known else observed.with_handovers(ownership.endpoint, changed))


def endpoint_deleted(observed: Observed, endpoint: str) -> Transition:
    """Nothing of it is on the move any more."""
    return Transition(observed.without_handovers(endpoint))
