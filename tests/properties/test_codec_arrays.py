"""Arrays and columns from any sender: they come back as they were, and unsound ones are refused, alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from slotmesh.codec import (
    JSON,
    MSGPACK,
    OCTET_STREAM,
    ArgumentsDecoder,
    ColumnsDecoder,
    DecodeError,
    Flaw,
    decode,
    decoder,
    decoder_of_each,
    encode,
    encode_arguments,
    encode_arguments_of_each,
    encode_each,
)
from slotmesh.codec.arrays import SENDABLE
from tests.support.examples import examples

DTYPES = st.sampled_from(sorted(SENDABLE)).map(np.dtype)


def arrays(dtype: Any = DTYPES, *, least: int = 0) -> st.SearchStrategy[NDArray[Any]]:
    shapes = arrays_of.array_shapes(min_dims=least, max_dims=4, min_side=0, max_side=4)
    return arrays_of.arrays(dtype, shapes)


def is_same(left: Any, right: Any) -> bool:
    """The same values of the same types; arrays bit by bit."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(value, right[key]) for key, value in left.items())
    return type(left) is type(right) and (left == right or left != left)  # noqa: PLR0124 - nan


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary() | arrays(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None)
@given(values)
def test_values_with_arrays_anywhere_come_back(value: Any) -> None:
    assert is_same(decode(MSGPACK, encode(MSGPACK, value)), value)


@settings(deadline=None)
@given(arrays(least=1), st.booleans())
def test_rows_are_encoded_as_one_by_one(array: NDArray[Any], is_strided: bool) -> None:
    if is_strided:
        array = array[::-1, ...].copy()[::-1]
    rows = list(array)
    if array.ndim > 1:
        assert encode_each(MSGPACK, array) == [encode(MSGPACK, row) for row in rows]
        assert encode_arguments_of_each(MSGPACK, [array]) == [encode_arguments(MSGPACK, (row,), {}) for row in rows]
    little = array.astype(array.dtype.newbyteorder("<"))
    assert encode_each(OCTET_STREAM, array) == [row.tobytes() for row in little]
    payloads = [encode(MSGPACK, np.asarray(row)) for row in rows]
    assert is_same(decoder_of_each(MSGPACK)(payloads), [decode(MSGPACK, payload) for payload in payloads])


# -- hostile payloads --------------------------------------------------------------------------------------------------


class Inner(msgspec.Struct):
    x: np.ndarray
    y: list[float]


class Handler:
    def untyped(self, value: Any) -> None: ...

    def array(self, array: np.ndarray) -> None: ...

    def floats(self, array: NDArray[np.float32]) -> None: ...

    def numbers(self, numbers: list[list[float]]) -> None: ...

    def inner(self, inner: Inner) -> None: ...

    def rest(self, first: np.ndarray, *rest: int, **more: np.ndarray) -> None: ...


class Batches:
    def any_rows(self, rows: np.ndarray) -> None: ...

    def float_rows(self, rows: NDArray[np.float32]) -> None: ...

    def two(self, rows: np.ndarray, scales: list[float] | float = 1.0) -> None: ...

    def arrays(self, arrays: list[NDArray[np.float64]]) -> None: ...

    def floats(self, numbers: list[float]) -> None: ...

    def lists(self, numbers: list[list[float]]) -> None: ...

    def octets(self, payloads: list[bytes]) -> None: ...


METHODS = [ArgumentsDecoder.for_handler(getattr(Handler(), name)) for name in vars(Handler) if name[0] != "_"]
BATCHES = {
    name: ArgumentsDecoder.for_handler(getattr(Batches(), name), batched=True)
    for name in vars(Batches)
    if name[0] != "_"
}

seeds = st.one_of(
    values.map(lambda value: encode(MSGPACK, value)),
    values.map(lambda value: encode_arguments(MSGPACK, (value,), {})),
    arrays().map(lambda array: encode_arguments(MSGPACK, (array,), {})),
    arrays(np.dtype("<f4"), least=1).map(lambda array: encode_arguments(MSGPACK, (array,), {})),
    st.lists(st.floats(), max_size=3).map(lambda value: encode_arguments(MSGPACK, (value,), {})),
)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A payload with something wrong, or none at all."""
    payload = bytearray(draw(seeds))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(payload) - 1, 0)))
        match draw(st.sampled_from(["cut", "set", "drop", "insert"])):
            case "cut":
                del payload[at:]
            case "set" if payload:
                payload[at] = draw(
                    st.sampled_from([0, 1, 0x4E, 0x7F, 0x91, 0xC9, 0xCB, 0xDD, 0xFF]) | st.integers(0, 255)
                )
            case "drop":
                del payload[at : at + draw(st.integers(1, 8))]
            case _:
                payload[at:at] = draw(st.binary(max_size=8))
    return bytes(payload)


def bytes_in(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(bytes_in, value))
    if isinstance(value, dict):
        return sum(map(bytes_in, value.values()))
    return 0


@settings(max_examples=examples(300), deadline=None)
@given(broken())
@example(b"\x91" * 100_000)
@example(b"\x91\xc9\xff\xff\xff\xff\x4e\x03<f4\x00\x00")
@example(b"\x91\xdd\xff\xff\xff\xff\xcb")
def test_what_is_no_payload_is_refused_and_nothing_is_larger_than_what_came(payload: bytes) -> None:
    for wanted in (Any, np.ndarray, list[list[float]], NDArray[np.uint8], Inner):
        try:
            value = decoder(MSGPACK, wanted)(payload)
        except DecodeError:
            continue
        assert bytes_in(value) <= 8 * len(payload)
    for method in METHODS:
        for content_type in (MSGPACK, JSON, OCTET_STREAM):
            try:
                args, named = method.decode(content_type, payload)
            except DecodeError:
                continue
            # A byte of msgpack can be a number, which has eight bytes in an array.
            assert bytes_in(list(args)) + bytes_in(dict(named)) <= 8 * len(payload)


# -- columns -----------------------------------------------------------------------------------------------------------


def one_by_one(arguments: ArgumentsDecoder, content_type: str, payloads: list[bytes]) -> list[Any]:
    outcomes: list[Any] = []
    for payload in payloads:
        try:
            args, named = arguments.decode(content_type, payload)
        except DecodeError as error:
            outcomes.append(error.failure)
        else:
            outcomes.append((list(args), dict(named)))
    return outcomes


def together(arguments: ArgumentsDecoder, content_type: str, payloads: list[bytes], *, takes_bytes: bool) -> list[Any]:
    """The same by columns: of those whose shapes are equal, as a batch puts them together."""
    columns = ColumnsDecoder(arguments, takes_bytes=takes_bytes)
    outcomes: list[Any] = []
    for piece in columns.split(content_type, list(payloads)):
        if isinstance(piece, Flaw):
            outcomes.append(piece.failure)
            continue
        args, named = columns.passed(piece.args, piece.named)
        for index in range(piece.size):
            given_args = [entry(column, index) for column in args]
            outcomes.append((given_args, {name: entry(column, index) for name, column in named.items()}))
    return outcomes


def entry(column: Any, index: int) -> Any:
    """A row as an array, even if it is a number."""
    return column[index : index + 1].reshape(column.shape[1:]) if isinstance(column, np.ndarray) else column[index]


def is_same_call(left: Any, right: Any) -> bool:
    return is_same(left, right) if isinstance(left, tuple) else bool(left == right)


def alike(make: Callable[[Any], bytes]) -> st.SearchStrategy[list[bytes]]:
    """Payloads of one form, as those of one caller are."""
    return arrays(least=1).map(lambda array: [make(np.asarray(row)) for row in array])


frames = st.one_of(
    alike(lambda row: encode_arguments(MSGPACK, (row,), {})),
    arrays(np.dtype("<f8"), least=1).map(
        lambda array: [encode_arguments(MSGPACK, (row.tolist(),), {}) for row in array]
    ),
    arrays(np.dtype("<f4"), least=2).map(lambda array: [row.tobytes() for row in array]),
)


@st.composite
def mixed_frames(draw: st.DrawFn) -> list[bytes]:
    """Payloads of one form, but for some."""
    payloads = list(draw(frames))
    for payload in draw(st.lists(broken(), max_size=2)):
        payloads.insert(draw(st.integers(0, len(payloads))), payload)
    is_changed: bool = draw(st.booleans())
    if payloads and is_changed:
        at = draw(st.integers(0, len(payloads) - 1))
        changed = bytearray(payloads[at])
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] ^= draw(st.integers(1, 255))
        payloads[at] = bytes(changed)
    return payloads


@settings(max_examples=examples(300), deadline=None)
@given(mixed_frames(), st.sampled_from(sorted(BATCHES)), st.sampled_from([MSGPACK, OCTET_STREAM]))
@example([b"\x91\xcb" + bytes(8), b"\x91\xcb", b"\x91\xcb" + bytes(8)], "floats", MSGPACK)
@example([b"\x91\x91", b"\x91\xcb" + bytes(8)], "lists", MSGPACK)
@example(
    [b"\x91\x92" + (b"\xcb" + bytes(8)) * 2, b"\x91\x92\xcb" + bytes(8) + b"\xc4\x07" + bytes(7)], "any_rows", MSGPACK
)
@example([b"\x91\xc9\x00\x00\x00\x0e\x4e\x03<f4\x01\x00\x00\x00\x02\x00" + bytes(8)] * 2, "any_rows", MSGPACK)
@example([b"\x91\xcb\x7f\xf1" + bytes(6)], "float_rows", MSGPACK)
def test_a_frame_gives_each_call_what_it_would_have_alone(payloads: list[bytes], name: str, content_type: str) -> None:
    arguments = BATCHES[name]
    alone = one_by_one(arguments, content_type, payloads)
    given = together(arguments, content_type, payloads, takes_bytes=name == "octets")
    assert len(given) == len(alone)
    assert all(map(is_same_call, given, alone)), (given, alone)


# -- memory ------------------------------------------------------------------------------------------------------------

HEAD = b"\x91\xc9\x00\x00\x00"


def lying(dtype: bytes, *shape: int, elements: bytes = b"") -> bytes:
    """An array that says it is so large, and has these elements."""
    body = (
        bytes((len(dtype),))
        + dtype
        + bytes((len(shape),))
        + b"".join(size.to_bytes(4, "big") for size in shape)
        + b"\x00"
        + elements
    )
    return HEAD + bytes((len(body),)) + b"\x4e" + body


@pytest.mark.parametrize(
    "payload",
    [
        lying(b"<f8", 2**31),
        lying(b"<f8", 2**32 - 1, 2**32 - 1),
        lying(b"<f8", *(2**32 - 1,) * 32),
        lying(b"<f8", 2**32 - 1, 0),
        lying(b"<f8", 0, *(2**32 - 1,) * 31),
        lying(b"|O8", 1, elements=bytes(8)),
        lying(b"|V100000000", 0),
        lying(b"|S4294967295", 0),
        lying(b"<U1073741823", 0),
        lying(b"<f8,<f8", 1, elements=bytes(16)),
        lying(b"|b1", 2, elements=b"\x01\x02"),
        lying(b"<f4", 2, elements=bytes(9)),
        lying(b"\xff\xfe", 1),
        b"\x91\xdd\xff\xff\xff\xff",
        b"\x91\xdf\xff\xff\xff\xff",
        b"\x91\xc6\xff\xff\xff\xff",
        b"\x91\xc9\xff\xff\xff\xff\x4e",
        b'["' + b"x" * 1000 + b'"' + b',"y"' * 1000 + b"]",
        b"[" * 100_000,
    ],
)
def test_lies_cost_no_memory(payload: bytes) -> None:
    decoders: list[Callable[[bytes], Any]] = [decoder(MSGPACK, it) for it in (Any, np.ndarray, list[float])]
    for method in METHODS:
        decoders += [method.of(MSGPACK), method.of(JSON)]
    for batch in BATCHES.values():
        columns = ColumnsDecoder(batch, takes_bytes=False)
        decoders.append(lambda payload, columns=columns: raising(columns, payload))  # type: ignore[misc]
    for each in decoders:
        tracemalloc.start()
        try:
            with pytest.raises(DecodeError):
                each(payload)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000 + 100 * len(payload)


def raising(columns: ColumnsDecoder, payload: bytes) -> None:
    for piece in columns.split(MSGPACK, [payload, payload]):
        if isinstance(piece, Flaw):
            raise DecodeError(piece.failure.message)
