"""The mesh's own spans: parents of users' spans, in the trace of their callers, and with texts of bounded length."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from slotmesh.calls.trace_context import TraceContext
from slotmesh.config import ServiceSettings
from slotmesh.telemetry.setup_span_queue import BoundedSpans
from slotmesh.telemetry.setup_tracing import setup_tracing
from slotmesh.telemetry.tracing import MAX_TEXT_CHARS, trace_context_of
from tests.support.spans import KeptSpans, context_of_span, ids_of_span, parent_of_span

PARENT = TraceContext("00-" + "a" * 32 + "-" + "1" * 16 + "-01", "vendor=7")


def test_a_users_span_is_its_child_and_goes_on_with_its_trace() -> None:
    exporter, kept = InMemorySpanExporter(), KeptSpans()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    mine = kept.tracing().start("mine", PARENT, 1, {})
    with trace.use_span(mine, end_on_exit=True), provider.get_tracer("app").start_as_current_span("users"):
        trace.get_current_span().set_attribute("users", 1)
    (users,), (ended,) = exporter.get_finished_spans(), kept.ended
    assert (ids_of_span(users)[0], parent_of_span(users)) == ids_of_span(ended)
    assert ids_of_span(users)[0] == "a" * 32
    assert context_of_span(users).trace_flags.sampled
    assert context_of_span(users).trace_state.to_header() == "vendor=7"
    provider.shutdown()


def test_each_is_in_the_trace_of_its_parent_with_the_times_that_it_is_given() -> None:
    kept = KeptSpans()
    tracing = kept.tracing()
    route = tracing.start("route", PARENT, 1, {"number": -7, "flag": True}, SpanKind.SERVER)
    queue = tracing.note("queue", route, 5, 3, links=[route])
    route.end(7)
    root = tracing.note("root", None, 1, 2)
    assert trace_context_of(route).tracestate == trace_context_of(queue).tracestate == "vendor=7"
    child, parent, alone = kept.ended
    assert trace_context_of(route).traceparent == f"00-{'a' * 32}-{ids_of_span(parent)[1]}-01"
    assert (ids_of_span(child)[0], parent_of_span(child)) == ids_of_span(parent)
    assert parent.parent is not None
    assert (parent_of_span(parent), parent.parent.is_remote, parent.kind) == ("1" * 16, True, SpanKind.SERVER)
    assert dict(parent.attributes or {}) == {"number": -7, "flag": True}
    assert [(each.start_time, each.end_time) for each in kept.ended] == [(5, 5), (1, 7), (1, 2)]
    assert [each.context for each in child.links] == [route.get_span_context()]
    assert ids_of_span(alone)[0] == trace_context_of(root).traceparent[3:35] != "a" * 32
    assert context_of_span(alone).trace_flags.sampled


def test_nothing_is_kept_where_the_parent_is_not_sampled_and_no_state_that_is_not_sound() -> None:
    kept = KeptSpans()
    tracing = kept.tracing()
    span = tracing.start("name", TraceContext(PARENT.traceparent[:-2] + "00"), 1, {})
    assert not span.is_recording()
    assert trace_context_of(span).traceparent == PARENT.traceparent[:-2] + "00"
    tracing.note("child", span, 1, 2).end()
    assert not kept.ended
    assert trace_context_of(tracing.start("odd", PARENT._replace(tracestate="garbage"), 1, {})).tracestate == ""


def test_spans_of_a_process_are_bounded_and_belong_to_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[ReadableSpan] = []
    monkeypatch.setattr(BoundedSpans, "on_end", lambda _, span: ended.append(span))
    settings = ServiceSettings(otlp_endpoint="http://127.0.0.1:9", tracing_ratio=1.0)
    setup = setup_tracing("router", settings, {"service.instance.id": "router-1"})
    assert setup.tracing is not None
    long = "é" * 60_000
    setup.tracing.note(long, None, 1, 2, {"method": long, "short": "s", "number": 7})
    assert not any("truncating" in each for each in caplog.messages), "callers choose texts: no line for each"
    full = setup.tracing.start("full", None, 1, {})
    for number in range(200):
        full.set_attribute(f"key-{number}", long if number > 198 else number)
        full.add_event("event", {"text": long if number > 198 else number})
    full.end(2)
    setup.shutdown()
    mine, theirs = ended
    assert (mine.name, mine.attributes) == (
        long[:MAX_TEXT_CHARS],
        {"method": long[:MAX_TEXT_CHARS], "short": "s", "number": 7},
    )
    assert theirs.attributes is not None
    assert (len(theirs.attributes), theirs.dropped_attributes) == (128, 72)
    assert (len(theirs.events), theirs.dropped_events) == (128, 72)
    assert theirs.attributes["key-199"] == long[:MAX_TEXT_CHARS]
    assert (theirs.events[-1].attributes or {})["text"] == long[:MAX_TEXT_CHARS]
    facts = mine.resource.attributes
    assert (facts["service.name"], facts["service.instance.id"]) == ("router", "router-1")
    assert mine.instrumentation_scope is not None
    assert mine.instrumentation_scope.name == "slotmesh"


def test_processors_that_users_add_get_their_own_spans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    provided: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", provided.append)
    monkeypatch.setattr(BoundedSpans, "on_end", SpanProcessor.on_end)  # nothing leaves
    setup = setup_tracing("replica", ServiceSettings(otlp_endpoint="http://127.0.0.1:9", tracing_ratio=0.0), {})
    setup.use_for_handlers()
    assert setup.tracing is not None
    kept = KeptSpans()
    provided[0].add_span_processor(kept)
    mine = setup.tracing.start("handler", PARENT, 1, {})
    with trace.use_span(mine, end_on_exit=True), provided[0].get_tracer("app").start_as_current_span("users"):
        pass
    assert [each.name for each in kept.ended] == ["users"]
    setup.shutdown()
