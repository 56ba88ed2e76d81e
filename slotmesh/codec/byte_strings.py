"""Tensors of byte strings in msgpack: an extension with a shape, then each string behind its length.

The extension's data:

| bytes | what |
|---|---|
| 1 | d: number of dimensions, 0 … 32 |
| 4 × d | the dimensions, network order |
| rest | for each element in C order: 4 bytes, its length, little-endian; then the element |

What follows the dimensions is what the Open Inference Protocol calls the raw contents of BYTES: its servers pass those
on as they are.

Invariants: elements are counted before they are walked through, at most `MAX_STRINGS`; a tensor is never larger than
its payload, but for the lists that its dimensions make, which are bounded, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, Final

from slotmesh.codec.arrays import EXT_32, MAX_DIMENSIONS, MAX_EMPTY, BrokenArray

STRINGS_EXTENSION: Final = 83
"""The extension's type: an S."""
MAX_STRINGS: Final = 65_536
"""Elements of one tensor: each is a step in Python."""
_MAX_LISTS: Final = 2 * MAX_STRINGS
_EXT_HEAD: Final = struct.Struct(">cIB")
_LENGTH: Final = struct.Struct("<I")


def strings_head(shape: Sequence[int], size: int) -> bytes:
    """All that comes before the elements, the extension's own head included. `size`: bytes of the elements."""
    dimensions = struct.pack(f">B{len(shape)}I", len(shape), *shape)
    return _EXT_HEAD.pack(EXT_32, len(dimensions) + size, STRINGS_EXTENSION) + dimensions


def joined_strings(strings: Iterable[bytes]) -> bytes:
    """The elements, each behind its length. The caller has bounded their number."""
    elements = list(strings)
    parts = [b""] * (2 * len(elements))
    parts[::2] = map(_LENGTH.pack, map(len, elements))
    parts[1::2] = elements
    return b"".join(parts)


def parse_strings(data: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """Shape and elements of an extension's data; the elements were not looked at.

    Raises:
        BrokenArray: the head contradicts itself, or promises too much.
    """
    try:
        (dimensions,) = struct.unpack_from("B", data)
        if dimensions > MAX_DIMENSIONS:
            raise BrokenArray(f"a tensor has at most {MAX_DIMENSIONS} dimensions, got {dimensions}")
        shape: tuple[int, ...] = struct.unpack_from(f">{dimensions}I", data, 1)
    except struct.error:
        raise BrokenArray(f"a tensor of byte strings was cut off in its head, after {len(data)} bytes") from None
    elements = data[1 + 4 * dimensions :]
    count = prod(shape)
    if count > MAX_STRINGS:
        raise BrokenArray(f"a tensor has at most {MAX_STRINGS} byte strings, got {count}")
    if not count and prod(filter(None, shape)) > MAX_EMPTY:
        raise BrokenArray(f"a tensor without elements cannot have the shape {shape}: that is out of proportion")
    if count * _LENGTH.size > len(elements):
        raise BrokenArray(f"{count} byte strings need {count * _LENGTH.size} bytes at least, got {len(elements)}")
    return shape, elements


def cut_strings(elements: bytes | memoryview, count: int) -> list[bytes]:
    """`count` elements, which take all of the bytes.

    Raises:
        BrokenArray: they do not.
    """
    found: list[bytes] = []
    at, end, unpack = 0, len(elements), _LENGTH.unpack_from
    for index in range(count):
        if at + 4 > end:
            raise BrokenArray(f"byte string {index} of {count}: its length was cut off, after {end} bytes")
        begin = at + 4
        at = begin + unpack(elements, at)[0]
        if at > end:
            raise BrokenArray(f"byte string {index} of {count} has {at - begin} bytes, and {end - begin} are left")
        found.append(bytes(elements[begin:at]))
    if at != end:
        raise BrokenArray(f"{end - at} bytes are left behind {count} byte strings")
    return found


def strings_of(numpy: Any, data: memoryview) -> Any:
    """The tensor in an extension's data: an array of objects, or nested lists where there is no numpy.

    Raises:
        BrokenArray: it is none; the message contains the reason.
    """
    if numpy is None:
        return string_lists(data)
    shape, elements = parse_strings(data)
    flat = numpy.empty(prod(shape), dtype=object)
    flat[:] = cut_strings(elements, len(flat))
    return flat.reshape(shape)


def string_lists(data: memoryview) -> Any:
    """The tensor as nested lists of bytes; without dimensions the element.

    Raises:
        BrokenArray: as `strings_of`.
    """
    shape, elements = parse_strings(data)
    if lists_in_strings(data) > _MAX_LISTS:
        raise BrokenArray(f"a tensor of shape {shape} would become too many lists")
    return nested(cut_strings(elements, prod(shape)), shape)


def lists_in_strings(data: memoryview) -> int:
    """How many lists `string_lists` makes.

    Raises:
        BrokenArray: the data is no tensor.
    """
    shape, _ = parse_strings(data)
    return sum(accumulate(shape[:-1], mul, initial=1)) if shape else 0


def nested(flat: list[Any], shape: Sequence[int]) -> Any:
    """Elements in C order as nested lists; without dimensions the one element."""
    if not shape:
        return flat[0]
    for size in reversed(shape[1:]):
        if not size:
            return _hollow(shape)
        flat = [flat[at : at + size] for at in range(0, len(flat), size)]
    return flat


def _hollow(shape: Sequence[int]) -> Any:
    return [_hollow(shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else []
