"""The bounded queue of ended spans, exported in batches by a separate thread.

Invariants: spans that do not fit, are not accepted by the collector, or cannot be encoded are dropped and counted: no
code waits for a collector, and an invalid span does not drop its batch.
Owner: `setup_tracing`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, cast

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from slotmesh.logs import get_logger
from slotmesh.telemetry.mesh_span import MeshSpan
from slotmesh.telemetry.otlp_spans import scope_span

MAX_WAITING_SPANS: Final = 8192
MAX_BATCH_SPANS: Final = 512
EVERY_S: Final = 5.0
"""The longest time that a span waits for its batch, in seconds."""

_log = get_logger(__name__)


class Queued:
    """Wraps a span of the mesh for the SDK's batch processor, which only checks whether it is sampled."""

    __slots__ = ("encoded", "span")

    context: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, span: MeshSpan) -> None:
        self.span = span
        self.encoded = b""
        """The field `spans` of `ScopeSpans`, set just before the export."""

    def encode(self) -> Exception | None:
        """Encodes the span. Returns the error, or None."""
        try:
            self.encoded = scope_span(self.span)
        except Exception as error:  # noqa: BLE001 - of values of users' code, which may raise anything as they are read
            return error
        return None


class BoundedSpans(SpanProcessor):
    """A queue in front of an exporter, limited to `MAX_WAITING_SPANS`."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._lock = threading.Lock()
        self._warned = False
        self._reported_unsound = False
        self.waiting = 0
        """Ended spans that are not exported yet."""
        self.dropped = 0
        self._batches = BatchSpanProcessor(
            _CountingExporter(exporter, self),
            max_queue_size=MAX_WAITING_SPANS,
            schedule_delay_millis=EVERY_S * 1000,
            max_export_batch_size=MAX_BATCH_SPANS,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Called at the start of a user's span."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queues an ended span of users' code, in any thread."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self.waiting >= MAX_WAITING_SPANS:
                self.dropped += 1
                return
            self.waiting += 1
        self._batches.on_end(span)

    def take(self, span: MeshSpan) -> None:
        """Queues an ended span of the mesh, in any thread."""
        with self._lock:
            if self.waiting >= MAX_WAITING_SPANS:
                self.dropped += 1
                return
            self.waiting += 1
        self._batches.on_end(cast("ReadableSpan", Queued(span)))

    def left(self, count: int, *, are_taken: bool) -> None:
        """Counts exported spans, and those that the collector did not accept."""
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

    def unsound(self, error: Exception) -> None:
        """Counts a span that cannot be encoded. The first one is logged."""
        with self._lock:
            self.waiting -= 1
            self.dropped += 1
            is_reported, self._reported_unsound = self._reported_unsound, True
        if not is_reported:
            _log.warning("a span cannot be encoded, and is dropped, as are others like it", error=type(error).__name__)

    def shutdown(self) -> None:
        """Exports the queued spans, without a time limit."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Exports the queued spans."""
        return self._batches.force_flush(timeout_millis)


class _CountingExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, spans: BoundedSpans) -> None:
        self._exporter = exporter
        self._spans = spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        sound: list[ReadableSpan] = []
        for each in spans:
            if isinstance(each, Queued) and (error := each.encode()) is not None:
                self._spans.unsound(error)
            else:
                sound.append(each)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(sound) if sound else SpanExportResult.SUCCESS
        finally:
            self._spans.left(len(sound), are_taken=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
