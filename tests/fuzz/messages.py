"""Protobuf messages out of a fuzzer's bytes, by their descriptors: what is added to the protos is in them by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.fuzz.source import Source

_DEPTH: Final = 5
"""Messages inside of one another."""
_BOUNDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_PAYLOADS: Final = (b"", b"[]", b"\x91\x01", b"\x91\xa1a", b'[{"a":1}]', b"\xc7\x04\x4e\x03<f4", b"\xff")

Words = Mapping[str, Sequence[str]]
"""Texts that mean something, by the names of fields; those of "" for all others."""


def message_from(descriptor: Descriptor, source: Source, words: Words, depth: int = _DEPTH) -> Message:
    """A message of this kind."""
    message = GetMessageClass(descriptor)()
    if not descriptor.fields:
        return message
    for _ in range(source.below(8 if depth == _DEPTH else 4)):
        field = descriptor.fields[source.below(min(len(descriptor.fields), 256))]
        _set(message, field, source, words, depth)
    return message


def _set(message: Any, field: FieldDescriptor, source: Source, words: Words, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
        entries = getattr(message, field.name)
        said = _scalar(key, source, words)
        if value.message_type is None:
            entries[said] = _scalar(value, source, words)
        elif depth:
            entries[said].MergeFrom(message_from(value.message_type, source, words, depth - 1))
    elif kind is not None:
        if depth:
            inner = message_from(kind, source, words, depth - 1)
            target = getattr(message, field.name)
            (target.add() if field.is_repeated else target).MergeFrom(inner)
            if not field.is_repeated:
                target.SetInParent()
    elif field.is_repeated:
        getattr(message, field.name).extend(_scalar(field, source, words) for _ in range(source.below(5)))
    else:
        setattr(message, field.name, _scalar(field, source, words))


def _scalar(field: FieldDescriptor, source: Source, words: Words) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return bool(source.below(2))
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return source.number()
        case FieldDescriptor.CPPTYPE_ENUM:
            known_values = field.enum_type.values if field.enum_type is not None else ()
            numbers = [value.number for value in known_values]
            return source.choice([*numbers, 99])
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return source.choice(_PAYLOADS) if source.below(2) else source.payload()
        case FieldDescriptor.CPPTYPE_STRING:
            known = words.get(field.name) or words.get("", ())
            return source.choice(known) if known and source.below(3) else source.text()
        case cpp_type:
            least, most = _BOUNDS[cpp_type]
            return min(max(source.integer(), least), most)
