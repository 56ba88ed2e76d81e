"""The ingress's instruments, read at each scrape, and its metrics page on the HTTP port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ingress_service.core.counters import ConnectionCut, Counters
from ingress_service.shell.bodies import HeldBodies
from ingress_service.shell.callers import ASK_S, HttpCaller, HttpCallers, ask_routers
from ingress_service.shell.http.server import IngressServer
from ingress_service.shell.route_watch import RouteWatch
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, observe_counter, observe_gauge
from slotmesh.telemetry.setup import MetricsServer

_FOR_VIEWERS: Final = "/grpc.health.v1.Health/List"
"""An rpc of routers that is for viewers, whose request is empty."""
_OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0"
Page = tuple[str, bytes]
"""Content type and text."""


class Scrapes:
    """The metrics page: for viewers, if the mesh has certificates.

    The ingress judges no token: a router decides whether the caller is a viewer, by an rpc for viewers in its name. One
    page is made at a time, which all requests get that arrive meanwhile.
    Owner: the app.
    """

    def __init__(self, make: Callable[[str], Awaitable[Page]], *, is_open: bool) -> None:
        """`make` is given what a request accepts. `is_open`: the mesh has no certificates, and all may see it."""
        self._make = make
        self._is_open = is_open
        self._made: dict[str, asyncio.Task[Page]] = {}

    async def check(self, caller: HttpCaller) -> None:
        """Raises SlotmeshError if the caller is no viewer, or no router answers."""
        if self._is_open:
            return

        async def ask(address: str) -> bytes:
            call = caller.routers.channel(address).unary_unary(_FOR_VIEWERS, bytes, bytes)
            return await call(b"", timeout=ASK_S)

        await ask_routers(caller, ask)

    async def page(self, accept: str) -> Page:
        """The metrics of now."""
        form = _OPEN_METRICS if "openmetrics" in accept else ""
        if (made := self._made.get(form)) is None:
            made = self._made[form] = asyncio.ensure_future(self._make(form))
            made.add_done_callback(lambda _: self._made.pop(form, None))
        return await asyncio.shield(made)


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
