"""Arrays of numpy in msgpack: what is on the wire, and what arrives."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import (
    JSON,
    MSGPACK,
    OCTET_STREAM,
    ArgumentsDecoder,
    DecodeError,
    EncodeError,
    decode,
    decoder,
    decoder_of_each,
    encode,
    encode_arguments,
    encode_arguments_of_each,
)
from slotmesh.errors import Reason


@dataclasses.dataclass
class Sample:
    pixels: np.ndarray
    weights: NDArray[np.float32] | None = None


class Shot(msgspec.Struct):
    sample: Sample
    name: str


class Picky(msgspec.Struct):
    numbers: list[float]

    def __post_init__(self) -> None:
        raise LookupError("no such numbers")


class Handler:
    def array(self, array: np.ndarray) -> None: ...

    def floats(self, array: NDArray[np.float32]) -> None: ...

    def any_floats(self, array: NDArray[np.floating[Any]]) -> None: ...

    def bytes_of(self, array: NDArray[np.uint8]) -> None: ...

    def maybe(self, array: np.ndarray | None = None) -> None: ...

    def shot(self, shot: Shot) -> None: ...

    def untyped(self, value: Any, *more: Any) -> None: ...

    def five(self, a: Any, b: str, c: np.ndarray, d: Any, e: Any) -> None: ...

    def both(self, array: np.ndarray, numbers: list[float]) -> None: ...

    def lists(self, rows: list[list[float]]) -> None: ...

    def many_lists(self, many: list[list[list[float]]]) -> None: ...

    def picky(self, picky: Picky) -> None: ...

    def named(self, array: np.ndarray, *, scale: float = 1.0) -> None: ...

    def rest(self, *arrays: np.ndarray) -> None: ...

    def kwargs(self, **arrays: np.ndarray) -> None: ...


def given(method: str, content_type: str, payload: bytes) -> Any:
    return ArgumentsDecoder.for_handler(getattr(Handler(), method)).decode(content_type, payload)


def refused(method: str, content_type: str, payload: bytes) -> str:
    with pytest.raises(DecodeError) as caught:
        given(method, content_type, payload)
    assert caught.value.failure.reason is Reason.BAD_ARGUMENTS
    return caught.value.failure.message


def memory_of(array: NDArray[Any]) -> Any:
    """What an array is a view of, in the end."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def same(left: Any, right: NDArray[Any]) -> bool:
    return (
        isinstance(left, np.ndarray)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


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


# -- where lists and arrays meet ---------------------------------------------------------------------------------------


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


# -- without numpy ---------------------------------------------------------------------------------------------------


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nobody_imports_numpy_for_those_who_do_not_use_it() -> None:
    payload = encode_arguments(MSGPACK, ([1.5],), {})
    assert (
        python(f"""
import sys, slotmesh
from slotmesh.codec import *
def numbers(numbers: list[float]): ...
ArgumentsDecoder.for_handler(numbers).decode(MSGPACK, {payload!r})
encode(MSGPACK, {{"a": [1, b"2"]}})
print("numpy" in sys.modules)
""")
        == "False"
    )


def test_a_handler_without_numpy_gets_lists_where_it_wants_lists() -> None:
    payload = encode_arguments(MSGPACK, (np.array([[1.5, 2.5]]), np.array([1, 2], np.uint8), np.array([True])), {})
    assert (
        python(f"""
import sys
from slotmesh.codec import *
def numbers(rows: list[list[float]], more: list[int], flags: list[bool]): ...
print(ArgumentsDecoder.for_handler(numbers).decode(MSGPACK, {payload!r})[0], "numpy" in sys.modules)
""")
        == "([[1.5, 2.5]], [1, 2], [True]) False"
    )


def test_a_handler_without_numpy_hears_what_to_do_about_an_array() -> None:
    payload = encode_arguments(MSGPACK, (1, {"a": np.ones(2)}), {})
    assert python(f"""
import sys
from slotmesh.codec import *
def anything(number, value): ...
try:
    ArgumentsDecoder.for_handler(anything).decode(MSGPACK, {payload!r})
except DecodeError as error:
    print(error, "numpy" in sys.modules)
""") == (
        "args[1].a: got an array of numpy, but nothing here uses numpy: annotate a list, or import it; "
        "it takes anything(number, value) False"
    )


def test_a_client_imports_numpy_for_the_first_array_or_says_that_there_is_none() -> None:
    payload = encode(MSGPACK, [np.ones(2)])
    assert (
        python(f"""
import sys
from slotmesh.codec import *
print("numpy" in sys.modules, decode(MSGPACK, {payload!r}))
""")
        == "False [array([1., 1.])]"
    )
    assert python(f"""
import sys
sys.modules["numpy"] = None
from slotmesh.codec import *
try:
    decode(MSGPACK, {payload!r})
except DecodeError as error:
    print(error)
print(decoder(MSGPACK, list[list[float]])({payload!r}))
""").splitlines() == [
        "value[0]: got an array of numpy, but numpy is not installed: install it, or want lists",
        "[[1.0, 1.0]]",
    ]
