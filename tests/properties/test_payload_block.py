"""Blocks of payloads against lists of them."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.calls.payload_block import (
    PayloadBlock,
    block_of,
    concatenated,
    largest_of,
    nbytes_of,
    sizes_from_wire,
    sizes_to_wire,
)

payload_lists = st.lists(st.binary(max_size=6), max_size=12)
places = st.integers(-15, 15) | st.none()


@given(payload_lists, places, places)
def test_a_slice_is_that_of_the_list(payloads: list[bytes], lo: int | None, hi: int | None) -> None:
    block = block_of(payloads)
    part = block[lo:hi]
    assert isinstance(part, PayloadBlock)
    assert [*part] == part.cut() == payloads[lo:hi]
    assert len(part) == len(payloads[lo:hi])
    assert part.block == b"".join(payloads[lo:hi])
    assert [*part[1:]] == payloads[lo:hi][1:], "of a slice, too"


@given(payload_lists, st.data())
def test_a_payload_is_that_of_the_list(payloads: list[bytes], data: st.DataObject) -> None:
    at = data.draw(st.integers(-15, 15))
    block = block_of(payloads)
    if -len(payloads) <= at < len(payloads):
        assert block[at] == payloads[at]
    else:
        with pytest.raises(IndexError):
            block[at]


@given(payload_lists, st.data(), st.booleans())
def test_sizes_are_those_of_the_list(payloads: list[bytes], data: st.DataObject, is_block: bool) -> None:
    some = block_of(payloads) if is_block else payloads
    lo = data.draw(st.integers(0, len(payloads)))
    hi = data.draw(st.integers(lo, len(payloads)))
    assert nbytes_of(some, lo, hi) == sum(map(len, payloads[lo:hi]))
    assert nbytes_of(some) == sum(map(len, payloads))
    assert largest_of(some) == max(map(len, payloads), default=0)


@given(st.lists(st.tuples(payload_lists, st.booleans()), min_size=1, max_size=4))
def test_parts_are_concatenated_and_stay_a_block_where_all_are(parts: list[tuple[list[bytes], bool]]) -> None:
    whole = concatenated([block_of(payloads) if is_block else payloads for payloads, is_block in parts])
    assert [*whole] == [each for payloads, _ in parts for each in payloads]
    assert isinstance(whole, PayloadBlock) is all(is_block for _, is_block in parts)


def test_steps_other_than_one_are_refused() -> None:
    with pytest.raises(ValueError, match="steps of 1"):
        block_of([b"a", b"b"])[::2]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=8))
def test_sizes_travel_as_four_bytes_each_the_lowest_first(sizes: list[int]) -> None:
    wire = sizes_to_wire(array("I", sizes))
    assert wire == b"".join(size.to_bytes(4, "little") for size in sizes)
    assert [*sizes_from_wire(wire)] == sizes
