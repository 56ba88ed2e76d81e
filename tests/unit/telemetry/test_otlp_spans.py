"""The mesh's own spans say in OTLP what the SDK's encoder would have said of the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceState

from slotmesh.telemetry.mesh_span import MAX_ATTRIBUTE_CHARS, MeshSpan
from slotmesh.telemetry.otlp_spans import scope_spans
from slotmesh.telemetry.setup_span_exporter import SCOPE, MeshSpanExporter
from slotmesh.telemetry.setup_span_queue import Queued
from slotmesh.telemetry.tracing import Tracing
from slotmesh.wire.trace_context import TraceContext
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
