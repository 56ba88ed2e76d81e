"""The OpenTelemetry SDK for traces: spans leave in batches, by OTLP over gRPC, from a thread of their own.

Purpose: all other code makes spans by OpenTelemetry's API, through the `Tracing` it is given.
Invariants: off without an endpoint, at no cost; what waits to leave is bounded, and what does not fit is dropped and
counted: nothing waits for a collector; the end of the process waits for the last spans for a bounded time.
Owner: the service's app.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased

from slotmesh.config import ServiceSettings
from slotmesh.config.otlp import otlp_target, tracing_ratio
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry.log import get_logger
from slotmesh.telemetry.names import SERVICE_NAME
from slotmesh.telemetry.tracing import Tracing
from slotmesh.version import VERSION

MAX_WAITING_SPANS: Final = 8192
MAX_BATCH_SPANS: Final = 512
MAX_ATTRIBUTE_CHARS: Final = 1024
EVERY_S: Final = 5.0
"""How long a span waits for others to leave with it."""
EXPORT_TIMEOUT_S: Final = 10.0
LAST_SPANS_S: Final = 2.0
"""How long the end of the process may wait for the collector."""
MISSING: Final = "opentelemetry-exporter-otlp-proto-grpc is not installed: pip install 'slotmesh[otlp]'"

_log = get_logger(__name__)


class TracingSetup:
    """Traces of one service, or none."""

    def __init__(
        self,
        provider: TracerProvider | None = None,
        spans: BoundedSpans | None = None,
        ratio: float = 0.0,
        rate: float = 0.0,
    ) -> None:
        self._provider = provider
        self._spans = spans
        self.tracing: Tracing | None = None
        """None where traces are off."""
        if provider is not None:
            self.tracing = Tracing(provider.get_tracer("slotmesh", VERSION), ratio, rate, random.random)

    @property
    def dropped(self) -> int:
        """Spans that did not leave: too many waited, or the collector did not take them."""
        return self._spans.dropped if self._spans is not None else 0

    def use_for_handlers(self) -> None:
        """Spans that users' code makes in this process go the same way, unless it has chosen another one before."""
        if self._provider is not None:
            trace.set_tracer_provider(self._provider)

    async def aclose(self) -> None:
        """As `shutdown`, without holding up the event loop."""
        if self._provider is not None:
            await asyncio.to_thread(self.shutdown)

    def shutdown(self) -> None:
        """Sends the last spans, within `LAST_SPANS_S`. May be called again."""
        provider, self._provider = self._provider, None
        if provider is None:
            return
        # The SDK waits for half a minute, and an export that is under way for ten seconds: not longer than is useful.
        last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_SPANS_S)
        if self._spans is not None and (left_out := self._spans.dropped + self._spans.waiting):
            _log.warning("spans were not sent", spans=left_out)


def setup_tracing(
    service_name: str, settings: ServiceSettings, attributes: Mapping[str, str], *, samples_roots: bool = False
) -> TracingSetup:
    """Starts to send traces where the settings, or OpenTelemetry's variables, name an OTLP endpoint.

    `attributes` are those of the process. `samples_roots`: whether spans without a parent are drawn here, one by one;
    else whoever makes one has drawn it.

    Raises:
        CannotStart: the exporter is not installed, or a variable of OpenTelemetry is not sound.
    """
    try:
        target = otlp_target(settings.otlp_endpoint, os.environ, "traces")
        ratio = tracing_ratio(settings.tracing_ratio, os.environ)
    except ValueError as error:
        raise CannotStart(f"{service_name}: {error}") from None
    if target is None or ratio is None:
        return TracingSetup()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    except ImportError:
        raise CannotStart(f"{service_name} cannot send traces to {target.url}: {MISSING}") from None
    exporter = OTLPSpanExporter(endpoint=target.url, insecure=target.insecure, timeout=EXPORT_TIMEOUT_S)
    spans = BoundedSpans(exporter)
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio) if samples_roots else ALWAYS_ON),
        resource=Resource.create({SERVICE_NAME: service_name, **attributes}),
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_attribute_length=MAX_ATTRIBUTE_CHARS),
    )
    provider.add_span_processor(spans)
    _log.info("sending traces", endpoint=target.url, ratio=ratio)
    return TracingSetup(provider, spans, ratio, settings.tracing_rate)


class BoundedSpans(SpanProcessor):
    """Batches of spans for an exporter, of which at most `MAX_WAITING_SPANS` wait."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._lock = threading.Lock()
        self._warned = False
        self.waiting = 0
        """Spans that have ended and are not sent."""
        self.dropped = 0
        self._batches = BatchSpanProcessor(
            _CountingExporter(exporter, self),
            max_queue_size=MAX_WAITING_SPANS,
            schedule_delay_millis=EVERY_S * 1000,
            max_export_batch_size=MAX_BATCH_SPANS,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """A span has begun."""

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended, in any thread."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self.waiting >= MAX_WAITING_SPANS:
                self.dropped += 1
                return
            self.waiting += 1
        self._batches.on_end(span)

    def left(self, count: int, *, are_taken: bool) -> None:
        """The collector has taken so many spans, or not."""
        with self._lock:
            self.waiting -= count
            if are_taken:
                self._warned = False
                return
            self.dropped += count
            if self._warned:
                return
            self._warned = True
        _log.warning("the collector does not take traces; spans are dropped until it does", spans=count)

    def shutdown(self) -> None:
        """Sends what waits, for as long as that takes."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # the SDK says nothing of it

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Sends what waits."""
        return self._batches.force_flush(timeout_millis)


class _CountingExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, spans: BoundedSpans) -> None:
        self._exporter = exporter
        self._spans = spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._spans.left(len(spans), are_taken=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
