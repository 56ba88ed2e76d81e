"""Tensors <-> the payloads of calls, which have the content type `application/x-tensors`. Pure, and without numpy.

Purpose: what replicas get of an inference, and what they give for it. Elements are copied once, and not looked at.
Invariants: a payload holds what `checks` has let in. What a replica has sent is counted before it is walked through,
and what is no map of tensors is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from slotmesh.codec.arrays import EXTENSION, BrokenArray, head, parse_head
from slotmesh.codec.byte_strings import STRINGS_EXTENSION, parse_strings, strings_head
from slotmesh.codec.tensors import MAX_TENSORS, map_head, name_head
from slotmesh.oip.datatypes import BF16, BYTES, FIXED, OF_DTYPE
from slotmesh.oip.model import MAX_NAME_BYTES, Tensor

_STRING_HEADS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
"""What begins a text, and the bytes of its length behind that."""
_EXT_HEADS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class BrokenPayload(ValueError):
    """The payload is no map of tensors."""


def payload_of(tensors: Iterable[Tensor], count: int) -> bytes:
    """The payload of a call with so many tensors, which `checks` has let in."""
    parts: list[bytes | memoryview] = [map_head(count)]
    size = len(parts[0])
    for tensor in tensors:
        key, data = name_head(tensor.name), tensor.data
        if tensor.datatype == BYTES:
            begin = strings_head(tensor.shape, len(data))
        else:
            if tensor.datatype == BF16:
                data = widened(data)
            begin = head(FIXED[tensor.datatype].dtype, tensor.shape, size + len(key))
        parts += (key, begin, data)
        size += len(key) + len(begin) + len(data)
    return b"".join(parts)


def widened(data: bytes | memoryview) -> bytes:
    """BF16 as FP32, which has all its values: two bytes of zeros below each."""
    wide = bytearray(2 * len(data))
    wide[2::4] = data[0::2]
    wide[3::4] = data[1::2]
    return bytes(wide)


def tensors_of(payload: bytes) -> list[Tensor]:
    """The tensors in the result of a call. They share its memory.

    Raises:
        BrokenPayload: it is no map of tensors.
    """
    view = memoryview(payload)
    try:
        count, at = _map_of(view)
        tensors: list[Tensor] = []
        for _ in range(count):
            name, at = _text_at(view, at)
            tensor, at = _tensor_at(name, view, at)
            tensors.append(tensor)
    except (IndexError, struct.error, UnicodeDecodeError):
        raise BrokenPayload("the result was cut off") from None
    except BrokenArray as error:
        raise BrokenPayload(str(error)) from None
    if at != len(view):
        raise BrokenPayload(f"{len(view) - at} bytes are left behind the tensors")
    return tensors


def _map_of(view: memoryview) -> tuple[int, int]:
    first = view[0]
    if 0x80 <= first < 0x90:
        count, at = first & 0x0F, 1
    elif first == 0xDE:
        count, at = int.from_bytes(view[1:3], "big"), 3
    else:
        raise BrokenPayload("the result is no map of tensors")
    if count > MAX_TENSORS:
        raise BrokenPayload(f"at most {MAX_TENSORS} tensors, got {count}")
    return count, at


def _text_at(view: memoryview, at: int) -> tuple[str, int]:
    first = view[at]
    at += 1
    if 0xA0 <= first < 0xC0:
        size = first & 0x1F
    elif (width := _STRING_HEADS.get(first)) is not None:
        size, at = int.from_bytes(view[at : at + width], "big"), at + width
    else:
        raise BrokenPayload("a tensor has no name")
    if size > MAX_NAME_BYTES or at + size > len(view):
        raise BrokenPayload(f"a name of {size} bytes")
    return str(view[at : at + size], "utf-8"), at + size


def _tensor_at(name: str, view: memoryview, at: int) -> tuple[Tensor, int]:
    first = view[at]
    if (width := _EXT_HEADS.get(first)) is not None:
        size, at = int.from_bytes(view[at + 1 : at + 1 + width], "big"), at + 1 + width
    elif (size := _FIXED_EXTS.get(first, -1)) >= 0:
        at += 1
    else:
        raise BrokenPayload(f"{name} is no tensor")
    code, begin, end = view[at], at + 1, at + 1 + size
    if end > len(view):
        raise BrokenPayload(f"{name} was cut off")
    data = view[begin:end]
    if code == STRINGS_EXTENSION:
        shape, elements = parse_strings(data)
        return Tensor(name, BYTES, shape, elements), end
    if code != EXTENSION:
        raise BrokenPayload(f"{name} is no tensor")
    dtype, shape, offset = parse_head(data)
    if (datatype := OF_DTYPE.get(dtype)) is None:
        raise BrokenPayload(f"{name} has elements of {dtype}, which the protocol lacks")
    return Tensor(name, datatype, shape, data[offset:]), end
