"""Messages that differ from others in some fields, as `dataclasses.replace` makes them of dataclasses."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)


def changed(message: MessageT, **fields: Any) -> MessageT:
    """A copy with these fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name in fields:
        copy.ClearField(name)
    copy.MergeFrom(type(message)(**fields))
    return copy
