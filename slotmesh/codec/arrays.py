"""Arrays of numpy in msgpack: an extension with dtype and shape, then the elements as they are in memory.

The extension's data, numbers in network order:

| bytes | what |
|---|---|
| 1 | n: length of the dtype's name |
| n | the dtype as numpy writes it, ASCII, as `<f4`; one of `SENDABLE` |
| 1 | d: number of dimensions, 0 … 32 |
| 4 × d | the dimensions |
| 1 | p: 0 … 255 bytes of padding |
| p | padding, ignored; writers align elements to 8 bytes from the payload's beginning with it |
| rest | the elements in C order, product of the dimensions × size of one |

Invariants: numpy is never imported for those who do not use it. What comes from outside is checked before an array is
made of it: lengths agree exactly, so that an array is never larger than its payload, and nothing but numbers, times and
booleans comes in. Arrays that were decoded are read-only, as they share the payload's memory.
"""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

EXTENSION: Final = 78
"""The extension's type: an N."""
MAX_DIMENSIONS: Final = 32
MAX_EMPTY: Final = 65_536
"""The product of the other dimensions where one is 0: as lists, or in a loop, they cost something all the same."""
_MAX_LENGTH: Final = 2**32 - 1
_ALIGNMENT: Final = 8
EXT_32: Final = b"\xc9"
"""How arrays begin that are written here, large or small: so the head is as long, and the elements are aligned."""
_EXT_HEAD: Final = struct.Struct(">cIB")

_WIDE: Final = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_UNITS: Final = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
SENDABLE: Final = frozenset(
    {"|b1", "|i1", "|u1"}
    | {f"{order}{kind}" for order in "<>" for kind in _WIDE}
    | {f"{order}{kind}8[{unit}]" for order in "<>" for kind in "Mm" for unit in _UNITS}
)
"""Names of the dtypes that travel."""
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_LETTERS: Final[Mapping[str, Any]] = {
    "|b1": "?",
    "|i1": "b",
    "|u1": "B",
    f"{_NATIVE}i2": "h",
    f"{_NATIVE}i4": "i",
    f"{_NATIVE}i8": "q",
    f"{_NATIVE}u2": "H",
    f"{_NATIVE}u4": "I",
    f"{_NATIVE}u8": "Q",
    f"{_NATIVE}f4": "f",
    f"{_NATIVE}f8": "d",
}
"""Those that `memoryview` knows, too."""
_AS_LISTS: Final = frozenset("SU")
"""Kinds of arrays that travel as lists: strings have no size that others could rely on."""


class BrokenArray(ValueError):
    """The data of an extension is no array."""


def used_numpy() -> Any:
    """The module, if any code in this process has imported it; None otherwise."""
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "ndarray") else None  # another thread may be about to import it


def needed_numpy() -> Any:
    """The module, imported if need be; None if it is not installed."""
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def is_array(value: Any) -> bool:
    """Whether this is an array of numpy itself: subclasses may mean something else, as masked ones do."""
    numpy = used_numpy()
    if numpy is None:
        return False
    kind = type(value)
    return kind is numpy.ndarray or kind is numpy.memmap


def is_rows(value: Any) -> bool:
    """Whether this is an array of one dimension or more that can be sent: a row, or a number, for each of many."""
    return is_array(value) and value.ndim > 0 and value.dtype.str in SENDABLE


def travels_as_list(array: Array) -> bool:
    """Whether its elements are strings."""
    return array.dtype.kind in _AS_LISTS


# -- out -----------------------------------------------------------------------------------------------------------


def contiguous(array: Array) -> Array:
    """The array as it is sent: in C order, copied only if it is not.

    Raises:
        TypeError: its elements cannot be sent.
    """
    if array.dtype.str not in SENDABLE:
        raise TypeError(
            f"an array of dtype {array.dtype} cannot be sent: only numbers, booleans and times can; "
            f"convert it with astype(), or send it with tolist()"
        )
    if array.ndim > MAX_DIMENSIONS:
        raise TypeError(f"an array has at most {MAX_DIMENSIONS} dimensions when it is sent, got {array.ndim}")
    # Not `ascontiguousarray`: that makes one dimension of none.
    return array if array.flags.c_contiguous else array.copy(order="C")


def elements(array: Array) -> memoryview:
    """The bytes of a contiguous array, not copied, one by one."""
    numpy: Any = used_numpy()
    return memoryview(array.reshape(-1).view(numpy.uint8)) if array.size else memoryview(b"")


def block(array: Array) -> Any:
    """The bytes of a contiguous array, not copied, for `join`: mostly the array itself, as it is a buffer."""
    return elements(array) if array.dtype.kind in "mM" else array


@lru_cache(maxsize=1024)
def head(dtype: str, shape: tuple[int, ...], before: int) -> bytes:
    """All that comes before the elements, the extension's own head included.

    `before`: bytes of the payload that come before this.

    Raises:
        ValueError: a dimension, or all together, are larger than msgpack can say.
    """
    name = dtype.encode()
    count = prod(shape) * _itemsize(dtype)
    size = 1 + len(name) + 1 + 4 * len(shape) + 1
    padding = -(before + _EXT_HEAD.size + size) % _ALIGNMENT
    if max(shape, default=0) > _MAX_LENGTH or size + padding + count > _MAX_LENGTH:
        raise ValueError(f"an array of shape {shape} is too large for one payload")
    if not count and prod(filter(None, shape)) > MAX_EMPTY:
        raise ValueError(f"an array without elements is not sent with the shape {shape}")
    return b"".join(
        (
            _EXT_HEAD.pack(EXT_32, size + padding + count, EXTENSION),
            struct.pack(f">B{len(name)}sB{len(shape)}IB", len(name), name, len(shape), *shape, padding),
            bytes(padding),
        )
    )


def body(array: Array) -> bytes:
    """The extension's data, for a place in the payload that is not known.

    Raises:
        TypeError: the elements cannot be sent.
        ValueError: it is too large.
    """
    array = contiguous(array)
    return b"".join((head(array.dtype.str, array.shape, 0)[_EXT_HEAD.size :], block(array)))


# -- in ------------------------------------------------------------------------------------------------------------


def array_of(numpy: Any, data: memoryview) -> Array:
    """The array in an extension's data, whose memory it shares; a copy where its elements are not aligned in it.

    Raises:
        BrokenArray: it is none; the message contains the reason.
    """
    dtype, shape, offset = parse_head(data)
    try:
        array: Array = numpy.ndarray(shape, dtype_named(dtype), data, offset)
    except ValueError as error:  # no elements, but dimensions beyond all memory
        raise BrokenArray(f"an array of shape {shape} cannot be: {error}") from None
    check_elements(numpy, array)
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array


def lists_of(data: memoryview) -> Any:
    """The elements in nested lists; of an array without dimensions the element. Mostly without numpy.

    Raises: BrokenArray: the data is none; or these elements are numbers to numpy only, and this process does not use
        it.
    """
    dtype, shape, offset = parse_head(data)
    numpy = used_numpy()
    if prod(shape) and (letter := _LETTERS.get(dtype)) is not None:
        flat = data[offset:].cast(letter)
        return flat.cast("B").cast(letter, shape).tolist() if shape else flat[0]
    if numpy is None:
        raise BrokenArray(f"an array of {dtype} of shape {shape} needs numpy, and nothing here uses it")
    return array_of(numpy, data).tolist()


def lists_in(data: memoryview) -> int:
    """How many lists `lists_of` makes: dimensions of 1 and of 0 cost the payload nothing, while each list takes memory.

    Raises:
        BrokenArray: the data is no array.
    """
    _, shape, _ = parse_head(data)
    return sum(accumulate(shape[:-1], mul, initial=1)) if shape else 0


def parse_head(data: memoryview) -> tuple[str, tuple[int, ...], int]:
    """Name of the dtype, shape, and offset of the elements, whose number is checked against the shape.

    Raises:
        BrokenArray: the data contradicts itself.
    """
    try:
        (length,) = struct.unpack_from("B", data)
        name, dimensions = struct.unpack_from(f">{length}sB", data, 1)
        offset = 2 + length
        if dimensions > MAX_DIMENSIONS:
            raise BrokenArray(f"an array has at most {MAX_DIMENSIONS} dimensions, got {dimensions}")
        *shape, padding = struct.unpack_from(f">{dimensions}IB", data, offset)
    except struct.error:
        raise BrokenArray(f"an array was cut off in its head, after {len(data)} bytes") from None
    offset += 4 * dimensions + 1 + padding
    dtype = name.decode("ascii", "replace")
    if dtype not in SENDABLE:
        raise BrokenArray(f"dtype must be of numbers, booleans or times, as '<f4', got {dtype!r}")
    expected, actual = prod(shape) * _itemsize(dtype), len(data) - offset
    if expected != actual:
        raise BrokenArray(
            f"an array of {dtype} of shape {tuple(shape)} has {expected} bytes of elements, got {max(actual, 0)}"
        )
    if not expected and prod(filter(None, shape)) > MAX_EMPTY:
        raise BrokenArray(f"an array without elements cannot have the shape {tuple(shape)}: that is out of proportion")
    return dtype, tuple(shape), offset


def check_elements(numpy: Any, array: Array) -> None:
    """Raises BrokenArray for booleans that are neither 0 nor 1: numpy relies on it, even for its memory's sake."""
    if array.dtype.kind == "b" and array.size and array.view(numpy.uint8).max() > 1:
        raise BrokenArray("an array of booleans has bytes other than 0 and 1")


@cache
def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype of one of the `SENDABLE` names. Only called where numpy is used."""
    numpy: Any = used_numpy()
    dtype: np.dtype[Any] = numpy.dtype(name)
    return dtype


@cache
def _itemsize(dtype: str) -> int:
    return int(dtype[2:].partition("[")[0])
