"""Spans that wait to leave: in batches, from a thread of their own.

Invariants: what waits is bounded, and what does not fit, is not taken, or cannot be encoded, is dropped and counted:
nothing waits for a collector, and no span takes its batch with it.
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
"""How long a span waits for others to leave with it."""

_log = get_logger(__name__)


class Queued:
    """A span of the mesh among the SDK's: all that its batches look at is whether one is sampled."""

    __slots__ = ("encoded", "span")

    context: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, span: MeshSpan) -> None:
        self.span = span
        self.encoded = b""
        """The field `spans` of `ScopeSpans`, once it is about to leave."""

    def encode(self) -> Exception | None:
        """Why it could not be, or None."""
        try:
            self.encoded = scope_span(self.span)
        except Exception as error:  # noqa: BLE001 - of values of users' code, which may raise anything as they are read
            return error
        return None


class BoundedSpans(SpanProcessor):
    """Batches of spans for an exporter, of which at most `MAX_WAITING_SPANS` wait."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._lock = threading.Lock()
        self._warned = False
        self._told_unsound = False
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

    def take(self, span: MeshSpan) -> None:
        """A span of the mesh has ended, in any thread."""
        with self._lock:
            if self.waiting >= MAX_WAITING_SPANS:
                self.dropped += 1
                return
            self.waiting += 1
        self._batches.on_end(cast("ReadableSpan", Queued(span)))

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

    def unsound(self, error: Exception) -> None:
        """A span cannot be encoded. The first one is told in the log."""
        with self._lock:
            self.waiting -= 1
            self.dropped += 1
            is_told, self._told_unsound = self._told_unsound, True
        if not is_told:
            _log.warning("a span cannot be encoded, and is dropped, as are others like it", error=type(error).__name__)

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
