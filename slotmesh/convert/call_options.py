"""The options of a call: validated once, by the first server that a client's request reaches, and converted.

Invariants: each error names its field; every server that clients reach finds the same errors, in the same words. What
an option may hold follows from its declared kind (`slotmesh.calls.call_options`). Only fields that are set are read,
and only of options that were validated.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any, Final

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message

from slotmesh.calls.call_options import NO_METADATA, OPTIONS, OptionKind, Reader, StatedOptions
from slotmesh.calls.result_envelopes import MAX_MARK_BYTES, MIN_MARK_BYTES
from slotmesh.codec import CONTENT_TYPES
from slotmesh.errors import Failure, Reason
from slotmesh.spec.rules import show
from slotmesh.spec.tenants import tenant_problem
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2

MAX_KEY_BYTES = 1024
"""Longest ordering key or shard key."""
MAX_METADATA_ENTRIES = 64
MAX_METADATA_BYTES = 8 * 1024
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, Unix seconds."""
_RESERVED_PREFIXES = ("slotmesh-", "grpc-")


def options_failure(wire: call_pb2.CallOptions) -> Failure | None:
    """The failure of a call with invalid options, before anything is executed; None if they are valid."""
    message: Message = wire  # whose methods take names that are no literals
    for name, has_presence, problem_of in _PROBLEMS:
        # An option that is not set is valid.
        if (message.HasField(name) if has_presence else getattr(wire, name)) and (
            problem := problem_of(getattr(wire, name))
        ):
            return bad_option(name, problem)
    if failure := _method_violation(wire.method):
        return failure
    if wire.HasField("absolute_slo") and wire.HasField("relative_slo"):
        return bad_option("absolute_slo", "set this or relative_slo, not both")
    return None


def _method_violation(method: str) -> Failure | None:
    if not method.startswith("_") or method == "__call__":
        return None
    return Failure(
        reason=Reason.METHOD_NOT_FOUND,
        message=f"options.method: {show(method)!r} is private; only public methods of a handler can be called",
        metadata={"method": show(method)},
    )


def key_problem(key: str) -> str | None:
    """Why an ordering key or a shard key is invalid."""
    size = len(key.encode())
    return f"at most {MAX_KEY_BYTES} bytes, got {size}" if size > MAX_KEY_BYTES else None


def bad_option(name: str, what: str) -> Failure:
    """The failure of calls with an invalid option."""
    return Failure(reason=Reason.BAD_REQUEST, message=f"options.{name}: {what}", metadata={"field": f"options.{name}"})


def _timestamp_problem(wire: timestamp_pb2.Timestamp) -> str | None:
    """Why a time of day is invalid: the fields hold more than the range of a Timestamp."""
    if not 0 <= wire.seconds <= _LAST_SECOND or not 0 <= wire.nanos < 10**9:
        return f"must be a time from 1970 to 9999, got {wire.seconds} s and {wire.nanos} ns since 1970"
    return None


def _duration_problem(wire: duration_pb2.Duration) -> str | None:
    """Why a duration is invalid: the fields hold more than the range of a Duration, and can be written back."""
    if wire.seconds < 0 or wire.nanos < 0:
        return f"must not be negative, got {wire.seconds} s and {wire.nanos} ns"
    if wire.seconds > MAX_DURATION_S or wire.nanos >= 10**9:
        return f"must be at most {MAX_DURATION_S} s and 999999999 ns, got {wire.seconds} s and {wire.nanos} ns"
    return None


def metadata_problem(metadata: Mapping[str, str]) -> str | None:
    """Why the metadata of a call is invalid."""
    if len(metadata) > MAX_METADATA_ENTRIES:
        return f"at most {MAX_METADATA_ENTRIES} entries, got {len(metadata)}"
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        return f"at most {MAX_METADATA_BYTES} bytes in all, got {size}"
    for key in metadata:
        if problem := metadata_key_problem(key):
            return problem
    return None


def metadata_key_problem(key: str) -> str | None:
    """Why a key of metadata is invalid."""
    if key.startswith(_RESERVED_PREFIXES) or key == "authorization" or key != key.lower() or not key:
        return f"key {show(key)!r} is reserved, empty or not lower case"
    return None


def _content_type_problem(content_type: str) -> str | None:
    return None if content_type in CONTENT_TYPES else f"{show(content_type)!r} is not one of {', '.join(CONTENT_TYPES)}"


def _count_problem(count: int) -> str | None:
    return f"must not be negative, got {count}" if count < 0 else None


def mark_problem(mark: bytes) -> str | None:
    """Why a mark is invalid."""
    if MIN_MARK_BYTES <= len(mark) <= MAX_MARK_BYTES:
        return None
    return f"must have {MIN_MARK_BYTES} to {MAX_MARK_BYTES} bytes, got {len(mark)}"


_PROBLEM_OF: Final[dict[OptionKind, Callable[[Any], str | None]]] = {
    OptionKind.CONTENT_TYPE: _content_type_problem,
    OptionKind.KEY: key_problem,
    OptionKind.TENANT: tenant_problem,
    OptionKind.DURATION: _duration_problem,
    OptionKind.TIME: _timestamp_problem,
    OptionKind.COUNT: _count_problem,
    OptionKind.METADATA: metadata_problem,
    OptionKind.MARK: mark_problem,
}
"""The check of a value, by the kind of its option. Methods have a failure of their own; any flag is valid."""
_PROBLEMS: Final = tuple(
    (name, each.has_presence, _PROBLEM_OF[each.kind]) for name, each in OPTIONS.items() if each.kind in _PROBLEM_OF
)


_READ: Final[dict[OptionKind, Callable[[Any], Any]]] = {
    OptionKind.DURATION: lambda wire: wire.ToNanoseconds() / 1e9,
    OptionKind.TIME: lambda wire: wire.ToDatetime(tzinfo=UTC),
    OptionKind.METADATA: dict,
}
"""Conversions of the kinds whose value differs from the field's."""
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
"""Conversions of the kinds whose value differs from the field's."""
_WRITTEN: Final = tuple((name, each.attribute, _WRITE.get(each.kind)) for name, each in OPTIONS.items())
_STAYING: Final = tuple((name, each.has_presence) for name, each in OPTIONS.items() if each.stays)


def options_from_wire(wire: call_pb2.CallOptions, reader: Reader) -> dict[str, Any]:
    """The options that are set and that this reader uses, by the attributes of `StatedOptions`."""
    message: Message = wire  # whose methods take names that are no literals
    values: dict[str, Any] = {}
    for name, attribute, has_presence, read in _READ_BY[reader]:
        if message.HasField(name) if has_presence else getattr(wire, name):
            value = getattr(wire, name)
            values[attribute] = value if read is None else read(value)
    return values


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
    """The message without the options that stay at the router, serialized; `raw` is the complete message."""
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
