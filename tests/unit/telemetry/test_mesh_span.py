"""The mesh's own spans are spans to users' code: current, parents of the SDK's, and of a fixed past once they end."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, StatusCode, TraceFlags

from slotmesh.calls.trace_context import TraceContext
from slotmesh.telemetry.mesh_span import MeshSpan
from slotmesh.telemetry.otlp_spans import scope_spans
from slotmesh.telemetry.tracing import Tracing, failed_by, trace_context_of

PARENT = TraceContext("00-" + "a" * 32 + "-" + "1" * 16 + "-01", "vendor=7")


def started(taken: list[MeshSpan], parent: TraceContext | None = PARENT) -> MeshSpan:
    span = Tracing(taken.append, 0, 0, lambda: 0.5).start("mine", parent, 1, {})
    assert isinstance(span, MeshSpan)
    return span


def test_a_users_span_is_its_child_and_goes_on_with_its_trace() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    mine = started([])
    with trace.use_span(mine, end_on_exit=False), provider.get_tracer("app").start_as_current_span("users"):
        trace.get_current_span().set_attribute("users", 1)
    (users,) = exporter.get_finished_spans()
    assert users.parent is not None
    assert (users.parent.trace_id, users.parent.span_id) == (int("a" * 32, 16), int(mine.span_id, 16))
    assert users.context is not None
    assert users.context.trace_flags.sampled
    assert users.context.trace_state.to_header() == "vendor=7"
    provider.shutdown()


def test_users_code_says_something_of_it() -> None:
    mine = started([])
    with trace.use_span(mine, end_on_exit=False):
        current = trace.get_current_span()
        assert current.is_recording()
        current.set_attributes({"app.user": "ada", "app.sizes": [1, 2]})
        current.update_name("renamed")
        try:
            raise ValueError("no")
        except ValueError as error:
            current.record_exception(error)
        current.set_status(StatusCode.ERROR, "why")
    assert (mine.name, mine.error) == ("renamed", "why")
    assert mine.attributes == {"app.user": "ada", "app.sizes": (1, 2)}
    assert mine.events is not None
    said = mine.events[0].attributes
    assert (said["exception.type"], said["exception.message"]) == ("ValueError", "no")
    mine.set_status(StatusCode.OK)
    mine.set_status(StatusCode.ERROR, "late")
    assert mine.is_ok
    assert mine.error is None


def test_it_ends_once_and_changes_no_more() -> None:
    taken: list[MeshSpan] = []
    mine = started(taken)
    mine.end(7)
    mine.end(8)
    mine.set_attribute("late", 1)
    mine.add_event("late")
    mine.add_link(SpanContext(1, 2, is_remote=True))
    mine.update_name("late")
    failed_by(mine, "LATE")
    assert taken == [mine]
    assert (mine.name, mine.ended_ns, mine.attributes, mine.events, mine.links) == ("mine", 7, {}, None, [])
    assert mine.error is None
    assert not mine.is_recording()


def test_what_is_told_of_it() -> None:
    root, child = started([], None), started([])
    assert trace_context_of(root) == TraceContext(f"00-{root.trace_id}-{root.span_id}-01")
    assert trace_context_of(child) == TraceContext(f"00-{'a' * 32}-{child.span_id}-01", "vendor=7")
    assert len({root.trace_id, child.trace_id, root.span_id[:8], child.span_id[:8]}) == 4
    context = child.get_span_context()
    assert context.is_valid
    assert context.trace_flags == TraceFlags(TraceFlags.SAMPLED)


def test_nothing_is_kept_where_the_parent_is_not_sampled_and_no_state_that_is_not_sound() -> None:
    taken: list[MeshSpan] = []
    tracing = Tracing(taken.append, 0, 0, lambda: 0.5)
    span = tracing.start("name", TraceContext(PARENT.traceparent[:-2] + "00"), 1, {})
    assert not span.is_recording()
    assert not span.get_span_context().trace_flags.sampled
    assert span.get_span_context().trace_id == int("a" * 32, 16)
    tracing.note("child", span, 1, 2).end()
    assert not taken
    assert trace_context_of(started([], PARENT._replace(tracestate="garbage"))).tracestate == ""


@pytest.mark.parametrize(("said", "ended_ns"), [(0, 0), (-5, 0), (7.9, 7), (1 << 70, (1 << 64) - 1), (True, 1)])
def test_it_ends_once_at_a_time_that_can_be_sent(said: Any, ended_ns: int) -> None:
    taken: list[MeshSpan] = []
    mine = started(taken)
    mine.end(said)
    mine.end(9)
    assert taken == [mine]
    assert (mine.ended_ns, mine.is_recording()) == (ended_ns, False)
    assert scope_spans(taken)


@pytest.mark.parametrize("said", [float("nan"), float("inf"), "soon"])
def test_it_ends_now_where_what_is_said_is_no_time(said: Any) -> None:
    taken: list[MeshSpan] = []
    mine = started(taken)
    before = time.time_ns()
    mine.add_event("event", None, said)
    mine.end(said)
    assert mine.events is not None
    assert before <= mine.events[0].at_ns <= mine.ended_ns
    assert scope_spans(taken)
