"""The JSON form of the messages of `protos/slotmesh/v1`, which `--output json` and `yaml` print.

A field has its name in the proto. A field that is not set is null; a Timestamp is ISO 8601 in UTC; a Duration is a
number of seconds, and its name ends with `_s`; an enum value is its name without the common prefix, in the form of
`enum_word`; a map is sorted by its keys, as protobuf's own order differs from one process to the next. protobuf's
`json_format` has other forms: 64-bit integers as text, "1.500s", and no null.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import UTC, datetime
from typing import Any, Final, cast

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_HYPHENED: Final = frozenset({"EventKind"})
_LOWER: Final = frozenset({"Change", "Executed", "ServerKind"})
"""Enums whose values are words of commands, as `replica-ready` and `updated`. The others are as `READY`."""


def message_document(message: Message, *, leave_out: Container[str] = ()) -> dict[str, Any]:
    """The message as values of JSON, without the fields of these names."""
    return {
        f"{field.name}_s" if field.message_type is Duration.DESCRIPTOR else field.name: _value(message, field)
        for field in message.DESCRIPTOR.fields
        if field.name not in leave_out
    }


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        return dict(sorted(value.items())) if is_map else [_plain(field, each) for each in value]
    return None if field.has_presence and not message.HasField(field.name) else _plain(field, value)


def _plain(field: Any, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return iso_time(value)
    if isinstance(value, Duration):
        return value.ToNanoseconds() / 1e9
    if isinstance(value, Message):
        return message_document(value)
    return value if field.enum_type is None else enum_word(field.enum_type, value)


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """The name of an enum value without the common prefix. A value that only a newer server knows is its number."""
    if number not in enum.values_by_number:
        return str(number)
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    word = enum.values_by_number[number].name.removeprefix(prefix)
    if enum.name in _HYPHENED:
        return word.lower().replace("_", "-")
    return word.lower() if enum.name in _LOWER else word


def word_of(message: Message, field: str) -> str:
    """The `enum_word` of a field."""
    return enum_word(
        cast("EnumDescriptor", message.DESCRIPTOR.fields_by_name[field].enum_type), getattr(message, field)
    )


def time_of(message: Message, field: str) -> datetime | None:
    """The time in a field; None if it is not set."""
    return cast("datetime", getattr(message, field).ToDatetime(tzinfo=UTC)) if message.HasField(field) else None


def iso_time(time: Timestamp) -> str:
    return time.ToDatetime(tzinfo=UTC).isoformat()


def local_time(message: Message, field: str, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The time in a field for people, by the clock on the wall; empty if it is not set."""
    time = time_of(message, field)
    return "" if time is None else time.astimezone().strftime(form)


def local_text(iso: str | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """The same for a time in a document."""
    return "" if iso is None else datetime.fromisoformat(iso).astimezone().strftime(form)
