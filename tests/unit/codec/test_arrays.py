"""Arrays of numpy in msgpack: what is on the wire, and what arrives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import (
    JSON,
    MSGPACK,
    OCTET_STREAM,
    EncodeError,
    decode,
    decoder,
    decoder_of_each,
    encode,
    encode_arguments,
    encode_arguments_of_each,
)
from tests.unit.codec.array_arguments import Sample, Shot, given, refused, same


def memory_of(array: NDArray[Any]) -> Any:
    """What an array is a view of, in the end."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.array(3.5),
    np.zeros((0, 5), np.float32),
    np.zeros((3, 0, 2), np.int8),
    np.array([True, False]),
    np.arange(5, dtype=">u2"),
    np.arange(10)[::2],
    np.asfortranarray(np.arange(12, dtype=np.float16).reshape(3, 4)),
    np.array([1 + 2j], np.complex64),
    np.array(["2020-01-01", "NaT"], "M8[ns]"),
    np.array([5], "m8[s]"),
    np.ones((1,) * 32, np.uint8),
]
each_array = pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")


def test_the_extension_is_what_the_protocol_says() -> None:
    assert encode(MSGPACK, np.array([[1, 2, 3]], "<u2")) == bytes.fromhex(
        "c9 00000018 4e"  # an extension of 24 bytes, of type 78
        "03 3c7532"  # <u2
        "02 00000001 00000003"  # 1 × 3
        "04 00000000"  # padding: the elements begin at byte 24 of the payload
        "0100 0200 0300"
    )


@each_array
def test_arrays_come_back_as_they_are(array: NDArray[Any]) -> None:
    assert same(decode(MSGPACK, encode(MSGPACK, array)), array)
    assert same(decode(MSGPACK, encode(MSGPACK, [[array]]))[0][0], array)
    (arrived,), named = given("array", MSGPACK, encode_arguments(MSGPACK, (array,), {}))
    assert same(arrived, array)
    assert not named
    assert same(given("array", MSGPACK, encode_arguments(MSGPACK, (), {"array": array}))[0][0], array)


def test_arrays_are_found_in_lists_maps_dataclasses_and_structs() -> None:
    pixels, weights = np.arange(3, dtype=np.int16), np.ones(2, np.float32)
    value = {"shots": [Shot(Sample(pixels, weights), "a"), Sample(pixels)]}
    arrived = decode(MSGPACK, encode(MSGPACK, value))
    assert same(arrived["shots"][0]["sample"]["pixels"], pixels)
    assert same(arrived["shots"][1]["pixels"], pixels)
    (shot,), _ = given("shot", MSGPACK, encode_arguments(MSGPACK, (Shot(Sample(pixels, weights), "a"),), {}))
    assert shot.name == "a"
    assert same(shot.sample.pixels, pixels)
    assert same(shot.sample.weights, weights)


@pytest.mark.parametrize("more", [(), ("x",), (1, None)])
def test_an_array_at_the_top_level_shares_the_payloads_memory(more: tuple[Any, ...]) -> None:
    array = np.arange(100.0)
    payload = encode_arguments(MSGPACK, (*more, array), {})
    args, _ = given("untyped", MSGPACK, payload)
    assert same(args[-1], array)
    assert args[-1].flags.aligned
    assert not args[-1].flags.writeable
    result = encode(MSGPACK, array)
    assert memory_of(decode(MSGPACK, result)) is result
    assert memory_of(decoder(MSGPACK, np.ndarray)(result)) is result


def test_each_of_several_arrays_shares_it() -> None:
    odd, even = np.arange(3, dtype=np.uint8), np.arange(4.0)
    payload = encode_arguments(MSGPACK, (odd, "x", even, odd, even), {})
    args, _ = given("five", MSGPACK, payload)
    assert all(memory_of(args[index]) is payload for index in (0, 2, 3, 4))
    result = encode(MSGPACK, {"odd": odd, "even": even})
    assert all(memory_of(array) is result for array in decode(MSGPACK, result).values())


def test_every_array_is_aligned_and_read_only() -> None:
    for lead in range(9):
        (_, arrived) = decode(MSGPACK, encode(MSGPACK, ["x" * lead, Sample(np.arange(3.0))]))
        assert arrived["pixels"].flags.aligned
        assert not arrived["pixels"].flags.writeable


def test_in_json_arrays_are_lists() -> None:
    array = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert decode(JSON, encode(JSON, array)) == [[0.0, 1.0], [2.0, 3.0]]
    assert same(given("floats", JSON, encode(JSON, [array]))[0][0], array)
    assert same(given("array", JSON, b"[[[1, 2], [3, 4]]]")[0][0], np.array([[1, 2], [3, 4]]))


def test_octets_are_elements() -> None:
    array = np.arange(3, dtype=np.float32)
    assert encode(OCTET_STREAM, array) == array.tobytes()
    assert same(given("floats", OCTET_STREAM, array.tobytes())[0][0], array)
    assert same(given("array", OCTET_STREAM, b"\x01\x02")[0][0], np.array([1, 2], np.uint8))
    assert same(given("array", OCTET_STREAM, b"")[0][0], np.array([], np.uint8))
    assert refused("floats", OCTET_STREAM, b"12345") == "args[0]: expected 4 bytes for each float32, got 5 in all"
    assert "application/octet-stream gives bytes" in refused("any_floats", OCTET_STREAM, b"1234")


def test_none_is_no_array() -> None:
    assert given("maybe", MSGPACK, encode(MSGPACK, [None]))[0] == (None,)
    assert given("maybe", MSGPACK, encode(MSGPACK, []))[0] == ()
    assert same(given("maybe", MSGPACK, encode(MSGPACK, [np.ones(1)]))[0][0], np.ones(1))


def test_named_and_open_ended_arguments() -> None:
    array = np.arange(3)
    args, named = given("named", MSGPACK, encode_arguments(MSGPACK, (), {"array": array, "scale": 2.0}))
    assert same((*args, named["scale"])[0], array)
    args, _ = given("rest", MSGPACK, encode_arguments(MSGPACK, (array, array), {}))
    assert same(args[1], array)
    _, named = given("kwargs", MSGPACK, encode_arguments(MSGPACK, (), {"a": array}))
    assert same(named["a"], array)


# -- what does not travel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.array([object()]),
        np.array([{"a": 1}], object),
        np.zeros(1, [("x", "f4")]),
        np.zeros(1, np.longdouble),
        np.array([1], "M8[25s]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_of_anything_but_numbers_are_refused_with_a_way_out(array: NDArray[Any]) -> None:
    for value in (array, [array], {"a": [array]}):
        with pytest.raises(EncodeError, match=r"an array of dtype .* cannot be sent.*astype\(\).*tolist\(\)"):
            encode(MSGPACK, value)


def test_arrays_of_strings_and_subclasses_travel_as_lists() -> None:
    assert decode(MSGPACK, encode(MSGPACK, np.array(["a", "bc"]))) == ["a", "bc"]
    assert decode(MSGPACK, encode(MSGPACK, np.ma.array([1, 2], mask=[False, True]))) == [1, None]


def test_arrays_without_elements_have_a_shape_in_proportion() -> None:
    with pytest.raises(EncodeError, match="without elements"):
        encode(MSGPACK, np.zeros((100_000, 0)))


# -- many ------------------------------------------------------------------------------------------------------------


def test_rows_of_an_array_are_the_arguments_of_a_call_each() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    one_by_one = [encode_arguments(MSGPACK, (row,), {}) for row in rows]
    assert encode_arguments_of_each(MSGPACK, [rows]) == one_by_one
    assert encode_arguments_of_each(MSGPACK, [list(rows)]) == one_by_one
    assert encode_arguments_of_each(MSGPACK, [rows[:, ::2]]) == encode_arguments_of_each(MSGPACK, [list(rows[:, ::2])])
    assert encode_arguments_of_each(MSGPACK, [rows[:, 0]]) == encode_arguments_of_each(MSGPACK, [[0.0, 4.0, 8.0]])
    assert encode_arguments_of_each(OCTET_STREAM, [rows]) == [row.tobytes() for row in rows]
    assert encode_arguments_of_each(OCTET_STREAM, [rows.astype(">f4")]) == [row.tobytes() for row in rows]
    assert encode_arguments_of_each(JSON, [rows]) == [encode_arguments(JSON, (row.tolist(),), {}) for row in rows]
    assert encode_arguments_of_each(MSGPACK, [rows, rows[:, 0]]) == [
        encode_arguments(MSGPACK, (row, float(row[0])), {}) for row in rows
    ]
    assert encode_arguments_of_each(MSGPACK, [rows[:0]]) == []
    assert len(encode_arguments_of_each(MSGPACK, [rows[:, :0]])) == 3


@pytest.mark.parametrize("wanted", [Any, np.ndarray])
def test_many_results_are_decoded_as_one_by_one(wanted: Any) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    for values in (list(rows), [*rows, np.arange(2)], [np.array(1.0), np.array(2.0)], [rows[0]], []):
        payloads = [encode(MSGPACK, value) for value in values]
        arrived = decoder_of_each(MSGPACK, wanted)(payloads)
        assert len(arrived) == len(values)
        assert all(map(same, arrived, values))
        assert not any(array.flags.writeable for array in arrived)
