"""The metrics of the controller: what it has observed and what should be, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry.metrics import Meter

from controller_service.core.desired.handler_code import template_of
from controller_service.core.devices import DeviceLedger
from controller_service.core.event_log import EventKind
from controller_service.core.observed.state import Observed, ReplicaState, wanted_replicas
from controller_service.core.observed.transitions import LOOPING_AFTER
from controller_service.shell.events import EventFeed
from controller_service.shell.leadership import LeadershipBoard
from controller_service.shell.loops.launching import Launching
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.members.router_links import RouterLinks
from controller_service.shell.members.tables import TableBoard
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Store
from slotmesh.spec.devices import WHOLE
from slotmesh.spec.model import Backend
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import observe_counter, observe_gauge

_SHOWN: Final = tuple(state for state in ReplicaState if state is not ReplicaState.STOPPED)


def observe(
    meter: Meter,
    *,
    store: Store,
    state: MeshState,
    board: TableBoard,
    launching: Launching,
    replicas: ReplicaLinks,
    routers: RouterLinks,
    feed: EventFeed,
) -> None:
    """Registers the controller's instruments. A backend has its values from the moment it is applied."""
    observe_gauge(
        meter,
        names.CONTROLLER_MEMBERS,
        lambda: {(names.KIND_ROUTER,): len(routers), (names.KIND_REPLICA,): len(replicas)},
    )
    observe_gauge(
        meter, names.CONTROLLER_REVISION, lambda: {(): board.table.revision if board.table is not None else 0}
    )
    observe_gauge(meter, names.CONTROLLER_REPLICAS, lambda: replica_counts(store, state))
    observe_gauge(meter, names.CONTROLLER_REPLICAS_WANTED, lambda: _wanted(store, state, launches=launching.launches))
    observe_gauge(meter, names.CONTROLLER_CRASH_LOOPS, lambda: _crash_loops(store, state))
    observe_counter(
        meter, names.CONTROLLER_EVENTS, lambda: {(kind.name.lower(),): feed.counts[kind] for kind in EventKind}
    )
    observe_gauge(
        meter,
        names.CONTROLLER_POD_WATCH_AGE,
        lambda: {} if (age_s := launching.watch_age_s) is None else {(): age_s},
    )
    observe_gauge(meter, names.CONTROLLER_DEVICES, lambda: _devices(launching.devices()))
    observe_counter(
        meter,
        names.CONTROLLER_LAUNCHES,
        lambda: {(name,): launching.counts[name] for name in store.read().backends.keys() | launching.counts.keys()},
    )


def observe_leadership(meter: Meter, leadership: Callable[[], LeadershipBoard | None]) -> None:
    """Registers what is there of a controller that stands by, too. `leadership`: None while it does not lead."""

    def read(value: Callable[[LeadershipBoard], int]) -> Mapping[tuple[()], int]:
        leads = leadership()
        return {(): value(leads) if leads is not None else 0}

    observe_gauge(meter, names.CONTROLLER_IS_LEADER, lambda: read(lambda _: 1))
    observe_gauge(meter, names.CONTROLLER_STORE_FAILING, lambda: read(lambda it: int(bool(it.standing.problem))))
    observe_gauge(
        meter, names.CONTROLLER_NEWER_MEMBERS, lambda: read(lambda it: len(it.newer.reasons) if it.newer else 0)
    )
    observe_gauge(meter, names.CONTROLLER_TERM, lambda: read(lambda it: it.standing.term))
    observe_gauge(meter, names.CONTROLLER_STANDBYS, lambda: read(lambda it: it.standing.waiting))


def replica_counts(store: Store, state: MeshState) -> Mapping[tuple[str, str], int]:
    """Returns the number of replicas by backend and state, as operators see it: a silent one is suspect, not ready."""
    counts = Counter((it.backend, it.shown_state) for it in state.observed.incarnations())
    backends = store.read().backends.keys() | {backend for backend, _ in counts}
    return {(name, each.name.lower()): counts[name, each] for name in backends for each in _SHOWN}


def _devices(ledger: DeviceLedger | None) -> Mapping[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for pool in ledger.pools if ledger is not None else ():
        counts.update({(pool, "free"): 0, (pool, "shared"): 0, (pool, "held"): 0})
        for _, free, _ in ledger.devices(pool) if ledger is not None else ():
            counts[pool, "held" if not free else "free" if free == WHOLE else "shared"] += 1
    return counts


def _wanted(store: Store, state: MeshState, *, launches: bool) -> Mapping[tuple[str], int]:
    """A controller that starts no replicas reports only numbers in the settings."""
    backends = store.read().backends.values()
    if launches:
        return {(it.name,): wanted_replicas(it, state.observed) for it in backends}
    return {(it.name,): it.num_replicas for it in backends if it.num_replicas is not None}


def _crash_loops(store: Store, state: MeshState) -> Mapping[tuple[str], int]:
    """Of the present settings; the digest of a template is computed only where a replica has died soon."""
    observed = state.observed
    return {
        (name,): int(name in observed.restarts and _is_looping(observed, backend))
        for name, backend in store.read().backends.items()
    }


def _is_looping(observed: Observed, backend: Backend) -> bool:
    return observed.restarts_of(backend.name, template_of(backend)).streak >= LOOPING_AFTER
