"""The load of each backend and endpoint, as the controller is told it: what waits, what runs, what has become of calls.

Invariants: what waits and belongs to no backend yet (calls whose key has no owner, where a policy names several
backends) is divided among those that it may go to, each share rounded up, so that each of them is seen to be needed.
Owner: the scheduler has the state; this only reads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router_service.core.call_ends import CallEndTotals
from router_service.core.counters import RouterCounters, ShadowOutcome
from router_service.core.routing.topology import Topology
from router_service.core.tenants.book import TenantBook, TenantLoad

MAX_IDLE_LOADS: Final = 1_000
"""Of more endpoints those that nobody has called are not reported: a report is made each second."""


@dataclass(frozen=True, slots=True)
class RoutedLoad:
    """Load of one backend at this router."""

    backend: str
    queued: int
    ongoing: int
    slot_calls: int
    """Of `ongoing`."""
    queue_time_s: float
    """How long what waits now will have to wait until all of it was sent; 0 where nothing waits."""
    sent: int
    """Calls sent to replicas since the router's start."""
    shadow_copies: int
    """Copies for it as a shadow that have ended since then, dropped ones included."""
    shadow_drops: int
    """Those that were dropped: no slot was free."""
    ended: CallEndTotals
    """How its calls have ended since then."""
    shadow_ended: CallEndTotals
    """How the copies that it got have ended since then."""


def loads_of(topology: Topology, counters: RouterCounters, now: float) -> list[RoutedLoad]:
    """Of all backends."""
    unowned = Counter[str]()
    for endpoint in topology.endpoints.values():
        if calls := endpoint.account.calls:
            for name, weight in endpoint.traffic.weights.items():
                unowned[name] += math.ceil(calls * weight)
    return [
        RoutedLoad(
            backend=backend.name,
            queued=backend.account.calls + unowned[backend.name],
            ongoing=backend.ongoing,
            slot_calls=backend.slot_calls,
            queue_time_s=backend.account.retry_delay_s(now) if backend.account.calls else 0.0,
            sent=sum(backend.counts.queue_time.counts),
            shadow_copies=sum(counters.shadows[backend.name, outcome.value] for outcome in ShadowOutcome),
            shadow_drops=counters.shadows[backend.name, ShadowOutcome.DROPPED.value],
            ended=backend.counts.ended.sum(),
            shadow_ended=backend.counts.shadow_ended.sum(),
        )
        for backend in topology.backends.values()
    ]


@dataclass(frozen=True, slots=True)
class RoutedEndpointLoad:
    """Load of one endpoint at this router. Totals are of the time since its start."""

    endpoint: str
    accepted: int
    failed: int
    """In whatever failure."""
    waiting: int
    """Calls that belong to no backend yet."""
    ends: Mapping[str, CallEndTotals]
    """By backend; to be read."""
    tenants: Sequence[TenantLoad] = ()
    """The busiest, if they are among the busiest of the router."""


MAX_TENANT_LOADS: Final = 10
"""Of all endpoints together: the busiest tenants of a router."""


def endpoint_loads_of(
    topology: Topology, counters: RouterCounters, tenants: TenantBook, now: float
) -> list[RoutedEndpointLoad]:
    """Of all endpoints; of more than `MAX_IDLE_LOADS` of those only that were called since the router's start."""
    busiest = tenants.loads(MAX_TENANT_LOADS, now)
    failed = Counter[str]()
    for (endpoint, *_), calls in counters.failures.items():
        failed[endpoint] += calls
    waiting = {name: each.account.calls for name, each in topology.endpoints.items()}
    names: Collection[str] = topology.table.endpoints
    if len(names) > MAX_IDLE_LOADS:
        names = [name for name in names if waiting.get(name) or name in failed or counters.calls.get((name,))]
    return [
        RoutedEndpointLoad(
            endpoint=name,
            accepted=counters.calls[name,],
            failed=failed[name],
            waiting=waiting.get(name, 0),
            ends={
                backend: ends
                for backend, counts in counters.backends.items()
                if (ends := counts.ended.by_endpoint.get(name)) is not None
            },
            tenants=[each for each in busiest if each.endpoint == name] if busiest else (),
        )
        for name in names
    ]
