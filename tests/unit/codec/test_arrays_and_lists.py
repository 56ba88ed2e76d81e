"""Arrays of numpy where a handler wants lists, and lists where it wants arrays."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import (
    JSON,
    MSGPACK,
    decoder,
    encode,
    encode_arguments,
)
from tests.unit.codec.array_arguments import given, refused, same


def test_an_array_that_meets_lists_becomes_lists() -> None:
    array = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert given("lists", MSGPACK, encode_arguments(MSGPACK, (array,), {}))[0] == ([[0.0, 1.0], [2.0, 3.0]],)
    args, _ = given("both", MSGPACK, encode_arguments(MSGPACK, (array, array[0]), {}))
    assert args[1] == [0.0, 1.0]
    assert np.array_equal(args[0], array)
    assert decoder(MSGPACK, list[list[float]])(encode(MSGPACK, array)) == [[0.0, 1.0], [2.0, 3.0]]
    assert decoder(MSGPACK, float)(encode(MSGPACK, np.array(0.5))) == 0.5
    assert refused("lists", MSGPACK, encode_arguments(MSGPACK, (array[0],), {})).startswith(
        "args[0][0]: expected array, got float"
    )


def with_extension(shape: tuple[int, ...], wrap: int = 0) -> bytes:
    """A call with a list of `wrap` equal arrays of booleans; with the array itself where that is 0."""
    dimensions = b"".join(each.to_bytes(4, "big") for each in shape)
    array = msgspec.msgpack.Ext(78, b"\x03|b1" + bytes([len(shape)]) + dimensions + bytes(1 + math.prod(shape)))
    return msgspec.msgpack.encode([[array] * wrap if wrap else array])


@pytest.mark.parametrize(
    ("method", "payload"),
    [("lists", with_extension((10_000, *(1,) * 31))), ("many_lists", with_extension((65_536, 0), 100))],
)
def test_a_small_payload_does_not_become_many_lists(method: str, payload: bytes) -> None:
    tracemalloc.start()
    assert "expected array, got ext" in refused(method, MSGPACK, payload)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8_000_000, "each list takes 56 bytes"


def test_columns_of_one_become_lists() -> None:
    column = np.ones((100_000, 1), np.int8)
    assert given("lists", MSGPACK, encode_arguments(MSGPACK, (column,), {}))[0] == ([[1.0]] * 100_000,)


def test_a_class_that_refuses_lists_that_were_an_array_makes_bad_arguments() -> None:
    message = refused("picky", MSGPACK, encode_arguments(MSGPACK, ({"numbers": np.ones(3)},), {}))
    assert message == "args: LookupError: no such numbers; it takes picky(picky)"


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("floats", np.arange(3), np.arange(3, dtype=np.float32)),
        ("floats", np.arange(3.0), np.arange(3, dtype=np.float32)),
        ("floats", np.arange(3, dtype=">f4"), np.arange(3, dtype=np.float32)),
        ("floats", [1, 2.5], np.array([1, 2.5], np.float32)),
        ("bytes_of", [[0, 255]], np.array([[0, 255]], np.uint8)),
        ("bytes_of", np.array([255]), np.array([255], np.uint8)),
        ("any_floats", np.ones(1, np.float16), np.ones(1, np.float16)),
        ("array", [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ("array", [], np.array([])),
        ("array", [np.ones(2), np.zeros(2)], np.array([[1.0, 1.0], [0.0, 0.0]])),
    ],
)
def test_arrays_and_lists_become_what_is_wanted(method: str, value: Any, expected: NDArray[Any]) -> None:
    assert same(given(method, MSGPACK, encode_arguments(MSGPACK, (value,), {}))[0][0], expected)


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("array", 1, "args[0]: expected ndarray, got int"),
        ("array", "text", "args[0]: expected ndarray, got str"),
        ("array", [1, "x"], "args[0][1]: expected a number, got str"),
        ("array", [[1, 2], [3, None]], "args[0][1][1]: expected a number, got NoneType"),
        ("array", [[1], [2, 3]], "args[0]: expected lists of the same length"),
        ("array", [1, [2]], "args[0][1]: expected a number, got list"),
        ("array", [2**63, -1.5, 2**64 - 1, -1], ""),
        ("array", ["a" * 1000], "args[0][0]: expected a number, got str"),
        ("shot", {"sample": {"pixels": [1, "x"]}, "name": ""}, "args[0].sample.pixels[1]: expected a number, got str"),
        ("shot", {"sample": {"pixels": "x"}, "name": ""}, "args[0].sample.pixels: expected ndarray, got str"),
        ("floats", np.ones(1, np.complex128), "args[0]: expected ndarray of float32, got ndarray of complex128"),
        ("floats", np.array([1e300]), "args[0]: expected ndarray of float32, got numbers out of its range"),
        ("bytes_of", np.array([1.0]), "args[0]: expected ndarray of uint8, got ndarray of float64"),
        ("bytes_of", np.array([256]), "args[0]: expected ndarray of uint8, got numbers out of its range"),
        ("bytes_of", [-1], "args[0]: expected ndarray of uint8, got numbers out of its range"),
        (
            "bytes_of",
            np.array(["2020-01-01"], "M8[D]"),
            "args[0]: expected ndarray of uint8, got ndarray of datetime64",
        ),
        ("any_floats", np.array([1]), "args[0]: expected ndarray of floating, got ndarray of int64"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(method: str, value: Any, message: str) -> None:
    payload = encode_arguments(MSGPACK, (value,), {})
    if message:
        assert refused(method, MSGPACK, payload).startswith(message)
    else:
        assert given(method, MSGPACK, payload)[0][0].dtype == np.float64


def test_numbers_beyond_64_bits_are_refused() -> None:
    assert refused("array", JSON, b"[[%d]]" % 2**70).startswith("args[0]: expected numbers that fit into 64 bits")


def test_ragged_arrays_in_a_list_are_refused() -> None:
    payload = encode_arguments(MSGPACK, ([np.ones(2), np.ones(3)],), {})
    assert refused("array", MSGPACK, payload).startswith("args[0]: expected lists of the same length")
