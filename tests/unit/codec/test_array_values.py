"""Lists and numbers -> arrays and scalars: those without elements, and those that a dtype cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import JSON, MSGPACK, ArgumentsDecoder, DecodeError, encode_arguments

WANTED: list[tuple[Any, str]] = [
    (NDArray[np.int64], "int64"),
    (NDArray[np.uint8], "uint8"),
    (NDArray[np.bool_], "bool"),
    (NDArray[np.float16], "float16"),
    (NDArray[np.float32], "float32"),
    (NDArray[np.complex64], "complex64"),
    (NDArray[np.integer], "int64"),
    (NDArray[np.unsignedinteger], "uint64"),
    (NDArray[np.floating], "float64"),
    (NDArray[np.complexfloating], "complex128"),
    (np.ndarray, "float64"),
]
EMPTY: list[tuple[Any, tuple[int, ...]]] = [
    ([], (0,)),
    ([[]], (1, 0)),
    ([[], []], (2, 0)),
    (np.empty((2, 0)), (2, 0)),
    (np.empty(0), (0,)),
]


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize(("wanted", "dtype"), WANTED, ids=[str(each[0]) for each in WANTED])
@pytest.mark.parametrize(("value", "shape"), EMPTY)
def test_a_list_without_elements_is_an_array_of_the_dtype(
    wanted: Any, dtype: str, value: Any, shape: tuple[int, ...], content_type: str
) -> None:
    def method(array: Any) -> None: ...

    method.__annotations__["array"] = wanted
    payload = encode_arguments(content_type, (value,), {})
    (array,), _ = ArgumentsDecoder.for_handler(method).decode(content_type, payload)
    assert (array.dtype.name, array.shape) == (dtype, shape)


def test_no_array_of_numbers_becomes_one_of_times() -> None:
    def method(array: NDArray[np.datetime64]) -> None: ...

    with pytest.raises(DecodeError, match="expected ndarray of datetime64"):
        ArgumentsDecoder.for_handler(method).decode(JSON, b"[[]]")


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("is_scalar", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (np.float32, 1e39),
        (np.float32, -1e39),
        (np.float16, 70_000),
        (np.float16, 70_000.0),
        (np.complex64, 1e39),
        (np.int8, 128),
        (np.uint8, -1),
        (np.int64, 2**63),
        (np.int32, 1.5),
        (np.bool_, 2),
    ],
)
def test_a_number_that_the_dtype_cannot_hold_is_refused(
    kind: type[np.generic], value: Any, is_scalar: bool, content_type: str
) -> None:
    def method(number: Any) -> None: ...

    method.__annotations__["number"] = kind if is_scalar else np.ndarray[Any, np.dtype[kind]]  # type: ignore[valid-type]
    payload = encode_arguments(content_type, (value if is_scalar else [value],), {})
    with pytest.raises(DecodeError, match=r"args\[0\]"):
        ArgumentsDecoder.for_handler(method).decode(content_type, payload)
