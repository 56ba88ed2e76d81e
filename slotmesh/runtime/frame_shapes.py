"""What of a message is counted before it is parsed, read from its descriptor."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor import FieldDescriptor

from slotmesh.wire.frame_bounds import Field, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor

_NUMBERS: Final = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})


def shape_of(message: Descriptor) -> Shape:
    """What `too_much` looks at in messages of this kind."""
    return Shape(_fields(message, 2), _fields(message, 3))


@cache
def _fields(message: Descriptor, depth: int) -> Mapping[int, Field]:
    if not depth:
        return {}
    return {
        each.number: Field(
            each.name,
            _fields(each.message_type, depth - 1) if each.message_type is not None else {},
            is_repeated=each.is_repeated,
            is_column=each.is_packed and each.cpp_type in _NUMBERS,
        )
        for each in message.fields
    }
