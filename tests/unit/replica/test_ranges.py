"""Sets of ids as ranges, against sets of ids."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from replica_service.core.ranges import Range, common, merged, without

spans = st.lists(st.tuples(st.integers(1, 30), st.integers(-1, 5)).map(lambda each: (each[0], each[0] + each[1])))


def ids(ranges: list[Range]) -> set[int]:
    return {each for first, last in ranges for each in range(first, last + 1)}


@given(spans)
def test_merged_has_the_same_ids_in_order_and_apart(ranges: list[Range]) -> None:
    out = merged(ranges)
    assert ids(out) == ids(ranges)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(out))


@given(spans, st.integers(1, 30), st.integers(0, 10))
def test_what_is_common_and_what_is_not(ranges: list[Range], first: int, more: int) -> None:
    known, asked = merged(ranges), set(range(first, first + more + 1))
    assert ids(common(first, first + more, known)) == asked & ids(known)
    assert ids(without(first, first + more, known)) == asked - ids(known)
