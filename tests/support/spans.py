"""Spans that have ended, in place of the queue of those that leave."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanContext

from slotmesh.telemetry.tracing import Tracing


class KeptSpans(SpanProcessor):
    """Of a provider of its own."""

    def __init__(self) -> None:
        self.ended: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def tracing(self, ratio: float = 0.0, rate: float = 0.0, chance: float = 0.5) -> Tracing:
        """Makes spans that end here."""
        return tracing_to(self, ratio, rate, chance)


def tracing_to(spans: SpanProcessor, ratio: float = 0.0, rate: float = 0.0, chance: float = 0.5) -> Tracing:
    """Makes spans that this processor gets."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)
    return Tracing(provider.get_tracer("slotmesh"), ratio, rate, lambda: chance)


def context_of_span(span: ReadableSpan) -> SpanContext:
    context: SpanContext | None = span.context
    assert context is not None
    return context


def ids_of_span(span: ReadableSpan) -> tuple[str, str]:
    """Of its trace and its own, as on the wire."""
    context = context_of_span(span)
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def parent_of_span(span: ReadableSpan) -> str:
    """The parent's id, as on the wire; empty if a trace begins with this span."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def error_of(span: ReadableSpan) -> str | None:
    """The description of its error; None: it has not failed."""
    return None if span.status.is_unset or span.status.is_ok else span.status.description
