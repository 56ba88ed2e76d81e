"""The options of a call: validated once, by the first server that a client's request reaches, and converted.

Invariants: each error names its field; every server that clients reach finds the same errors, in the same words. What
an option may hold follows from its declared kind (`slotmesh.calls.call_options`). Only fields that are set are read,
and only of options that were validated.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, Final

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message

from slotmesh.calls.call_options import NO_METADATA, OPTIONS, CallRpc, Option, OptionKind, Reader, StatedOptions
from slotmesh.calls.prefix_hashes import MAX_PREFIX_BLOCKS
from slotmesh.calls.result_envelopes import MAX_MARK_BYTES, MIN_MARK_BYTES
from slotmesh.codec import CONTENT_TYPES
from slotmesh.errors import Failure, Reason
from slotmesh.spec.option_rules import key_problem, metadata_problem
from slotmesh.spec.rules import show
from slotmesh.spec.tenants import tenant_problem
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2

_LAST_SECOND = 253_402_300_799
"""The end of the year 9999, Unix seconds."""


def options_failure(wire: call_pb2.CallOptions) -> Failure | None:
    """The failure of a call with invalid options, before anything is executed; None if they are valid."""
    for each, problem_of in _PROBLEMS:
        # An option that is not set is valid.
        if _is_set(wire, each) and (problem := problem_of(getattr(_owner(wire, each), each.name))):
            return bad_option(each.path, problem)
    return _method_violation(wire.method)


def refused_option(wire: call_pb2.CallOptions, rpc: CallRpc) -> Failure | None:
    """The failure of a request with an option that has no effect on its rpc; None if each one has."""
    if wire.HasField("stream") and rpc is not CallRpc.STREAM_CALLS:
        path = next((each.path for each in OPTIONS.values() if each.is_of_streams and _is_set(wire, each)), "stream")
        return bad_option(path, f"only {CallRpc.STREAM_CALLS.value} has this option; leave `stream` unset")
    for each in _REFUSED[rpc]:
        if _is_set(wire, each):
            return bad_option(each.path, f"has no effect on {rpc.value}; leave it unset")
    return None


def _owner(wire: call_pb2.CallOptions, option: Option) -> Message:
    """The message that has the option; as a `Message`, its methods take names that are no literals."""
    return wire.stream if option.is_of_streams else wire


def _is_set(wire: call_pb2.CallOptions, option: Option) -> bool:
    owner = _owner(wire, option)
    return owner.HasField(option.name) if option.has_presence else bool(getattr(owner, option.name))


def _method_violation(method: str) -> Failure | None:
    if not method.startswith("_") or method == "__call__":
        return None
    return Failure(
        reason=Reason.METHOD_NOT_FOUND,
        message=f"options.method: {show(method)!r} is private; only public methods of a handler can be called",
        metadata={"method": show(method)},
    )


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


def _content_type_problem(content_type: str) -> str | None:
    return None if content_type in CONTENT_TYPES else f"{show(content_type)!r} is not one of {', '.join(CONTENT_TYPES)}"


def _count_problem(count: int) -> str | None:
    return f"must not be negative, got {count}" if count < 0 else None


def mark_problem(mark: bytes) -> str | None:
    """Why a mark is invalid."""
    if MIN_MARK_BYTES <= len(mark) <= MAX_MARK_BYTES:
        return None
    return f"must have {MIN_MARK_BYTES} to {MAX_MARK_BYTES} bytes, got {len(mark)}"


def blocks_problem(blocks: Sequence[int]) -> str | None:
    """Why the hashes of a prompt's blocks are invalid."""
    return f"at most {MAX_PREFIX_BLOCKS} hashes, got {len(blocks)}" if len(blocks) > MAX_PREFIX_BLOCKS else None


_PROBLEM_OF: Final[dict[OptionKind, Callable[[Any], str | None]]] = {
    OptionKind.CONTENT_TYPE: _content_type_problem,
    OptionKind.KEY: key_problem,
    OptionKind.TENANT: tenant_problem,
    OptionKind.DURATION: _duration_problem,
    OptionKind.TIME: _timestamp_problem,
    OptionKind.COUNT: _count_problem,
    OptionKind.METADATA: metadata_problem,
    OptionKind.MARK: mark_problem,
    OptionKind.BLOCKS: blocks_problem,
}
"""The check of a value, by the kind of its option. Methods have a failure of their own; any flag is valid."""
_PROBLEMS: Final = tuple((each, _PROBLEM_OF[each.kind]) for each in OPTIONS.values() if each.kind in _PROBLEM_OF)
_REFUSED: Final = {
    rpc: tuple(each for each in OPTIONS.values() if rpc not in each.rpcs and not each.is_of_streams) for rpc in CallRpc
}
"""Options of calls that have no effect on an rpc."""


_READ: Final[dict[OptionKind, Callable[[Any], Any]]] = {
    OptionKind.DURATION: lambda wire: wire.ToNanoseconds() / 1e9,
    OptionKind.TIME: lambda wire: wire.ToDatetime(tzinfo=UTC),
    OptionKind.METADATA: dict,
    OptionKind.BLOCKS: tuple,
}
"""Conversions of the kinds whose value differs from the field's."""
_READ_BY: Final = {
    reader: tuple((each, _READ.get(each.kind)) for each in OPTIONS.values() if reader in each.read_by)
    for reader in Reader
}
_WRITE: Final[dict[OptionKind, Callable[[Any, Any], object]]] = {
    OptionKind.DURATION: lambda wire, value: wire.FromNanoseconds(round(value * 1e9)),
    OptionKind.TIME: lambda wire, value: wire.FromDatetime(value),
    OptionKind.METADATA: lambda wire, value: wire.update(value),
    OptionKind.BLOCKS: lambda wire, value: wire.extend(value),
}
"""Conversions of the kinds whose value differs from the field's."""
_WRITTEN: Final = {
    rpc: tuple((each, _WRITE.get(each.kind)) for each in OPTIONS.values() if rpc in each.rpcs) for rpc in CallRpc
}
_STAYING: Final = tuple(each for each in OPTIONS.values() if each.stays)


def options_from_wire(wire: call_pb2.CallOptions, reader: Reader) -> dict[str, Any]:
    """The options that are set and that this reader uses, by the attributes of `StatedOptions`."""
    values: dict[str, Any] = {}
    for each, read in _READ_BY[reader]:
        if _is_set(wire, each):
            value = getattr(_owner(wire, each), each.name)
            values[each.attribute] = value if read is None else read(value)
    return values


def options_to_wire(options: StatedOptions, rpc: CallRpc) -> call_pb2.CallOptions:
    """The options that have an effect on this rpc, as a message."""
    wire = call_pb2.CallOptions()
    for each, write in _WRITTEN[rpc]:
        value = getattr(options, each.attribute)
        if write is None:
            if value:
                setattr(_owner(wire, each), each.name, value)
        elif value is not None and value is not NO_METADATA:
            write(getattr(wire, each.name), value)
    return wire


def for_replicas(wire: call_pb2.CallOptions, raw: bytes) -> bytes:
    """The message without the options that stay at the router, serialized; `raw` is the complete message."""
    staying = [each.name for each in _STAYING if _is_set(wire, each)]
    if not staying:
        return raw
    left: Message = call_pb2.CallOptions.FromString(raw)
    for name in staying:
        left.ClearField(name)
    return left.SerializeToString()
