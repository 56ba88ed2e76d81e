"""What of a message is counted before it is parsed, read from its descriptor."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor import FieldDescriptor

from slotmesh.v1 import call_pb2
from slotmesh.wire.frame_bounds import FIELDS_AN_ELEMENT, Field, Shape
from slotmesh.wire.limits import MAX_ELEMENTS, MAX_OPTIONS_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor

_NUMBERS: Final = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})
_MOST_BYTES: Final = {call_pb2.CallOptions.DESCRIPTOR.full_name: MAX_OPTIONS_BYTES}
"""Of fields of a request, by the message that they hold. Batches of a stream may have more: their calls fail."""


def shape_of(message: Descriptor) -> Shape:
    """What `too_much` looks at in frames of this kind."""
    return Shape(_fields(message, 2), _fields(message, 3))


def request_shape(message: Descriptor, way_out: str = "") -> Shape:
    """What it looks at in the request of a unary rpc: all of it. `way_out`: what its sender may do instead."""
    fields = _all_fields(message, {})
    advice = f"one request has at most {MAX_ELEMENTS} elements in all{way_out}"
    return Shape(fields, fields, advice, FIELDS_AN_ELEMENT * MAX_ELEMENTS)


@cache
def _fields(message: Descriptor, depth: int) -> Mapping[int, Field]:
    if not depth:
        return {}
    return {
        each.number: _field(each, _fields(each.message_type, depth - 1) if each.message_type else {})
        for each in message.fields
    }


def _all_fields(message: Descriptor, known: dict[str, dict[int, Field]]) -> Mapping[int, Field]:
    """Fields at any depth. `known`, by the names of messages: one that holds others of its kind is in itself."""
    if (fields := known.get(message.full_name)) is not None:
        return fields
    fields = known[message.full_name] = {}
    for each in message.fields:
        inner = each.message_type
        most = _MOST_BYTES.get(inner.full_name, 0) if inner is not None else 0
        fields[each.number] = _field(each, _all_fields(inner, known) if inner is not None else {}, most)
    return fields


def _field(field: FieldDescriptor, fields: Mapping[int, Field], most_bytes: int = 0) -> Field:
    is_column = field.is_packed and field.cpp_type in _NUMBERS
    return Field(field.name, fields, field.is_repeated, is_column, most_bytes)
