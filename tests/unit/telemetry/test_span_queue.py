"""Spans of the mesh that wait to leave: as many as are allowed, and what does not leave is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from slotmesh.telemetry.mesh_span import MeshSpan
from slotmesh.telemetry.setup_span_queue import MAX_WAITING_SPANS, BoundedSpans, Queued
from slotmesh.telemetry.tracing import Tracing


class _Slow(SpanExporter):
    """A collector that takes nothing until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may.wait(60)
        assert all(isinstance(each, Queued) for each in spans)
        self.taken += len(spans)
        return SpanExportResult.SUCCESS


def test_what_does_not_fit_is_dropped_and_counted_and_the_rest_leaves() -> None:
    exporter = _Slow()
    spans = BoundedSpans(exporter)
    tracing = Tracing(spans.take, 0, 0, lambda: 0.5)
    for _ in range(MAX_WAITING_SPANS + 100):
        tracing.start("name", None, 1, {}).end(2)
    assert (spans.waiting, spans.dropped) == (MAX_WAITING_SPANS, 100)
    exporter.may.set()
    spans.shutdown()
    assert (exporter.taken, spans.waiting, spans.dropped) == (MAX_WAITING_SPANS, 0, 100)


class _Unreadable:
    """A value of users' code."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_one_that_cannot_be_encoded_is_dropped_and_counted_and_its_batch_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = _Slow()
    exporter.may.set()
    spans = BoundedSpans(exporter)
    tracing = Tracing(spans.take, 0, 0, lambda: 0.5)
    for number in range(10):
        span = tracing.start("name", None, 1, {})
        if number in {3, 7}:
            cast("MeshSpan", span).attributes["app.value"] = cast("Any", _Unreadable())
        span.end(2)
    spans.shutdown()
    assert (exporter.taken, spans.waiting, spans.dropped) == (8, 0, 2)
    assert sum("a span cannot be encoded" in each for each in caplog.messages) == 1


def test_a_batch_of_nothing_that_can_be_encoded_asks_no_collector() -> None:
    exporter = _Slow()  # which would wait
    spans = BoundedSpans(exporter)
    span = Tracing(spans.take, 0, 0, lambda: 0.5).start("name", None, -1, {})
    span.end(2)
    spans.shutdown()
    assert (exporter.taken, spans.waiting, spans.dropped) == (0, 0, 1)
