"""The mesh's own spans say in OTLP what the SDK's encoder would have said of the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceState

from slotmesh.calls.trace_context import TraceContext
from slotmesh.config import ServiceSettings
from slotmesh.runtime.exits import CannotStart
from slotmesh.telemetry import otlp_spans
from slotmesh.telemetry.mesh_span import MAX_ATTRIBUTE_CHARS, MeshSpan
from slotmesh.telemetry.otlp_spans import scope_spans
from slotmesh.telemetry.setup_span_exporter import OVERRIDDEN, SCOPE, MeshSpanExporter
from slotmesh.telemetry.setup_span_queue import Queued
from slotmesh.telemetry.setup_tracing import setup_tracing
from slotmesh.telemetry.tracing import Tracing
from tests.support.examples import examples

PARENT = TraceContext("00-" + "a" * 32 + "-" + "1" * 16 + "-01", "vendor=7,other=x y")
RESOURCE = Resource({"service.name": "test", "service.instance.id": "i"})
EXPORTER = MeshSpanExporter(RESOURCE, endpoint="http://127.0.0.1:9", insecure=True, timeout=1.0)

texts = st.text(max_size=40)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary() | texts
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts.filter(bool), inner, max_size=3)
)
attributes = st.dictionaries(texts.filter(bool), values, max_size=5)
times = st.integers(1, 2**63)
faults = texts | st.none()


def sent(*spans: Any) -> Any:
    assert all(each.encode() is None for each in spans if isinstance(each, Queued))
    return EXPORTER._translate_data(spans)  # what leaves, without a collector


def as_of_the_sdk(span: MeshSpan, parent: SpanContext | None, said: Mapping[str, Any], **others: Any) -> ReadableSpan:
    return ReadableSpan(
        span.name,
        span.get_span_context(),
        parent,
        RESOURCE,
        BoundedAttributes(None, said),
        instrumentation_scope=SCOPE,
        kind=span.kind,
        start_time=span.started_ns,
        end_time=span.ended_ns,
        **others,
    )


@settings(max_examples=examples(200), deadline=None)
@given(texts, st.sampled_from(SpanKind), attributes, attributes, st.tuples(times, times), st.booleans(), faults)
def test_it_is_read_as_the_sdks(
    name: str,
    kind: SpanKind,
    at_start: dict[str, Any],
    later: dict[str, Any],
    times_ns: tuple[int, int],
    is_root: bool,
    error: str | None,
) -> None:
    started_ns, ended_ns = times_ns
    taken: list[MeshSpan] = []
    tracing = Tracing(taken.append, 0, 0, lambda: 0.5)
    other = tracing.start("other", None, 1, {})
    span = tracing.start(name, None if is_root else PARENT, started_ns, at_start, kind, [other])
    span.set_attributes(later)
    span.add_event("event", later, started_ns)
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(ended_ns)
    assert taken == [span]
    assert isinstance(span, MeshSpan)
    parent = None
    if not is_root:
        state = TraceState.from_header([PARENT.tracestate])
        parent = SpanContext(int("a" * 32, 16), int("1" * 16, 16), is_remote=True, trace_state=state)
    expected = as_of_the_sdk(
        span,
        parent,
        at_start | later,
        events=[Event("event", BoundedAttributes(None, later), started_ns)],
        links=[Link(other.get_span_context())],
        status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
    )
    (of_resource,) = sent(Queued(span)).resource_spans
    (of_sdk,) = sent(expected).resource_spans
    if error is None:  # the SDK says that nothing is said
        of_sdk.scope_spans[0].spans[0].ClearField("status")
    of_sdk_span, of_mesh = of_sdk.scope_spans[0].spans[0], of_resource.scope_spans[0].spans[0]
    for each in (of_sdk_span, of_mesh):  # one that is said again has moved in the SDK's order
        each.attributes.sort(key=lambda pair: pair.key)
    assert of_resource == of_sdk


def test_a_child_in_one_process() -> None:
    taken: list[MeshSpan] = []
    tracing = Tracing(taken.append, 0, 0, lambda: 0.5)
    parent = tracing.start("parent", PARENT, 1, {})
    child = tracing.note("child", parent, 2, 3, {"number": -7, "flag": True})
    assert isinstance(child, MeshSpan)
    expected = as_of_the_sdk(child, parent.get_span_context(), {"number": -7, "flag": True})
    read = sent(Queued(child)).resource_spans[0].scope_spans[0].spans[0]
    written = sent(expected).resource_spans[0].scope_spans[0].spans[0]
    written.ClearField("status")
    assert read == written


def test_users_spans_leave_beside_the_meshs() -> None:
    taken: list[MeshSpan] = []
    span = Tracing(taken.append, 0, 0, lambda: 0.5).start("mine", None, 1, {})
    span.end(2)
    assert isinstance(span, MeshSpan)
    request = sent(as_of_the_sdk(span, None, {}), Queued(span), Queued(span))
    assert [len(each.scope_spans[0].spans) for each in request.resource_spans] == [1, 2]
    assert request.resource_spans[0].resource == request.resource_spans[1].resource
    assert request.resource_spans[0].scope_spans[0].scope == request.resource_spans[1].scope_spans[0].scope


def test_what_is_too_long_or_too_much_is_cut_and_counted() -> None:
    taken: list[MeshSpan] = []
    span = Tracing(taken.append, 0, 0, lambda: 0.5).start("name", None, 1, {})
    span.set_attribute("long", "x" * 5000)
    span.set_attribute("odd", "\ud800")
    for number in range(200):
        span.set_attribute(f"key-{number}", number)
        span.add_event("event", {"number": number}, -1)
        span.add_link(SpanContext(1, 2, is_remote=True))
    span.end(2)
    read = trace_pb2.ScopeSpans.FromString(scope_spans(taken)).spans[0]
    found = {pair.key: pair.value for pair in read.attributes}
    assert len(found["long"].string_value) == MAX_ATTRIBUTE_CHARS
    assert found["odd"].string_value == "?"
    assert (len(read.attributes), read.dropped_attributes_count) == (128, 74)
    assert (len(read.events), read.dropped_events_count) == (128, 72)
    assert (len(read.links), read.dropped_links_count) == (128, 72)


def test_no_text_is_longer_than_is_told_whichever_way_it_came() -> None:
    long, most = "é" * 60_000, MAX_ATTRIBUTE_CHARS
    taken: list[MeshSpan] = []
    span = Tracing(taken.append, 0, 0, lambda: 0.5).start(long, None, 1, {"method": long, "short": "s", "number": 7})
    span.set_attribute(long, "value")
    span.set_attribute(f"list-{long}", [long])
    span.add_event(long, {long: long})
    span.add_link(SpanContext(1, 2, is_remote=True), {long: long})
    span.set_status(StatusCode.ERROR, long)
    span.end(2)
    encoded = scope_spans(taken)
    read = trace_pb2.ScopeSpans.FromString(encoded).spans[0]
    said = {pair.key: pair.value for pair in read.attributes}
    assert (said["method"].string_value, said["short"].string_value, said["number"].int_value) == (long[:most], "s", 7)
    assert said[long[:most]].string_value == "value"
    assert said[f"list-{long}"[:most]].array_value.values[0].string_value == long[:most]
    assert (read.name, read.status.message, read.events[0].name) == (long[:most],) * 3
    for of_other in (read.events[0].attributes[0], read.links[0].attributes[0]):
        assert (of_other.key, of_other.value.string_value) == (long[:most],) * 2
    assert len(encoded) < 15 * 2 * most
    span.update_name(long)
    renamed = Tracing(taken.append, 0, 0, lambda: 0.5).start("name", None, 1, {})
    renamed.update_name(long)
    assert isinstance(renamed, MeshSpan)
    assert renamed.name == long[:most]


def test_only_short_texts_are_kept_encoded() -> None:
    otlp_spans._known_name.cache_clear()
    otlp_spans._known_attribute.cache_clear()
    taken: list[MeshSpan] = []
    tracing = Tracing(taken.append, 0, 0, lambda: 0.5)
    tracing.note("n" * 129, tracing.start("parent", None, 1, {}), 1, 2, {"key": "v" * 129, "k" * 129: "value"})
    scope_spans(taken)
    assert otlp_spans._known_name.cache_info().currsize == 0
    assert otlp_spans._known_attribute.cache_info().currsize == 0
    tracing.note("n" * 128, tracing.start("parent", None, 1, {}), 1, 2, {"key": "v" * 128})
    scope_spans(taken)
    assert otlp_spans._known_name.cache_info().currsize == 1
    assert otlp_spans._known_attribute.cache_info().currsize == 1


def test_an_exporter_without_the_method_to_override_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(OTLPSpanExporter, OVERRIDDEN)
    with pytest.raises(CannotStart, match="a version that slotmesh does not know"):
        setup_tracing("router", ServiceSettings(otlp_endpoint="http://127.0.0.1:9", tracing_ratio=1.0), {})


def test_the_method_to_override_is_the_one_that_is_overridden() -> None:
    assert OVERRIDDEN in vars(MeshSpanExporter)
