"""Histograms that the cores keep, put beside those of the SDK at each scrape.

Purpose: recording into the SDK's histogram costs about 6 µs, as much as a whole decision of the router; counting in a
list of integers costs a twentieth of that. OpenTelemetry's specification calls such a source a MetricProducer; the
Python SDK has none, so the reader adds the points itself.
Invariants: cumulative; the points of one scrape are read at one moment. They ride on the SDK's own metrics: where a
service has none with a value, the SDK does not ask for any.
Owner: `slotmesh.telemetry.setup_sdk`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry

from slotmesh.config.otlp import OtlpTarget
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry import names
from slotmesh.telemetry.instruments import Buckets, ReadBuckets
from slotmesh.telemetry.setup_tracing import EXPORT_TIMEOUT_S, MISSING

_SCOPE = InstrumentationScope("slotmesh.bridge")


class Bridge:
    """Histograms that are read and not written."""

    def __init__(self, sources: Sequence[tuple[names.Metric, ReadBuckets]], started_ns: int) -> None:
        """`sources` may grow; they are called from the thread of the scrape. `started_ns`: since when they count."""
        self._sources = sources
        self._started_ns = started_ns

    def added_to(self, metrics_data: MetricsData) -> MetricsData:
        """What the SDK has collected, and these."""
        if not self._sources or not metrics_data.resource_metrics:
            return metrics_data
        first, *others = metrics_data.resource_metrics
        mine = ScopeMetrics(scope=_SCOPE, metrics=self._read_sources(), schema_url="")
        bridged = replace(first, scope_metrics=[*first.scope_metrics, mine])
        return replace(metrics_data, resource_metrics=[bridged, *others])

    def _read_sources(self) -> list[Metric]:
        now_ns = time.time_ns()
        return [
            Metric(
                name=metric.name,
                description=metric.description,
                unit=metric.unit,
                data=Histogram(
                    data_points=[
                        self._point(dict(zip(metric.attributes, labels, strict=True)), buckets, now_ns)
                        for labels, buckets in read().items()
                    ],
                    aggregation_temporality=AggregationTemporality.CUMULATIVE,
                ),
            )
            for metric, read in self._sources
        ]

    def _point(self, attributes: dict[str, str], buckets: Buckets, now_ns: int) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._started_ns,
            time_unix_nano=now_ns,
            count=sum(buckets.counts),
            sum=buckets.total,
            bucket_counts=list(buckets.counts),
            explicit_bounds=list(buckets.bounds),
            # Not kept: the text format has no place for them.
            min=float("-inf"),
            max=float("inf"),
        )


class BridgedReader(PrometheusMetricReader):
    """The Prometheus reader, with those of a bridge."""

    def __init__(self, registry: CollectorRegistry, bridge: Bridge) -> None:
        super().__init__(registry=registry, scope_info_enabled=False)
        self._bridge = bridge

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        super()._receive_metrics(self._bridge.added_to(metrics_data), timeout_millis, **kwargs)


# The OpenTelemetry SDK for metrics that are pushed: what Prometheus would scrape, by OTLP over gRPC, now and then.
#
# Invariants: pushed from a thread of its own, so that nothing waits for a collector; of one that does not answer the
# SDK
# tells the log, and it gets the totals of later; the end of the process waits for the last push for a bounded time.
# Owner: `slotmesh.telemetry.setup_sdk`.

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
