"""Ids of outcomes are the same calls, however they are written."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slotmesh.convert.batches import errors_to_wire, ids_of_results, ranges_of_failed, write_ids
from slotmesh.v1 import call_pb2

ids_of_a_part = st.one_of(
    st.builds(lambda first, count: range(first, first + count), st.integers(1, 12), st.integers(1, 4)),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
)


@given(ids_of_a_part, st.booleans())
def test_a_batch_has_its_ids(ids: Sequence[int], as_range: bool) -> None:
    batch = call_pb2.ResultBatch()
    write_ids(batch, ids, as_range=as_range)
    batch.payloads.extend(b"%d" % each for each in ids)
    assert [*ids_of_results(batch)] == [*ids]
    assert bool(batch.first_call_id) is (as_range and isinstance(ids, range)), "a range, to who reads it"
    assert bool(batch.call_ids) is not bool(batch.first_call_id)


def said(errors: call_pb2.CallErrors) -> list[int]:
    assert not (errors.call_ids and errors.calls)
    return [*errors.call_ids, *(each for first, last in ranges_of_failed(errors) for each in range(first, last + 1))]


@given(ids_of_a_part, st.booleans())
def test_failed_calls_are_told_as_they_are(ids: Sequence[int], as_range: bool) -> None:
    failure = call_pb2.Failure(code=2, message="no")
    told = errors_to_wire(ids, failure, as_range=as_range)
    assert said(told) == [*ids]
    assert told.failure == failure
    assert as_range or not told.calls


def test_ranges_are_for_ids_that_follow() -> None:
    failure = call_pb2.Failure(code=2, message="no")
    assert len(errors_to_wire([*range(1, 100), *range(200, 300)], failure, as_range=True).calls) == 2
    assert not errors_to_wire([*range(1, 100, 2)], failure, as_range=True).calls
