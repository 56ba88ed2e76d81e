"""Ranges of ids, against sets and lists of ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.calls.id_ranges import (
    Range,
    among,
    append,
    common,
    holds,
    joined,
    merged,
    ranges_of,
    run_length,
    stretches,
    without,
)

spans = st.lists(st.tuples(st.integers(1, 30), st.integers(-1, 5)).map(lambda each: (each[0], each[0] + each[1])))
some_ids = st.sets(st.integers(1, 30))
ids_in_any_order = st.one_of(
    st.lists(st.integers(1, 12), min_size=1),
    some_ids.filter(bool).map(sorted),
    st.lists(spans, max_size=4).map(lambda each: [one for group in each for one in ids_of(group)]).filter(bool),
)
"""Few ids that often follow one another, in order or not, and some of them twice."""


def ids_of(ranges: Sequence[Range]) -> list[int]:
    return [each for first, last in ranges for each in range(first, last + 1)]


def are_merged(ranges: Sequence[Range]) -> bool:
    return all(first <= last for first, last in ranges) and all(
        last + 1 < first for (_, last), (first, _) in pairwise(ranges)
    )


@given(spans)
def test_merged_has_the_same_ids_in_order_and_apart(ranges: list[Range]) -> None:
    out = merged(ranges)
    assert ids_of(out) == sorted(set(ids_of(ranges)))
    assert are_merged(out)


@given(some_ids)
def test_what_is_appended_in_order_is_merged(ids: set[int]) -> None:
    out: list[Range] = []
    for each in sorted(ids):
        append(out, each, each)
    assert ids_of(out) == sorted(ids)
    assert are_merged(out)


@given(spans)
def test_longer_ranges_can_be_appended_too(ranges: list[Range]) -> None:
    out: list[Range] = []
    for first, last in (each for each in ranges if each[0] <= each[1]):
        append(out, first, last)
    assert ids_of(out) == ids_of(ranges)


@given(spans, st.integers(-2, 34), st.integers(0, 10))
def test_what_is_common_and_what_is_not(ranges: list[Range], first: int, more: int) -> None:
    known, asked = merged(ranges), set(range(first, first + more + 1))
    inside, outside = common(first, first + more, known), without(first, first + more, known)
    assert ids_of(inside) == sorted(asked & set(ids_of(known)))
    assert ids_of(outside) == sorted(asked - set(ids_of(known)))
    assert are_merged(inside)
    assert are_merged(outside)


@given(spans, st.integers(-2, 40))
def test_an_id_is_held_where_it_is_in_a_range(ranges: list[Range], each: int) -> None:
    assert holds(merged(ranges), each) == (each in ids_of(ranges))


@given(some_ids, st.integers(1, 30), st.integers(-2, 40))
def test_those_among_what_is_held(held: set[int], first: int, more: int) -> None:
    assert sorted(among(held, first, first + more)) == [each for each in sorted(held) if first <= each <= first + more]


def test_an_endless_range_costs_what_is_held() -> None:
    assert sorted(among({3, 2**62}, 1, 2**63 - 1)) == [3, 2**62]


@given(ids_in_any_order, st.data())
def test_a_run_ends_where_an_id_does_not_follow(ids: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    most = data.draw(st.integers(1, len(ids) - at))
    length = 1
    while length < most and ids[at + length] == ids[at] + length:
        length += 1
    assert run_length(ids, at, most) == length


@given(st.integers(-5, 5), st.integers(1, 9), st.data())
def test_a_range_is_one_run(first: int, count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count - 1))
    most = data.draw(st.integers(1, count - at))
    assert run_length(range(first, first + count), at, most) == most


parts_of_ids = st.lists(
    st.one_of(
        st.builds(lambda first, count: range(first, first + count), st.integers(1, 12), st.integers(1, 4)),
        st.lists(st.integers(1, 12), min_size=1, max_size=4),
    ),
    max_size=5,
)


@given(parts_of_ids)
def test_ids_are_joined_in_order_and_stay_a_range_where_all_follow(parts: list[Sequence[int]]) -> None:
    given_parts = [[*each] for each in parts]
    ids: Sequence[int] = ()
    for each in parts:
        ids = joined(ids, each)
    assert [*ids] == [one for each in given_parts for one in each]
    assert [[*each] for each in parts] == given_parts, "a part was changed"
    all_ranges = all(isinstance(each, range) for each in parts)
    follow = all_ranges and all(before[-1] + 1 == after[0] for before, after in pairwise(parts))
    assert isinstance(ids, range) is (follow and bool(parts))


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3, 9, 5, 6],  # its end is where it would be if all followed
        [1, 2, 2, 4],
        [1, 2, 9, 4, 5, 6, 7, 20],  # what a search by halves looks at is right
    ],
)
def test_ids_out_of_order_do_not_count_as_a_run(ids: list[int]) -> None:
    assert run_length(ids, 0, len(ids)) == next(at for at, each in enumerate(ids) if each != at + 1)


@given(ids_in_any_order)
def test_stretches_are_the_ids_in_as_few_ranges_as_can_be(ids: list[int]) -> None:
    found = list(stretches(ids))
    assert [(first, last) for first, last, _ in found] == ranges_of(ids)
    assert ids_of(ranges_of(ids)) == ids
    assert [ids[index] for _, _, index in found] == [first for first, _, _ in found]
    assert all(last + 1 != first for (_, last, _), (first, _, _) in pairwise(found))
    assert list(stretches(tuple(ids))) == found


@given(st.integers(1, 9), st.integers(0, 9))
def test_a_range_is_one_stretch(first: int, count: int) -> None:
    ids = range(first, first + count)
    assert list(stretches(ids)) == list(stretches(list(ids)))
