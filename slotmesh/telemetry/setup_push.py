"""The OpenTelemetry SDK for metrics that are pushed: what Prometheus would scrape, by OTLP over gRPC, now and then.

Invariants: pushed from a thread of its own, so that nothing waits for a collector; of one that does not answer the SDK
tells the log, and it gets the totals of later; the end of the process waits for the last push for a bounded time.
Owner: `slotmesh.telemetry.setup_sdk`.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from slotmesh.config.otlp import OtlpTarget
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.bridge import Bridge
from slotmesh.telemetry.log import get_logger
from slotmesh.telemetry.setup_tracing import EXPORT_TIMEOUT_S, MISSING

LAST_PUSH_S: Final = 2.0
"""How long the end of the process may wait for the collector."""

_log = get_logger(__name__)


class PushingReader(PeriodicExportingMetricReader):
    """Pushes what the SDK has, and a bridge, every 60 s or as `OTEL_METRIC_EXPORT_INTERVAL` says."""

    def __init__(self, target: OtlpTarget, bridge: Bridge) -> None:
        """Starts.

        Raises:
            CannotStart: the exporter is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415 - an extra
                OTLPMetricExporter,
            )
        except ImportError:
            raise CannotStart(f"metrics cannot be sent to {target.url}: {MISSING}") from None
        self._finished = threading.Event()
        exporter = OTLPMetricExporter(endpoint=target.url, insecure=target.insecure, timeout=int(EXPORT_TIMEOUT_S))
        super().__init__(_BridgedExporter(exporter, bridge))
        _log.info("sending metrics", endpoint=target.url)

    def shutdown(self, timeout_millis: float = LAST_PUSH_S * 1000, **kwargs: Any) -> None:
        """Pushes once more, within the time. Not on the event loop, which is asked for values. May be called again."""
        if self._finished.is_set():
            return
        self._finished.set()
        last = threading.Thread(
            target=super().shutdown, args=(timeout_millis,), kwargs=kwargs, name="last metrics", daemon=True
        )
        last.start()
        last.join(timeout_millis / 1000)


class _BridgedExporter(MetricExporter):
    def __init__(self, exporter: MetricExporter, bridge: Bridge) -> None:
        super().__init__()
        self._exporter = exporter
        self._bridge = bridge

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        return self._exporter.export(self._bridge.added_to(metrics_data), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis, **kwargs)
