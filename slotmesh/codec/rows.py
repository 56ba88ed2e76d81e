"""Many payloads as one array and one array as many payloads: a row a call, in a few operations whatever their number.

Invariants: payloads become one array only where each would have become the same row by itself; where they differ in
length or in what comes before their elements, the answer is None, and they are decoded one by one. An array of rows
belongs to the caller: writable, and not shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from slotmesh.codec.arrays import (
    EXTENSION,
    BrokenArray,
    check_elements,
    contiguous,
    dtype_named,
    elements,
    head,
    parse_head,
    used_numpy,
)
from slotmesh.codec.types.array_types import ArrayType

if TYPE_CHECKING:
    from slotmesh.codec.arrays import Array

SMALL: Final = 4096
"""Bytes of a payload of which many may share the memory of one array."""
_FLOATS: Final = {0xCA: (5, ">f4"), 0xCB: (9, ">f8")}
"""What begins a float: its bytes in all, and the dtype of those behind the first."""
_EXTENSIONS: Final = {
    **{0xD4 + power: (2, 1 << power) for power in range(5)},
    0xC7: (3, 0),
    0xC8: (4, 0),
    0xC9: (6, 0),
}
"""What begins an extension: bytes of its head, and of its data where these are not in the head."""


# -- in ------------------------------------------------------------------------------------------------------------


def rows_of_bytes(payloads: Sequence[bytes], wanted: ArrayType) -> Array | None:
    """Payloads that are elements and nothing else: rows × elements."""
    numpy: Any = used_numpy()
    size = len(payloads[0])
    dtype = numpy.dtype(numpy.uint8) if wanted.dtype is None else wanted.dtype
    if size % dtype.itemsize or set(map(len, payloads)) != {size}:
        return None
    rows: Array = _matrix(numpy, payloads, size).view(dtype) if size else numpy.empty((len(payloads), 0), dtype)
    return rows if _are_sound(numpy, rows) else None


def rows_of_msgpack(payloads: Sequence[bytes], lead: bytes) -> Array | None:
    """Payloads that are `lead` and one array, one float, or one list of floats: rows × what each is."""
    numpy = used_numpy()
    first = payloads[0]
    size, begin = len(first), len(lead)
    if numpy is None or size <= begin or not first.startswith(lead) or set(map(len, payloads)) != {size}:
        return None
    marker = first[begin]
    if marker in _EXTENSIONS:
        return _rows_of_arrays(numpy, payloads, begin)
    if marker in _FLOATS:
        return _rows_of_floats(numpy, payloads, begin, ())
    head_size, count = _list_head(first, begin)
    return _rows_of_floats(numpy, payloads, begin + head_size, (count,)) if count else None


def arrays_in(rows: Array) -> list[Array] | None:
    """The rows as arrays, read-only as all that were decoded; None if they are numbers.

    They are views of the one array that holds them all, so they should be `SMALL`: who keeps one keeps them all.
    """
    if rows.ndim < 2:
        return None
    rows.flags.writeable = False
    return list(rows)


def _rows_of_arrays(numpy: Any, payloads: Sequence[bytes], begin: int) -> Array | None:
    first = payloads[0]
    head_size, count = _EXTENSIONS[first[begin]]
    begin += head_size
    if len(first) < begin or first[begin - 1] != EXTENSION:
        return None
    if (count or int.from_bytes(first[begin - head_size + 1 : begin - 1], "big")) != len(first) - begin:
        return None
    try:
        name, shape, offset = parse_head(memoryview(first)[begin:])
    except BrokenArray:
        return None
    begin += offset
    if not _begin_alike(payloads, begin):
        return None
    dtype = dtype_named(name)
    if begin == len(first):
        empty: Array = numpy.empty((len(payloads), *shape), dtype)
        return empty
    matrix = _matrix(numpy, payloads, len(first))[:, begin:]
    rows: Array = numpy.ascontiguousarray(matrix).view(dtype).reshape(len(payloads), *shape)
    return rows if _are_sound(numpy, rows) else None


def _rows_of_floats(numpy: Any, payloads: Sequence[bytes], begin: int, shape: tuple[int, ...]) -> Array | None:
    """Adjacent floats, each behind a byte that marks it as one."""
    first = payloads[0]
    if len(first) <= begin or (marker := first[begin]) not in _FLOATS:
        return None
    width, name = _FLOATS[marker]
    count = shape[0] if shape else 1
    if len(first) != begin + count * width or not _begin_alike(payloads, begin):
        return None
    floats = _matrix(numpy, payloads, len(first))[:, begin:].reshape(len(payloads), count, width)
    if (floats[:, :, 0] != marker).any():
        return None
    rows: Array = numpy.ascontiguousarray(floats[:, :, 1:]).view(name).astype(numpy.float64)
    return rows.reshape(len(payloads), *shape)


def _list_head(payload: bytes, begin: int) -> tuple[int, int]:
    """Bytes of the head of the list that begins there, and its length: 0 where there is none."""
    marker = payload[begin]
    if 0x90 <= marker < 0xA0:
        return 1, marker - 0x90
    size = {0xDC: 2, 0xDD: 4}.get(marker, 0)
    if not size or len(payload) <= begin + 1 + size:
        return 0, 0
    return 1 + size, int.from_bytes(payload[begin + 1 : begin + 1 + size], "big")


def _begin_alike(payloads: Sequence[bytes], count: int) -> bool:
    return all(map(bytes.startswith, payloads, repeat(payloads[0][:count])))


def _matrix(numpy: Any, payloads: Sequence[bytes], size: int) -> Array:
    matrix: Array = numpy.frombuffer(bytearray().join(payloads), numpy.uint8).reshape(len(payloads), size)
    return matrix


def _are_sound(numpy: Any, rows: Array) -> bool:
    try:
        check_elements(numpy, rows)
    except BrokenArray:
        return False
    return True


# -- out -----------------------------------------------------------------------------------------------------------


def bytes_of_rows(array: Array) -> list[bytes]:
    """The elements of each row, little-endian.

    Raises:
        TypeError: they cannot be sent.
    """
    array = contiguous(array)
    if array.dtype.str.startswith(">"):
        array = array.astype(array.dtype.newbyteorder("<"))
    size = array.nbytes // len(array) if len(array) else 0
    data = elements(array).tobytes()
    return [data[at : at + size] for at in range(0, len(data), size)] if size else [b""] * len(array)


def msgpack_of_rows(array: Array, lead: bytes = b"") -> list[bytes]:
    """`lead` and the row, an array itself, for each row of an array of two dimensions or more.

    Raises:
        TypeError: its elements cannot be sent.
        ValueError: they are too many.
    """
    array = contiguous(array)
    before = lead + head(array.dtype.str, array.shape[1:], len(lead))
    size = array.nbytes // len(array) if len(array) else 0
    if not size:
        return [before] * len(array)
    data, join = elements(array), b"".join
    return [join((before, data[at : at + size])) for at in range(0, array.nbytes, size)]
