"""Options of calls from and to their message: what is declared, as it is declared.

Invariant: from the wire, only fields that are set are read; `rules` has checked the message before.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any, Final

from google.protobuf.message import Message

from slotmesh.call_options.model import NO_METADATA, OPTIONS, StatedOptions
from slotmesh.call_options.option import OptionKind, Reader
from slotmesh.v1 import call_pb2

_READ: Final[dict[OptionKind, Callable[[Any], Any]]] = {
    OptionKind.DURATION: lambda wire: wire.ToNanoseconds() / 1e9,
    OptionKind.TIME: lambda wire: wire.ToDatetime(tzinfo=UTC),
    OptionKind.METADATA: dict,
}
"""How values are read that are not what the message has."""
_READ_BY: Final = {
    reader: tuple(
        (name, each.attribute, each.has_presence, _READ.get(each.kind))
        for name, each in OPTIONS.items()
        if reader in each.read_by
    )
    for reader in Reader
}
_WRITE: Final[dict[OptionKind, Callable[[Any, Any], object]]] = {
    OptionKind.DURATION: lambda wire, value: wire.FromNanoseconds(round(value * 1e9)),
    OptionKind.TIME: lambda wire, value: wire.FromDatetime(value),
    OptionKind.METADATA: lambda wire, value: wire.update(value),
}
"""How values are written that are not what the message has."""
_WRITTEN: Final = tuple((name, each.attribute, _WRITE.get(each.kind)) for name, each in OPTIONS.items())
_STAYING: Final = tuple((name, each.has_presence) for name, each in OPTIONS.items() if each.stays)


def options_from_wire(wire: call_pb2.CallOptions, reader: Reader) -> dict[str, Any]:
    """What the message says to this reader, by the attributes of `StatedOptions`."""
    message: Message = wire  # whose methods take names that are no literals
    said: dict[str, Any] = {}
    for name, attribute, has_presence, read in _READ_BY[reader]:
        if message.HasField(name) if has_presence else getattr(wire, name):
            value = getattr(wire, name)
            said[attribute] = value if read is None else read(value)
    return said


def options_to_wire(options: StatedOptions) -> call_pb2.CallOptions:
    """The options as a message."""
    wire = call_pb2.CallOptions()
    for name, attribute, write in _WRITTEN:
        value = getattr(options, attribute)
        if write is None:
            if value:
                setattr(wire, name, value)
        elif value is not None and value is not NO_METADATA:
            write(getattr(wire, name), value)
    return wire


def for_replicas(wire: call_pb2.CallOptions, raw: bytes) -> bytes:
    """The message without what stays at the router, serialized; `raw` is all of it."""
    message: Message = wire  # as above
    staying = [
        name for name, has_presence in _STAYING if (message.HasField(name) if has_presence else getattr(wire, name))
    ]
    if not staying:
        return raw
    left: Message = call_pb2.CallOptions.FromString(raw)
    for name in staying:
        left.ClearField(name)
    return left.SerializeToString()
