"""Transitions of routers, and of hand-overs of partitions: `(observed, fact) -> (observed, notices)`.

Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypedDict, Unpack

from controller_service.core.event_log import EventKind, Notice
from controller_service.core.loads import BackendLoad
from controller_service.core.observed.state import Observed, ObservedRouter
from controller_service.core.observed.transitions import Transition
from controller_service.core.partition_owners import NO_HANDOVERS, Handovers, Incarnation, PartitionOwnership
from controller_service.core.roster import EarlierTable


def attached(observed: Observed, router: ObservedRouter, earlier: EarlierTable | None = None) -> Transition:
    """A router opened its membership stream, for the first time or again; `earlier` is of another generation."""
    known = observed.routers.get(router.router_id)
    if known is not None:
        router = replace(router, started_at=known.started_at)
    notice = Notice(
        kind=EventKind.ROUTER_ATTACHED,
        subject=f"router/{router.router_id}",
        message=f"at {router.address}" if known is None else f"again, at {router.address}",
    )
    observed = observed.with_router(router).without_earlier_tables([router.router_id])
    return Transition(
        observed if earlier is None else observed.with_earlier_table(router.router_id, earlier), (notice,)
    )


def adopted(observed: Observed, earlier: Mapping[str, EarlierTable]) -> Transition:
    """All was taken over from these tables, by router."""
    known = [router_id for router_id, table in earlier.items() if observed.earlier_tables.get(router_id) is table]
    return Transition(observed.without_earlier_tables(known))


class ReportedLinks(TypedDict, total=False):
    """Fields of `ObservedRouter`: the links that a router has, and the links and balancers that it lacks."""

    linked: frozenset[Incarnation]
    links_subset: bool
    unlinked: frozenset[Incarnation]
    unknown_balancers: tuple[str, ...]


def reported(
    observed: Observed,
    router_id: str,
    *,
    generation: str,
    revision: int,
    loads: tuple[BackendLoad, ...] = (),
    end_reason: str = "",
    now: float | None = None,
    **links: Unpack[ReportedLinks],
) -> Transition:
    """A router reported the table that is in force there, the links that work, and its load."""
    known = observed.routers.get(router_id)
    if known is None:
        return Transition(observed)
    router = replace(
        known,
        generation=generation,
        revision=revision,
        **links,
        loads=loads,
        end_reason=end_reason or known.end_reason,
        reported_at=now,
    )
    return Transition(observed if router == known else observed.with_router(router))


def left(observed: Observed, router_id: str, message: str) -> Transition:
    """A router ended its stream in order, or was silent past its lease."""
    known = observed.routers.get(router_id)
    if known is None:
        return Transition(observed)
    if known.end_reason:
        message = f"{message}; its own reason: {known.end_reason}"
    notice = Notice(kind=EventKind.ROUTER_DETACHED, subject=f"router/{router_id}", message=message)
    return Transition(observed.without_router(router_id).without_earlier_tables([router_id]), (notice,))


def emptied(observed: Observed, owner: Incarnation, endpoints: Mapping[str, Mapping[int, int]]) -> Transition:
    """A replica reported that it has emptied these partitions (endpoint -> partition -> epoch)."""
    changed: dict[str, Handovers] = {}
    alike: dict[tuple[Handovers, int], Handovers] = {}
    for endpoint, epochs in endpoints.items():
        known = observed.handovers.get(endpoint, NO_HANDOVERS)
        if (after := alike.get((known, id(epochs)))) is None:
            now_empty = known.emptied | {(owner, partition, epoch) for partition, epoch in epochs.items()}
            after = alike[known, id(epochs)] = replace(known, emptied=now_empty)
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


def handovers_changed(
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
