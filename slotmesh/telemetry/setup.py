"""The one place that chooses and configures the OpenTelemetry SDK: metrics for Prometheus to scrape.

Purpose: all other code uses OpenTelemetry's API, through the `meter` it is given.
Invariants: nothing global: two servers in one process do not mix; off without a port, at no cost; after `shutdown` no
thread and no socket is left.
Owner: the service's app.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, make_wsgi_app

from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.bridge import BridgedReader
from slotmesh.telemetry.instruments import ReadBuckets, on_this_loop
from slotmesh.telemetry.log import get_logger
from slotmesh.telemetry.names import SERVICE_NAME, Metric
from slotmesh.units import join_host_port

_METER = "slotmesh"
_POLL_S = 0.1
"""How soon the endpoint notices that it shall stop, seconds."""

_log = get_logger(__name__)


class MetricsServer:
    """Metrics of one service, served at `http://ADDRESS/metrics`."""

    def __init__(
        self,
        meter: Meter,
        reader: BridgedReader | None = None,
        provider: MeterProvider | None = None,
        http: WSGIServer | None = None,
    ) -> None:
        self.meter = meter
        """For the code that registers instruments."""
        self._reader = reader
        self._provider = provider
        self._http = http
        self._thread: threading.Thread | None = None
        if http is not None:
            self._thread = threading.Thread(target=http.serve_forever, args=(_POLL_S,), name="metrics", daemon=True)
            self._thread.start()

    @property
    def address(self) -> str | None:
        """`HOST:PORT` of the endpoint; None where metrics are off."""
        return None if self._http is None else join_host_port(self._http.server_name, self._http.server_port)

    def observe_histogram(self, metric: Metric, read: ReadBuckets) -> None:
        """Exports histograms that the caller keeps; `read` runs on the event loop that runs now."""
        if self._reader is not None:
            self._reader.observe_histogram(metric, on_this_loop(read))

    def shutdown(self) -> None:
        """Stops serving and observing. May be called again."""
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()
        if self._provider is not None:
            self._provider.shutdown()
        self._provider = self._http = self._thread = None


def setup_metrics(service_name: str, host: str = "127.0.0.1", port: int | None = None) -> MetricsServer:
    """Starts the Prometheus endpoint of a service; port 0 takes a free one, None or a negative one turns metrics off.

    Raises:
        CannotStart: the port is taken, or the host is not one of this machine.
    """
    if port is None or port < 0:
        return MetricsServer(NoOpMeterProvider().get_meter(_METER))
    registry = CollectorRegistry()
    reader = BridgedReader(registry)
    provider = MeterProvider([reader], Resource({SERVICE_NAME: service_name}), shutdown_on_exit=False)
    server_class = _Ipv6HttpServer if ":" in host else _HttpServer
    try:
        http = make_server(host, port, make_wsgi_app(registry), server_class, _QuietHandler)
    except OSError as error:
        provider.shutdown()
        raise CannotStart(
            f"{service_name} cannot serve metrics on {join_host_port(host, port)}: {error.strerror or error};"
            " choose another with --metrics-port (0: any free one, -1: none) or --metrics-host"
        ) from error
    metrics = MetricsServer(provider.get_meter(_METER), reader, provider, http)
    _log.info("serving metrics", url=f"http://{metrics.address}/metrics")
    return metrics


class _HttpServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # The inherited way asks the name service for the host's full name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Ipv6HttpServer(_HttpServer):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - inherited
        """A scrape is nothing to talk about."""
