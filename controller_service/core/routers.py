"""How what happens to routers changes what is observed: `(observed, fact) -> (observed, notices)`.

Owner: `shell.mesh_state` calls these, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller_service.core.backend_load import BackendLoad
from controller_service.core.brought_table import BroughtTable
from controller_service.core.notices import EventKind, Notice
from controller_service.core.observed import Observed, ObservedRouter
from controller_service.core.partitions import Incarnation
from controller_service.core.transitions import Transition


def attached(observed: Observed, router: ObservedRouter, brought: BroughtTable | None = None) -> Transition:
    """A router opened its membership stream, for the first time or again; `brought` is of another generation."""
    known = observed.routers.get(router.router_id)
    if known is not None:
        router = replace(router, started_at=known.started_at)
    notice = Notice(
        kind=EventKind.ROUTER_ATTACHED,
        subject=f"router/{router.router_id}",
        message=f"at {router.address}" if known is None else f"again, at {router.address}",
    )
    observed = observed.with_router(router).without_brought([router.router_id])
    return Transition(observed if brought is None else observed.with_brought(router.router_id, brought), (notice,))


def adopted(observed: Observed, brought: Mapping[str, BroughtTable]) -> Transition:
    """All was taken over from these tables, by router."""
    known = [router_id for router_id, table in brought.items() if observed.brought.get(router_id) is table]
    return Transition(observed.without_brought(known))


def reported(
    observed: Observed,
    router_id: str,
    *,
    generation: str,
    revision: int,
    linked_replica_ids: tuple[str, ...],
    linked: frozenset[Incarnation] | None,
    loads: tuple[BackendLoad, ...] = (),
    end_reason: str = "",
    now: float | None = None,
) -> Transition:
    """A router reported the table that is in force there, the links that work, and its load."""
    known = observed.routers.get(router_id)
    if known is None:
        return Transition(observed)
    router = replace(
        known,
        generation=generation,
        revision=revision,
        linked_replica_ids=linked_replica_ids,
        linked=linked,
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
    notice = Notice(kind=EventKind.ROUTER_LEFT, subject=f"router/{router_id}", message=message)
    return Transition(observed.without_router(router_id).without_brought([router_id]), (notice,))
