"""The SDK's batch processor of spans, with counts of what waits and of what was dropped.

Invariants: spans that do not fit, are not accepted by the collector, or cannot be encoded are dropped and counted: no
code waits for a collector, and an invalid span does not drop its batch. A forked child exports nothing: it shares the
connection to the collector with its parent, and what it wrote there would break it.
Owner: `setup_tracing`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from slotmesh.logs import get_logger
from slotmesh.telemetry.exports import Exports, keep_attempts_quiet

MAX_WAITING_SPANS: Final = 8192
MAX_BATCH_SPANS: Final = 512
EVERY_S: Final = 5.0
"""The longest time that a span waits for its batch, in seconds."""

_log = get_logger(__name__)


class BoundedSpans(BatchSpanProcessor):
    """A queue in front of an exporter, limited to `MAX_WAITING_SPANS`, those being exported included.

    The SDK's own bound drops the oldest spans, logs a line for each, and counts them in metrics of the SDK alone.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._lock = threading.RLock()
        """Reentrant: a signal handler or a finalizer may end a span while its thread holds it."""
        self._process = os.getpid()
        self._reported_unsound = False
        self.waiting = 0
        """Ended spans that are not exported yet."""
        self.exports = Exports("traces")
        keep_attempts_quiet()
        super().__init__(
            _CountingExporter(exporter, self),
            max_queue_size=MAX_WAITING_SPANS,
            schedule_delay_millis=EVERY_S * 1000,
            max_export_batch_size=MAX_BATCH_SPANS,
        )

    @property
    def dropped(self) -> int:
        """Spans that were not exported."""
        return self.exports.dropped

    def on_end(self, span: ReadableSpan) -> None:
        """Queues an ended span, in any thread."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if os.getpid() != self._process:  # before the lock, which another thread may have held at the fork
            return
        with self._lock:
            if self.waiting >= MAX_WAITING_SPANS:
                self.exports.drop(1)
                return
            self.waiting += 1
        super().on_end(span)

    def left(self, count: int) -> None:
        """These spans wait no longer: they were exported, or dropped."""
        with self._lock:
            self.waiting -= count

    def unsound(self, error: Exception) -> None:
        """Counts a span that cannot be encoded. The first one is logged."""
        with self._lock:
            self.waiting -= 1
            self.exports.drop(1)
            is_reported, self._reported_unsound = self._reported_unsound, True
        if not is_reported:
            _log.warning("a span cannot be encoded, and is dropped, as are others like it", error=type(error).__name__)


class _CountingExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, spans: BoundedSpans) -> None:
        self._exporter = exporter
        self._spans = spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Exports them; a batch that raises by halves, so that only spans that cannot be encoded are dropped."""
        try:
            with self._spans.exports.running(dropped=len(spans)) as run:
                result = self._exporter.export(spans)
                run.is_taken = result is SpanExportResult.SUCCESS
                self._spans.left(len(spans))
        except Exception as error:  # noqa: BLE001 - of values of users' code, which may raise anything as they are read
            if len(spans) > 1:
                half = len(spans) // 2
                self.export(spans[:half])
                self.export(spans[half:])
            else:
                self._spans.unsound(error)
            return SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
