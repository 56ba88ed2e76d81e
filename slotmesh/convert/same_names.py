"""Messages and values whose fields have the same names: each is written once, in the proto and in the dataclass.

Invariants: a field that has another name, another unit or another meaning is given by the caller, and overrides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

MessageT = TypeVar("MessageT", bound=Message)


def message_of(kind: type[MessageT], value: Any, /, **others: Any) -> MessageT:
    """A message with the fields of a value: texts, numbers, lists and maps of these, and messages in it likewise.

    `others`: fields that the value does not have, or has in another form. None is left out.
    """
    key: Any = kind, type(value)
    if (shared := _SHARED.get(key)) is None:
        shared = _SHARED[key] = _shared(*key)
    plain, messages = shared
    given = {name: getattr(value, name) for name in plain if name not in others}
    for name, inner in messages:
        if name not in others and (held := getattr(value, name)) is not None:
            given[name] = [message_of(inner, it) for it in held] if isinstance(held, tuple) else message_of(inner, held)
    return kind(**given, **others)


def same_fields(wire: Message, names: Iterable[str]) -> dict[str, Any]:
    """The values of these fields of a message."""
    return {name: getattr(wire, name) for name in names}


_SHARED: Final = dict[Any, tuple[list[str], list[tuple[str, type[Message]]]]]()
"""By kind of message and class of value: the fields that both have, and messages among them with their kinds."""


def _shared(kind: type[Message], value: type) -> tuple[list[str], list[tuple[str, type[Message]]]]:
    plain: list[str] = []
    messages: list[tuple[str, type[Message]]] = []
    fields: list[Any] = [it for it in kind.DESCRIPTOR.fields if it.enum_type is None and hasattr(value, it.name)]
    for field in fields:
        if (inner := field.message_type) is None or inner.GetOptions().map_entry:
            plain.append(field.name)
        else:
            messages.append((field.name, GetMessageClass(inner)))
    return plain, messages
