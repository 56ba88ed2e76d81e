"""What an unsound or hostile payload costs stays in proportion to its bytes: counted in steps, not in time."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.codec import JSON, MSGPACK, ArgumentsDecoder, DecodeError, decode, decoder
from slotmesh.codec.arrays import EXTENSION
from slotmesh.codec.decoding_bounds import has_costly_numbers, json_decoder

pytest.importorskip("numpy")

BROKEN = msgspec.msgpack.encode(msgspec.msgpack.Ext(EXTENSION, b"\x03<f4"))
COSTLY = ("1e-323", "1e308", "2.5E-310", "1E+0300", "4.9e-324", "12345678901234567890e-320")


def list_of(count: int, entry: bytes, *more: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count + len(more)) + entry * count + b"".join(more)


def steps_of(function: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, while it runs."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return steps


def refused(payload: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(MSGPACK, payload)
    return str(caught.value)


@pytest.mark.parametrize("entry", [b"\x01", b"\x90", b"\x81\x01\x01"], ids=["numbers", "lists", "maps"])
def test_a_broken_array_behind_very_many_entries_costs_no_more_steps_than_one_behind_many(entry: bytes) -> None:
    many, very_many = (list_of(count, entry, BROKEN) for count in (20_000, 200_000))
    assert refused(many).startswith("value: an array was cut off")
    assert steps_of(lambda: refused(very_many)) < steps_of(lambda: refused(many)) * 1.1


def test_a_broken_array_among_the_first_entries_is_named() -> None:
    payload = msgspec.msgpack.encode([[1] * 5_000, {"a": [[], {"b": msgspec.Raw(BROKEN)}]}])
    assert refused(payload).startswith("value[1].a[1].b: an array was cut off")


def test_a_broken_array_is_found_as_deep_as_msgpack_goes() -> None:
    depth = 400
    assert refused(b"\x91" * depth + BROKEN).startswith(f"value{'[0]' * depth}"[:200])


@pytest.mark.parametrize("number", COSTLY)
def test_many_costly_numbers_are_noticed(number: str) -> None:
    assert has_costly_numbers(f"[{','.join([number] * 200)}]".encode())


@pytest.mark.parametrize("number", ["1", "1.5", "1e5", "6.02e+23", "1.25e-99", "100000000", "0.0001"])
def test_others_are_none(number: str) -> None:
    assert not has_costly_numbers(f"[{','.join([number] * 200)}]".encode())


def test_a_few_costly_numbers_go_the_short_way() -> None:
    assert not has_costly_numbers(json.dumps([1.5] * 1_000 + [1e308]).encode())


class Row(msgspec.Struct):
    name: str
    values: list[float]
    at: dict[int, float] = {}


TYPES: tuple[Any, ...] = (Any, list[float], list[int], dict[str, float], Row, list[Row], list[float | None], float)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**62), 2**62) | st.sampled_from([1e308])
values = st.recursive(
    numbers | st.none() | st.booleans() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
) | st.fixed_dictionaries(
    {"name": st.text(max_size=3), "values": st.lists(numbers)},
    optional={"at": st.dictionaries(st.integers().map(str), numbers)},
)


@given(values, st.sampled_from(TYPES))
def test_both_ways_give_the_same(value: object, wanted: Any) -> None:
    payload = json.dumps(value).encode()
    short, long = (outcome(way, wanted, payload) for way in (plainly, by_two_steps))
    assert short == long


def plainly(wanted: Any) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(wanted).decode


def by_two_steps(wanted: Any) -> Callable[[bytes], Any]:
    decode_costly = json_decoder(tuple[wanted, Any])
    numbers = f"[{','.join(['1e308'] * 400)}]".encode()

    def decode_beside(payload: bytes) -> Any:
        both = b"[%b,%b]" % (payload, numbers)
        assert has_costly_numbers(both) or len(payload) > 20_000
        return decode_costly(both)[0]

    return decode_beside


def outcome(way: Callable[[Any], Callable[[bytes], Any]], wanted: Any, payload: bytes) -> object:
    try:
        return way(wanted)(payload)
    except msgspec.ValidationError as error:
        return str(error).partition(" - at `$")[0]


def test_a_number_out_of_range_is_refused_either_way() -> None:
    with pytest.raises(DecodeError, match="out of range"):
        decode(JSON, f"[{','.join(['1e400'] * 200)}]".encode())


def test_arguments_of_any_number_are_split_and_decoded() -> None:
    def method(*numbers: list[float]) -> None: ...

    payload = json.dumps([[1e308] * 200, [5e-324] * 200]).encode()
    assert ArgumentsDecoder.for_handler(method).decode(JSON, payload) == (([1e308] * 200, [5e-324] * 200), {})
    assert decoder(JSON, list[list[float]])(payload) == [[1e308] * 200, [5e-324] * 200]
