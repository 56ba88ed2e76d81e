"""Columns of trace contexts: what is said is what is read, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.calls.trace_context import (
    MAX_HTTP_BYTES,
    TraceColumns,
    TraceContext,
    columns_of,
    ids_with,
    is_sampled,
    is_traceparent,
    traces_of_calls,
    unsampled,
)
from tests.support.examples import examples

A = TraceContext("00-" + "a" * 32 + "-" + "1" * 16 + "-01")
B = TraceContext("00-" + "b" * 32 + "-" + "2" * 16 + "-00", "vendor=1")
H = TraceContext("", "", b"one request")
BOTH = B._replace(http=b"another")


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from([None, A, B, H, BOTH]), min_size=1, max_size=30))
def test_what_is_said_is_what_is_read(traces: list[TraceContext | None]) -> None:
    columns = columns_of(traces)
    assert columns.problem(len(traces)) is None
    ids = range(100, 100 + len(traces))
    read = columns.by_id(ids)
    assert [read.get(each) for each in ids] == traces


def test_neighbours_share_an_entry_and_calls_without_a_trace_have_none_before_the_first() -> None:
    assert columns_of([None, A, A, A]) == TraceColumns([1], [A.traceparent], ())
    assert columns_of([A, None, B]) == TraceColumns([0, 1, 2], [A.traceparent, "", B.traceparent], ["", "", "vendor=1"])
    assert columns_of([None, None]) == TraceColumns([], [], ())


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        (TraceColumns([0], [], []), "traceparents"),
        (TraceColumns([], [A.traceparent], []), "traceparents"),
        (TraceColumns([0], [A.traceparent], ["a=1", "b=2"]), "tracestates"),
        (TraceColumns([0, 0], [A.traceparent] * 2, []), "trace_starts"),
        (TraceColumns([1, 0], [A.traceparent] * 2, []), "trace_starts"),
        (TraceColumns([-1], [A.traceparent], []), "trace_starts"),
        (TraceColumns([3], [A.traceparent], []), "trace_starts"),
        (TraceColumns([0], ["nonsense"], []), "traceparents"),
        (TraceColumns([0], [A.traceparent + "-" + "x" * 100], []), "traceparents"),
        (TraceColumns([0], [A.traceparent], ["x" * 513]), "tracestates"),
        (TraceColumns([0], [A.traceparent], ["é=1"]), "tracestates"),
        (TraceColumns([0], [""], [], [b"a", b"b"]), "http_requests"),
        (TraceColumns([0], [""], [], [b"x" * (MAX_HTTP_BYTES + 1)]), "http_requests"),
    ],
)
def test_what_is_wrong_names_its_column(columns: TraceColumns, field: str) -> None:
    mistake = columns.problem(3)
    assert mistake is not None
    assert mistake[0] == field


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (A.traceparent, True),
        ("cc" + A.traceparent[2:] + "-what-comes-later", True),
        (A.traceparent + "\n", False),
        (A.traceparent.upper(), False),
        ("ff" + A.traceparent[2:], False),
        ("00-" + "0" * 32 + "-" + "1" * 16 + "-01", False),
        ("00-" + "a" * 32 + "-" + "0" * 16 + "-01", False),
        (A.traceparent[:-1], False),
    ],
)
def test_what_may_be_a_traceparent(text: str, is_right: bool) -> None:
    assert is_traceparent(text) is is_right


def test_a_call_without_a_trace_is_not_sampled() -> None:
    assert [is_sampled(each) for each in (A, B, H, BOTH)] == [True, False, False, False]
    assert unsampled(A._replace(http=b"one")).http == b"one"


@given(
    st.dictionaries(st.integers(0, 60), st.sampled_from([A, B]), max_size=20),
    st.builds(range, st.integers(0, 30), st.integers(30, 60)) | st.lists(st.integers(0, 60), unique=True).map(sorted),
)
def test_those_of_some_calls(traces: dict[int, TraceContext], ids: Sequence[int]) -> None:
    mine = {each: traces[each] for each in ids if each in traces}
    assert (traces_of_calls(traces, ids) or {}) == mine
    assert sorted(ids_with(traces, ids)) == sorted(mine)
