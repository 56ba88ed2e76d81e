"""Ids of outcomes are the same calls, however they are written."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slotmesh.convert.batches import errors_to_wire, ids_from_wire, ids_of_results, write_ids
from slotmesh.v1 import call_pb2

ids_of_a_part = st.one_of(
    st.builds(lambda first, count: range(first, first + count), st.integers(1, 12), st.integers(1, 4)),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
)


@given(ids_of_a_part)
def test_a_batch_has_its_ids(ids: Sequence[int]) -> None:
    batch = call_pb2.ResultBatch()
    write_ids(batch, ids)
    batch.payloads.extend(b"%d" % each for each in ids)
    assert [*ids_of_results(batch)] == [*ids]
    assert bool(batch.first_call_id) is isinstance(ids, range)
    assert bool(batch.call_ids) is not bool(batch.first_call_id)


@given(ids_of_a_part)
def test_failed_calls_are_told_as_they_are(ids: Sequence[int]) -> None:
    failure = call_pb2.Failure(code=2, message="no")
    told = errors_to_wire(ids, failure)
    assert ids_from_wire(told.calls) == [*ids]
    assert told.failure == failure


def test_ids_that_follow_share_a_range() -> None:
    failure = call_pb2.Failure(code=2, message="no")
    assert len(errors_to_wire([*range(1, 100), *range(200, 300)], failure).calls) == 2
