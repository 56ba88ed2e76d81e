"""What comes from peers becomes the context of spans, or nothing: never an error, and no line of the log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span

from slotmesh.calls.trace_context import TraceContext, is_sampled, is_tracestate, unsampled
from slotmesh.telemetry.tracing import MAX_NAME_CHARS, call_name, context_of
from tests.support.examples import examples

PARENT = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"


@settings(max_examples=examples(200))
@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=200))
def test_no_trace_state_is_too_odd(text: str) -> None:
    assert is_tracestate(text)
    context = get_current_span(context_of(TraceContext(PARENT, text))).get_span_context()
    assert (context.trace_id, context.span_id, context.is_remote) == (int("a" * 32, 16), int("1" * 16, 16), True)


@pytest.mark.parametrize("state", ["garbage", "a=b=c", "=", "a=1," * 40, "A=1", "hush secret"])
def test_one_that_is_not_sound_is_left_out_without_a_word(state: str, caplog: pytest.LogCaptureFixture) -> None:
    context = get_current_span(context_of(TraceContext(PARENT, state))).get_span_context()
    assert not context.trace_state.to_header()
    assert not caplog.messages


@pytest.mark.parametrize("state", ["vendor=7", "a=1,b=2", "tenant@vendor=x y,z=1", "rojo=00f067aa0ba902b7"])
def test_one_that_is_sound_is_kept(state: str) -> None:
    context = get_current_span(context_of(TraceContext(PARENT, state))).get_span_context()
    assert context.trace_state.to_header() == state


def test_flags() -> None:
    assert is_sampled(TraceContext(PARENT))
    assert unsampled(TraceContext(PARENT, "a=1")) == TraceContext(PARENT[:-2] + "00", "a=1")
    assert unsampled(TraceContext(f"{PARENT[:-2]}03-more")).traceparent.endswith("-02-more")
    assert not is_sampled(unsampled(TraceContext(PARENT)))


def test_names_are_bounded() -> None:
    assert call_name("e", "m") == "e.m"
    assert call_name("e", "") == "e"
    assert len(call_name("e" * 1000, "m")) == MAX_NAME_CHARS
