"""Metric readers that add the cores' own histograms to the SDK's metrics, for scrapes and for pushes by OTLP.

Purpose: recording into the SDK's histogram takes about 6 µs, as long as a whole decision of the router; counting in a
list of integers takes a twentieth of that. OpenTelemetry specifies a MetricProducer for this; the Python SDK has none,
so that the readers add the points.
Invariants: points are cumulative, and those of one scrape are read together. They are exported only if the service has
any SDK metric with a value, as otherwise the SDK does not call the exporter. Pushes run in a separate thread; outages
are logged, and the next push has the newer totals. The first push is early: it shows whether the collector responds.
The end of the process waits for the last push for a bounded time.
Owner: `slotmesh.telemetry.setup_sdk`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
from prometheus_client import Metric as Family

from slotmesh.config.otlp import OtlpTarget
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry import names
from slotmesh.telemetry.exports import LAST_S, Exports, keep_attempts_quiet
from slotmesh.telemetry.instruments import Buckets, ReadBuckets
from slotmesh.telemetry.setup_tracing import EXPORT_TIMEOUT_S, MISSING

_SCOPE = InstrumentationScope("slotmesh.bridge")


class Bridge:
    """The cores' histograms, in the SDK's form."""

    def __init__(self, sources: Sequence[tuple[names.Metric, ReadBuckets]], started_ns: int) -> None:
        """`sources` may grow; they are called in the scraping thread. `started_ns`: the start of counting."""
        self._sources = sources
        self._started_ns = started_ns
        self.more: Callable[[MetricsData], MetricsData] = lambda it: it
        """Adds other metrics."""

    def added_to(self, metrics_data: MetricsData) -> MetricsData:
        """The SDK's metrics, with these added."""
        metrics_data = self.more(metrics_data)
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
            # Not counted: the text format does not have them.
            min=float("-inf"),
            max=float("inf"),
        )


class PageRegistry(CollectorRegistry):
    """The metrics of a page: slotmesh's own, and others after them."""

    beside: Callable[[Collection[Family]], Iterable[Family]] | None = None
    """Given slotmesh's own, the others."""

    def collect(self) -> Iterator[Family]:
        own = [*super().collect()]
        yield from own
        if self.beside is not None:
            yield from self.beside(own)


class BridgedReader(PrometheusMetricReader):
    """The Prometheus reader, with a bridge's histograms added."""

    def __init__(self, registry: CollectorRegistry, bridge: Bridge) -> None:
        super().__init__(registry=registry, scope_info_enabled=False)
        self._bridge = bridge

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        super()._receive_metrics(self._bridge.added_to(metrics_data), timeout_millis, **kwargs)


FIRST_PUSH_S: Final = 1.0
"""When to push first, after the start."""

_log = get_logger(__name__)


class PushingReader(PeriodicExportingMetricReader):
    """Pushes the SDK's metrics and a bridge's histograms, every 60 s or `OTEL_METRIC_EXPORT_INTERVAL`."""

    def __init__(self, target: OtlpTarget, bridge: Bridge, exports: Exports) -> None:
        """Starts pushing. `exports`: counts how that goes, together with other readers.

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
        self._process = os.getpid()
        exporter = OTLPMetricExporter(endpoint=target.url, insecure=target.insecure, timeout=int(EXPORT_TIMEOUT_S))
        self._exports = exports
        keep_attempts_quiet()
        super().__init__(_BridgedExporter(exporter, bridge, exports))
        _log.info("sending metrics", endpoint=target.url)

    def _ticker(self) -> None:
        """Pushes. The SDK runs it in forked children, whose connection to the collector is that of their parent."""
        if os.getpid() == self._process:
            if not self._shutdown_event.wait(min(FIRST_PUSH_S, self._export_interval_millis / 1e3)):
                with suppress(Exception):  # reading values took too long; the next push is due soon
                    self.collect()
            super()._ticker()

    def shutdown(self, timeout_millis: float = LAST_S * 1000, **kwargs: Any) -> None:
        """Pushes a last time, within `LAST_S`. Must not run on the event loop, which it reads values from.

        May be called again.
        """
        if self._finished.is_set():
            return
        self._finished.set()
        self._exports.finish(partial(super().shutdown, timeout_millis, **kwargs))


class _BridgedExporter(MetricExporter):
    def __init__(self, exporter: MetricExporter, bridge: Bridge, exports: Exports) -> None:
        super().__init__()
        self._exports = exports
        self._exporter = exporter
        self._bridge = bridge

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        metrics_data = self._bridge.added_to(metrics_data)
        with self._exports.running(self) as run:
            result = self._exporter.export(metrics_data, timeout_millis, **kwargs)
            run.is_taken = result is MetricExportResult.SUCCESS
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis, **kwargs)
