"""The ingress's composition root: the only file that names concrete classes, and the order of start and stop.

Start: metrics, the client of the routers, the listening socket, the routes. Stop: not ready, no new connections,
requests in flight get their grace; then the client, which takes back what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ingress_service.config import IngressSettings
from ingress_service.core.cors import Cors
from ingress_service.core.counters import Counters
from ingress_service.core.http1.heads import ConnectionLimits
from ingress_service.core.peers import ConnectionBound, PeerAddresses, RequestBound, networks_of
from ingress_service.core.routes import RouteTable
from ingress_service.shell.bodies import HeldBodies
from ingress_service.shell.callers import HttpCallers
from ingress_service.shell.calls import HttpFacts
from ingress_service.shell.http.served_connections import ServedConnections
from ingress_service.shell.http.server import IngressServer
from ingress_service.shell.inference_front import InferenceFront
from ingress_service.shell.mesh_view import Descriptions, MeshView
from ingress_service.shell.metrics import Scrapes, observe
from ingress_service.shell.pages import IngressPages
from ingress_service.shell.request_log import FailedRequests, RequestRecords
from ingress_service.shell.request_spans import RequestSpans
from ingress_service.shell.requests import HttpFront
from ingress_service.shell.route_watch import RouteWatch
from ingress_service.shell.token_trials import TokenTrials
from ingress_service.shell.websockets import Sockets
from slotmesh.ids import new_id
from slotmesh.logs import get_logger
from slotmesh.runtime.channels import Dialer
from slotmesh.runtime.parent import announce, watch_parent
from slotmesh.runtime.signals import stop_signals
from slotmesh.runtime.tasks import Supervisor
from slotmesh.spec.routes import Route
from slotmesh.telemetry import names
from slotmesh.telemetry.setup import MetricsServer, metrics_target, setup_metrics
from slotmesh.telemetry.setup_tracing import setup_tracing
from slotmesh.transport.server_addresses import ServerAddresses
from slotmesh.units import parse_names

if TYPE_CHECKING:
    # Most of a second at its first import, for those who have certificates.
    from slotmesh.security.tls import TlsSource

CONNECT_S: Final = 10.0
"""How long calls wait where no router can be reached."""
LAST_CALLS_S: Final = 0.5
"""What calls get whose requests have ended."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ingress:
    """An ingress that serves, and its parts."""

    address: str
    front: HttpFront
    routes: RouteWatch
    counters: Counters
    callers: HttpCallers
    bodies: HeldBodies
    requests: RequestBound
    server: IngressServer


async def main(settings: IngressSettings) -> None:
    """Runs an ingress until it is asked to stop."""
    with stop_signals(ignore_interrupt=settings.parent_fd is not None) as stop:
        if settings.parent_fd is not None:
            watch_parent(settings.parent_fd, stop.set)
        async with serve(settings, on_failure=stop.set) as ingress:
            if settings.announce_fd is not None:
                announce(settings.announce_fd, ingress.address)
            await stop.wait()


@asynccontextmanager
async def serve(settings: IngressSettings, on_failure: Callable[[], object] | None = None) -> AsyncIterator[Ingress]:
    """An ingress on the running event loop, for as long as the block lasts. Raises CannotStart, SettingsError."""
    tls = settings.tls_source()
    counters, cors = Counters(), Cors(parse_names(settings.cors_origins))
    bodies = HeldBodies(settings.max_held_size, settings.max_body_size)
    failures, traces = FailedRequests(), setup_tracing("slotmesh-ingress", settings, {names.INSTANCE: new_id()})
    async with Supervisor(on_failure=on_failure) as tasks:
        callers = _callers(settings, tls)

        def follow(routes: tuple[Route, ...]) -> None:
            mesh.table = RouteTable(routes, has_defaults=settings.default_routes)

        def why_not_ready() -> str:
            if front.is_stopping:
                return "stopping"
            return "" if watch.has_routes.is_set() else f"no routes yet: {watch.problem}"

        watch = RouteWatch(ServerAddresses(settings.controller), Dialer(tls), follow)
        described, trials = Descriptions(), TokenTrials(callers.own, CONNECT_S)
        peers = PeerAddresses(networks_of(settings.http_trusted_proxies), settings.http_forwarded_header)
        requests, facts = RequestBound(settings.max_requests), HttpFacts(parse_names(settings.handler_headers.lower()))
        mesh = MeshView(callers, described, trials, requests, peers)
        follow(())
        inference = InferenceFront(mesh, why_not_ready)
        records = RequestRecords(counters, failures, RequestSpans(traces.tracing))
        metrics = _metrics(settings, tls)
        scrapes = Scrapes(metrics.page, is_open=tls is None)
        front = HttpFront(
            mesh,
            records,
            bodies,
            cors,
            facts,
            pages=IngressPages(mesh, cors, failures, why_not_ready, watch, scrapes).app(),
            sockets=Sockets(mesh, cors, records, bodies, facts),
            inference=inference,
        )
        server = _server(settings, front, records, peers)
        try:
            metrics.observe_spans(lambda: traces.dropped)
            observe(metrics, counters, bodies, callers, server, watch)
            metrics.look_at(lambda: not why_not_ready(), lambda _in_full: why_not_ready())
            await server.start(settings.host, settings.port)
            tasks.keep(server.watch, name="connections")
            tasks.keep(watch.run, name="routes")
            scheme = "http" if settings.https_cert is None else "https"
            _log.info("serving HTTP", url=f"{scheme}://{server.address}", metrics=metrics.address or "")
            yield Ingress(server.address, front, watch, counters, callers, bodies, requests, server)
            front.is_stopping = True
            await server.stop(settings.graceful_timeout.total_seconds())
        finally:
            await server.stop(0)
            described.close()
            await trials.aclose()
            inference.close()
            await callers.aclose(LAST_CALLS_S)
            failures.close()
            await asyncio.gather(metrics.aclose(), traces.aclose())


def _callers(settings: IngressSettings, tls: TlsSource | None) -> HttpCallers:
    return HttpCallers(
        ServerAddresses(settings.routers),
        tls,
        most=settings.max_callers,
        anonymous=settings.anonymous,
        connect_timeout_s=CONNECT_S,
    )


def _metrics(settings: IngressSettings, tls: TlsSource | None) -> MetricsServer:
    return setup_metrics(
        "slotmesh-ingress",
        settings.metrics_host,
        settings.metrics_port,
        otlp=metrics_target(settings),
        tls=tls,
        has_own_page=True,
    )


def _server(
    settings: IngressSettings, front: HttpFront, records: RequestRecords, peers: PeerAddresses
) -> IngressServer:
    limits = ConnectionLimits(
        header_bytes=settings.max_header_size,
        header_s=settings.header_timeout.total_seconds(),
        body_s=settings.body_timeout.total_seconds(),
        send_s=settings.send_timeout.total_seconds(),
        keep_alive_s=settings.keep_alive.total_seconds(),
        ahead_requests=settings.max_pipelined_requests,
        ahead_bytes=settings.max_ahead_size,
    )
    certificate = None
    if settings.https_cert is not None and settings.https_key is not None:
        certificate = (settings.https_cert, settings.https_key)
    shared = ServedConnections(
        *(front, limits, ConnectionBound(settings.max_connections, peers), records.counters, records.failures),
        max_message_bytes=settings.max_body_size,
        scheme="http" if certificate is None else "https",
    )
    return IngressServer(shared, certificate, ConnectionBound(settings.max_connections, peers))
