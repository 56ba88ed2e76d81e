"""The ingress's instruments: what it counts anyway, read at each scrape."""

from __future__ import annotations

from ingress_service.core.counters import ConnectionCut, Counters
from ingress_service.shell.bodies import HeldBodies
from ingress_service.shell.callers import HttpCallers
from ingress_service.shell.http_server import IngressServer
from ingress_service.shell.route_watch import RouteWatch
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, observe_counter, observe_gauge
from slotmesh.telemetry.setup import MetricsServer


def observe(
    metrics: MetricsServer,
    counters: Counters,
    bodies: HeldBodies,
    callers: HttpCallers,
    server: IngressServer,
    watch: RouteWatch,
) -> None:
    """Exports them. Call it on the event loop."""
    meter = metrics.meter
    observe_counter(
        meter,
        names.INGRESS_REQUESTS,
        lambda: {(label, str(status)): count for (label, status), count in counters.requests.items()},
    )
    metrics.observe_histogram(
        names.INGRESS_TIME, lambda: {(label,): Buckets.of(times) for label, times in counters.times.items()}
    )
    observe_counter(meter, names.INGRESS_LEFT, lambda: {(label,): count for label, count in counters.left.items()})
    observe_counter(meter, names.INGRESS_VALUES, lambda: {(label,): count for label, count in counters.values.items()})
    observe_counter(meter, names.INGRESS_CUTS, lambda: {(each.value,): counters.cuts[each] for each in ConnectionCut})
    observe_gauge(meter, names.INGRESS_IN_FLIGHT, lambda: {(): counters.in_flight})
    observe_gauge(meter, names.INGRESS_CONNECTIONS, lambda: {(): len(server.connections)})
    observe_gauge(meter, names.INGRESS_CALLERS, lambda: {(): len(callers)})
    observe_gauge(meter, names.INGRESS_HELD, lambda: {(): bodies.held})
    observe_gauge(meter, names.INGRESS_CERTIFICATE_END, lambda: _end(server.certificate_ends_at))
    if server.serves_https:
        metrics.observe_handshakes("https", server.failed_handshakes)
    observe_gauge(meter, names.INGRESS_REVISION, lambda: {(): watch.revision})
    observe_gauge(meter, names.INGRESS_ROUTES_HELD, lambda: {(): int(watch.is_held)})


def _end(at: float | None) -> dict[tuple[()], float]:
    return {} if at is None else {(): at}
