"""Spans that wait to leave: as many as are allowed, and what does not leave is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slotmesh.telemetry.setup_span_queue import MAX_WAITING_SPANS, BoundedSpans
from tests.support.spans import tracing_to


class _Slow(SpanExporter):
    """A collector that takes nothing until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.taken: list[str] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encoded = encode_spans(spans)
        assert self.may.wait(60)
        self.taken += [span.name for span in encoded.resource_spans[0].scope_spans[0].spans]
        return SpanExportResult.SUCCESS


def test_what_does_not_fit_is_dropped_and_counted_and_the_rest_leaves() -> None:
    exporter = _Slow()
    spans = BoundedSpans(exporter)
    tracing = tracing_to(spans)
    for number in range(MAX_WAITING_SPANS + 100):
        tracing.note(str(number), None, 1, 2)
    assert (spans.waiting, spans.dropped) == (MAX_WAITING_SPANS, 100)
    exporter.may.set()
    spans.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK
    assert exporter.taken == [str(number) for number in range(MAX_WAITING_SPANS)], "the first ones, in their order"
    assert (spans.waiting, spans.dropped) == (0, 100)


def test_one_that_cannot_be_encoded_is_dropped_and_counted_and_its_batch_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = _Slow()
    exporter.may.set()
    spans = BoundedSpans(exporter)
    tracing = tracing_to(spans)
    for number in range(10):
        span = tracing.start(str(number), None, 1, {})
        if number in {3, 7}:
            span.update_name("\ud800")
        span.end(2)
    spans.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK
    assert (exporter.taken, spans.waiting, spans.dropped) == ([*"01245689"], 0, 2)
    assert sum("a span cannot be encoded" in each for each in caplog.messages) == 1


def test_a_batch_of_nothing_that_can_be_encoded_asks_no_collector() -> None:
    exporter = _Slow()  # which would wait
    spans = BoundedSpans(exporter)
    tracing_to(spans).start("name", None, -1, {}).end(2)
    spans.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK
    assert (exporter.taken, spans.waiting, spans.dropped) == ([], 0, 1)


class _Interrupted(int):
    """A number at whose first comparison another span ends, as by a signal handler or a finalizer."""

    interrupt: Callable[[], object] | None = None

    def __ge__(self, other: int) -> bool:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        return int(self) >= other


def test_a_span_may_end_while_its_thread_ends_another() -> None:
    exporter = _Slow()
    exporter.may.set()
    spans = BoundedSpans(exporter)
    tracing = tracing_to(spans)
    spans.waiting = number = _Interrupted()
    number.interrupt = lambda: tracing.note("inner", None, 1, 2)
    thread = threading.Thread(target=lambda: tracing.note("outer", None, 1, 2), daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert not thread.is_alive()
    spans.shutdown()  # type: ignore[no-untyped-call]  # untyped in the SDK
    assert (sorted(exporter.taken), spans.waiting, spans.dropped) == (["inner", "outer"], 0, 0)
