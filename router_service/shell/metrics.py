"""The metrics of the router: counters of the core and of the shell, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from router_service.core.counters import BroadcastEnd, ReservationAnswer, ShadowOutcome
from router_service.core.limits.tenant_limits import TenantFigures
from router_service.core.limits.unread_results import Unread
from router_service.core.routing.topology import Topology
from router_service.core.scheduler import RouterScheduler
from router_service.core.tenants import TenantBook
from router_service.shell.dispatcher import FrameCounts
from slotmesh.errors import Reason
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, observe_counter, observe_gauge
from slotmesh.telemetry.names import OTHER_TENANTS
from slotmesh.telemetry.setup import MetricsServer

ALERTED_ON: Final = (
    Reason.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT,
    Reason.DEADLINE_IN_QUEUE,
    Reason.DEADLINE_RUNNING,
    Reason.HANDLER_ERROR,
    Reason.REPLICA_LOST,
    Reason.BACKEND_UNAVAILABLE,
)
"""Failure reasons that alerts watch. All others appear with their first failure."""


class Zeros:
    """Counters of the names in the current table that are 0 because nothing was counted yet.

    Prometheus sees an increase only between two values: a counter that appears with its first failure hides that
    failure.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def of_endpoints(self) -> Mapping[tuple[str, ...], int]:
        return dict.fromkeys(((name,) for name in self._topology.table.endpoints), 0)

    def of_backends(self) -> Mapping[tuple[str, ...], int]:
        return dict.fromkeys(((name,) for name in self._topology.backends), 0)

    def of_failures(self) -> Mapping[tuple[str, ...], int]:
        """By endpoint, backend and reason."""
        return {
            (endpoint.name, backend, reason.value): 0
            for endpoint in self._topology.table.endpoints.values()
            for backend in ("", *(endpoint.weights or ()))
            for reason in ALERTED_ON
        }

    def of_shadows(self) -> Mapping[tuple[str, ...], int]:
        """By backend and outcome."""
        return {
            (backend, outcome.value): 0
            for endpoint in self._topology.table.endpoints.values()
            for backend in endpoint.shadows
            for outcome in ShadowOutcome
        }

    def of_reservations(self) -> Mapping[tuple[str, ...], int]:
        """By endpoint and outcome."""
        return {(name, answer.value): 0 for name in self._topology.table.endpoints for answer in ReservationAnswer}

    def of_broadcasts(self) -> Mapping[tuple[str, ...], int]:
        """By endpoint and outcome."""
        return {(name, end.value): 0 for name in self._topology.table.endpoints for end in BroadcastEnd}


class TenantMetrics:
    """Figures by endpoint and tenant: the tenants with most calls by name, all others as one.

    Invariants: at most as many names per endpoint as the router keeps accounts for; tenants of the same name of two
    callers are added up.
    """

    def __init__(self, book: TenantBook) -> None:
        self._book = book

    def totals(self, read: Callable[[TenantFigures], int]) -> Counter[tuple[str, ...]]:
        """One of the figures."""
        found: Counter[tuple[str, ...]] = Counter()
        for endpoint, figures in self._book.others.copy().items():
            found[endpoint, OTHER_TENANTS] += read(figures)
        for account in self._book.named():
            found[account.endpoint, account.name] += read(account.figures)
        return found

    def unanswered(self) -> Counter[tuple[str, ...]]:
        """Calls without an outcome, of those that are named."""
        found: Counter[tuple[str, ...]] = Counter()
        for account in self._book.named():
            found[account.endpoint, account.name] += account.unanswered
        return found


def observe(metrics: MetricsServer, scheduler: RouterScheduler, counts: FrameCounts, unread: Unread) -> None:
    """Registers the router's instruments."""
    counters, topology, meter = scheduler.counters, scheduler.topology, metrics.meter
    zeros = Zeros(topology)
    observe_counter(meter, names.ROUTER_CALLS, lambda: {**zeros.of_endpoints(), **counters.calls})
    observe_counter(meter, names.ROUTER_FAILURES, lambda: {**zeros.of_failures(), **counters.failures})
    observe_counter(meter, names.ROUTER_REFUSALS, lambda: counters.refusals)
    tenants = TenantMetrics(scheduler.tenants)
    observe_counter(meter, names.ROUTER_TENANT_CALLS, lambda: tenants.totals(lambda it: it.accepted))
    observe_counter(meter, names.ROUTER_TENANT_FAILURES, lambda: tenants.totals(lambda it: it.failed))
    observe_counter(meter, names.ROUTER_TENANT_REFUSALS, lambda: tenants.totals(lambda it: it.refused))
    observe_gauge(meter, names.ROUTER_TENANT_UNANSWERED, tenants.unanswered)
    observe_counter(meter, names.ROUTER_AFFINITY, counters.affinity)
    observe_counter(meter, names.ROUTER_PREFIX_BLOCKS, counters.prefix_blocks)
    observe_counter(meter, names.ROUTER_RETRIES, lambda: {**zeros.of_backends(), **counters.retries})
    observe_counter(meter, names.ROUTER_SHADOWS, lambda: {**zeros.of_shadows(), **counters.shadows})
    observe_counter(meter, names.ROUTER_RESERVATIONS, lambda: {**zeros.of_reservations(), **counters.reservations})
    observe_counter(meter, names.ROUTER_BROADCASTS, lambda: {**zeros.of_broadcasts(), **counters.broadcasts})
    observe_counter(meter, names.ROUTER_LINK_FAILURES, lambda: {**zeros.of_backends(), **counters.link_failures})
    observe_counter(meter, names.ROUTER_FRAMES, lambda: counts.client_frames)
    observe_counter(meter, names.ROUTER_REPLICA_FRAMES, lambda: counts.replica_frames)
    observe_counter(meter, names.ROUTER_DEFECTS, lambda: {(): counts.defects})
    observe_gauge(meter, names.ROUTER_STREAMS, lambda: {(): counts.streams})
    observe_gauge(meter, names.ROUTER_SESSIONS, lambda: {(): counts.sessions})
    observe_gauge(meter, names.ROUTER_UNREAD, lambda: {(): unread.queued + unread.leaving})
    observe_counter(meter, names.ROUTER_BRAKES, lambda: {(): unread.brakes})
    observe_gauge(
        meter, names.ROUTER_QUEUED, lambda: {(each.name,): each.account.calls for each in topology.backends.values()}
    )
    observe_gauge(
        meter, names.ROUTER_ONGOING, lambda: {(each.name,): each.ongoing for each in topology.backends.values()}
    )
    observe_balancers(metrics, topology)
    metrics.observe_histogram(
        names.ROUTER_QUEUE_TIME,
        lambda: {(name,): Buckets.of(counts.queue_time) for name, counts in counters.backends.items()},
    )
    metrics.observe_histogram(
        names.ROUTER_REPLICA_TIME,
        lambda: {(name,): Buckets.of(counts.replica_time) for name, counts in counters.backends.items()},
    )
    by_method = counters.times.by_method
    metrics.observe_histogram(
        names.ROUTER_CALL_TIME, lambda: {key: Buckets.of(times.total_time) for key, times in by_method.items()}
    )
    metrics.observe_histogram(
        names.ROUTER_CALL_QUEUE_TIME, lambda: {key: Buckets.of(times.queue_time) for key, times in by_method.items()}
    )
    metrics.observe_histogram(
        names.ROUTER_RESERVE_TIME,
        lambda: {(name,): Buckets.of(counts.reserve_time) for name, counts in counters.backends.items()},
    )


def observe_balancers(metrics: MetricsServer, topology: Topology) -> None:
    """Registers the instruments of balancers and zones."""
    backends, meter = topology.backends, metrics.meter
    observe_gauge(
        meter,
        names.ROUTER_UNKNOWN_BALANCERS,
        lambda: {(each.name,): int(not each.has_its_balancer) for each in backends.values()},
    )
    observe_counter(
        meter,
        names.ROUTER_BALANCER_FAULTS,
        lambda: {
            (each.name, fault.value): count
            for each in backends.values()
            if (picks := each.counts.picks) is not None
            for fault, count in picks.faults.items()
        },
    )
    metrics.observe_histogram(
        names.ROUTER_BALANCER_TIME,
        lambda: {
            (each.name,): Buckets.of(picks.times)
            for each in backends.values()
            if (picks := each.counts.picks) is not None
        },
    )
    observe_counter(meter, names.ROUTER_ZONE_CALLS, lambda: _calls_by_distance(topology))


def _calls_by_distance(topology: Topology) -> Mapping[tuple[str, ...], int]:
    """Calls to near replicas and to others; none if the router has no zone."""
    found: dict[tuple[str, ...], int] = {}
    for each in topology.backends.values() if topology.zone else ():
        found[each.name, "near"] = each.counts.near_calls
        found[each.name, "far"] = each.counts.far_calls
    return found
