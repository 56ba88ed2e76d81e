"""The metrics of the router: counters of the core and of the shell, read at each scrape."""

from __future__ import annotations

from router_service.core.scheduler import RouterScheduler
from router_service.core.unread_results import Unread
from router_service.shell.frame_counts import FrameCounts
from router_service.shell.tenant_metrics import TenantMetrics
from router_service.shell.zeros import Zeros
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, observe_counter, observe_gauge
from slotmesh.telemetry.setup import MetricsServer


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
    observe_counter(meter, names.ROUTER_RETRIES, lambda: {**zeros.of_backends(), **counters.retries})
    observe_counter(meter, names.ROUTER_SHADOWS, lambda: {**zeros.of_shadows(), **counters.shadows})
    observe_counter(meter, names.ROUTER_RESERVATIONS, lambda: {**zeros.of_reservations(), **counters.reservations})
    observe_counter(meter, names.ROUTER_LINK_FAILURES, lambda: {**zeros.of_backends(), **counters.link_failures})
    observe_counter(meter, names.ROUTER_FRAMES, lambda: counts.client_frames)
    observe_counter(meter, names.ROUTER_REPLICA_FRAMES, lambda: counts.replica_frames)
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
    observe_gauge(
        meter,
        names.ROUTER_UNKNOWN_BALANCERS,
        lambda: {(each.name,): int(each.unknown_balancer is not None) for each in topology.table.backends.values()},
    )
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
