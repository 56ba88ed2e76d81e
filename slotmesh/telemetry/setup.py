"""Metrics of a service, scraped by Prometheus or pushed; `setup_sdk` sets up the OpenTelemetry SDK for them.

Purpose: all other code uses OpenTelemetry's API, through a `meter` that is passed to it.
Invariants: no global state: two servers in one process are separate; without a port metrics are off and cost nothing;
after `shutdown` no thread and no socket is left.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.metrics import Meter, NoOpMeterProvider

from slotmesh.config import ServiceSettings
from slotmesh.config.otlp import OtlpTarget, otlp_target
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.exports import Exports
from slotmesh.telemetry.http_server import HttpServer, make_server
from slotmesh.telemetry.instruments import Buckets, ReadBuckets, observe_counter, on_this_loop
from slotmesh.telemetry.names import (
    PROCESS_LOOP_LAG,
    PROCESS_SPANS_DROPPED,
    RPC_SERVER_CALL_DURATION,
    TLS_HANDSHAKE_FAILURES,
    Metric,
)
from slotmesh.telemetry.pages import PageAccess, Pages
from slotmesh.telemetry.process_times import LoopLag, RpcTimes
from slotmesh.telemetry.security_metrics import FailedHandshakes, HandshakeProblem, observe_certificates
from slotmesh.telemetry.setup_sdk import SdkMetrics
from slotmesh.units import join_host_port

if TYPE_CHECKING:
    # Takes most of a second to import; only for processes with certificates.
    from slotmesh.security.authentication import TokenVerifier
    from slotmesh.security.tls import TlsSource

_METER = "slotmesh"
_POLL_S = 0.1
"""The interval in which the endpoint checks whether to stop, in seconds."""

_log = get_logger(__name__)


class MetricsServer:
    """The metrics of one service, and its health pages, at `http://ADDRESS`."""

    def __init__(
        self, meter: Meter, sdk: SdkMetrics | None = None, http: HttpServer | None = None, pages: Pages | None = None
    ) -> None:
        self.meter = meter
        """For the code that registers instruments."""
        self._sdk = sdk
        self._http = http
        self._pages = pages
        self._handshakes: dict[str, FailedHandshakes] = {}
        """By server."""
        self._lag: LoopLag | None = None
        self._thread: threading.Thread | None = None
        if http is not None:
            self._thread = threading.Thread(target=http.serve_forever, args=(_POLL_S,), name="metrics", daemon=True)
            self._thread.start()

    @property
    def address(self) -> str | None:
        """`HOST:PORT` of the endpoint; None if there is none."""
        return None if self._http is None else join_host_port(self._http.server_name, self._http.server_port)

    @property
    def exports(self) -> Exports | None:
        """How pushes go; None if metrics are not pushed."""
        return None if self._sdk is None else self._sdk.exports

    def observe_histogram(self, metric: Metric, read: ReadBuckets) -> None:
        """Exports histograms that the caller counts; `read` runs on the present event loop."""
        if self._sdk is not None:
            self._sdk.observe_histogram(metric, on_this_loop(read))

    def look_at(
        self,
        is_serving: Callable[[], bool],
        why_not: Callable[[bool], str] | None = None,
        stands_by: Callable[[], bool] = lambda: False,
    ) -> None:
        """Sets the source of `/healthz` and `/readyz`, and measures the lag of the present event loop.

        `why_not` returns a line with the reason for not serving, for viewers or (False) all clients. Thread-safe.
        `stands_by`: another process serves in its place. Thread-safe, too.
        """
        if self._pages is not None:
            reason = {} if why_not is None else {"why_not": why_not}
            self._pages.look_at(is_serving, **reason, stands_by=stands_by)
        if self._sdk is not None:
            self._lag = lag = LoopLag()
            self.observe_histogram(PROCESS_LOOP_LAG, lambda: {(): Buckets.of(lag.times)})

    def prepare(self) -> None:
        """Imports what a scrape needs.

        Required in processes that later put the folder of users' code first in the module path: a `gzip.py` there would
        replace Python's.
        """
        if self._sdk is not None:
            self._sdk.registry()

    def use_for_handlers(self) -> None:
        """Exports the handler's own metrics as well. Call it once the handler is constructed; it may set a provider."""
        if self._sdk is not None:
            self._sdk.use_for_handlers()

    def observe_rpcs(self, times: RpcTimes) -> None:
        """Exports the durations of a server's rpcs."""
        self.observe_histogram(
            RPC_SERVER_CALL_DURATION, lambda: {key: Buckets.of(each) for key, each in times.by_status.items()}
        )

    def observe_handshakes(self, server: str, failures: FailedHandshakes) -> None:
        """Exports the failed handshakes of a server; `server` is one of a closed set of names."""
        known, self._handshakes[server] = bool(self._handshakes), failures
        if not known:
            observe_counter(
                self.meter,
                TLS_HANDSHAKE_FAILURES,
                lambda: {
                    (name, problem.value): each.counts[problem]
                    for name, each in self._handshakes.items()
                    for problem in HandshakeProblem
                },
            )

    def observe_spans(self, read_dropped: Callable[[], int]) -> None:
        """Exports the number of dropped spans."""
        observe_counter(self.meter, PROCESS_SPANS_DROPPED, lambda: {(): read_dropped()})

    async def page(self, accept: str) -> tuple[str, bytes]:
        """The page for Prometheus, in the format that `accept` requests: its content type and text."""
        if self._sdk is None:
            return "text/plain; charset=utf-8", b""
        return await asyncio.to_thread(self._sdk.page, accept)

    async def aclose(self) -> None:
        """Pushes a last time if metrics are pushed, and stops."""
        if self._sdk is not None:
            await asyncio.gather(*map(asyncio.to_thread, self._sdk.last_pushes()))
        self.shutdown()

    def shutdown(self) -> None:
        """Stops serving and observing. May be called again."""
        if self._lag is not None:
            self._lag.stop()
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()
        if self._sdk is not None:
            self._sdk.shutdown()
        self._http = self._thread = None


def metrics_target(settings: ServiceSettings) -> OtlpTarget | None:
    """The collector that metrics are pushed to; None: none.

    Raises:
        CannotStart: a variable of OpenTelemetry is invalid.
    """
    try:
        return otlp_target(settings.otlp_endpoint, os.environ, "metrics")
    except ValueError as error:
        raise CannotStart(str(error)) from None


def setup_metrics(
    service_name: str,
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    otlp: OtlpTarget | None = None,
    instance: str = "",
    tls: TlsSource | None = None,
    tokens: TokenVerifier | None = None,
    has_own_page: bool = False,
) -> MetricsServer:
    """Starts the Prometheus endpoint of a service. Port 0: any free port; None or negative: no endpoint.

    `otlp`: the collector that metrics are pushed to, with `instance` as their identity. With `tls` the endpoint uses
    HTTPS, and only viewers get metrics, authenticated by certificate, or by a bearer token of `tokens`. With
    `has_own_page` the caller serves `MetricsServer.page`, whether there is an endpoint or not.

    Raises:
        CannotStart: the port is taken, the host is not one of this machine, or the push exporter is not installed.
    """
    has_page = has_own_page or (port is not None and port >= 0)
    if not has_page and otlp is None:
        return MetricsServer(NoOpMeterProvider().get_meter(_METER))
    sdk = SdkMetrics(service_name, otlp=otlp, instance=instance, has_page=has_page)
    meter = sdk.meter
    if tls is not None:
        observe_certificates(meter, tls)
    if port is None or port < 0:
        return MetricsServer(meter, sdk)
    pages = Pages(sdk.wsgi_page, None if tls is None else PageAccess(tls.trust_domain, tokens))
    try:
        http = make_server(host, port, pages, tls)
    except OSError as error:
        sdk.shutdown()
        raise CannotStart(
            f"{service_name} cannot serve metrics on {join_host_port(host, port)}: {error.strerror or error};"
            " choose another with --metrics-port (0: any free one, -1: none) or --metrics-host"
        ) from error
    metrics = MetricsServer(meter, sdk, http, pages)
    if tls is not None:
        metrics.observe_handshakes("metrics", http.failed_handshakes)
    _log.info("serving metrics", url=f"{'http' if tls is None else 'https'}://{metrics.address}/metrics")
    return metrics
