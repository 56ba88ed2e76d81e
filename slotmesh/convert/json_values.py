"""Arguments and results of calls as JSON values: `google.protobuf.Value` from payloads, and back.

Purpose: a `Value` is built and taken apart element by element, so both directions go in steps. `values_in` counts the
values of a JSON text before it is decoded, in steps of `STEP_BYTES`, each with passes about as fast as a copy; it stops
at the bound, and the count is meaningless for text that is not JSON, which its decoder rejects.
Invariants: no call has more than `MAX_ELEMENTS` values in either direction; arguments are counted before they get here
(`slotmesh.server.unary_requests`). Failures contain nothing of a result.
Owner: pure functions, for the servers of unary and streaming rpcs (`slotmesh.server.call_values`).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, Final, TypeVar

import msgspec
from google.protobuf import struct_pb2

from slotmesh.convert.specification import value_from_wire
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.spec.rules import show
from slotmesh.streams.limits import MAX_ELEMENTS

STEP_BYTES: Final = 128 * 1024
_ESCAPE: Final = b"\\"
_STRING: Final = b"0"
"""Placeholder of a string in the text outside of strings."""


def values_in(text: bytes, most: int) -> Generator[None, None, int]:
    """The number of values in the text, without keys; if there are more than `most`, any number above. In steps."""
    values, in_string, cut, last = 1, False, b"", b""
    for at in range(0, len(text), STEP_BYTES):
        if at:
            yield
        piece = cut + text[at : at + STEP_BYTES]
        # An escape may lie on both sides of the cut.
        cut = _ESCAPE if (len(piece) - len(piece.rstrip(_ESCAPE))) % 2 else b""
        piece = piece[: len(piece) - len(cut)]
        # An escaped quote ends no string. Both characters go, so that quotes are where strings begin and end.
        parts = piece.replace(_ESCAPE * 2, b"").replace(b'\\"', b"").split(b'"')
        outside = (_STRING if in_string else b"") + _STRING.join(parts[in_string::2]).translate(None, b" \t\r\n")
        in_string ^= len(parts) % 2 == 0
        # Each value but the first comes after a comma, or is the first in its container.
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        both = last + outside  # `[]` may lie on both sides, too
        values -= both.count(b"[]") + both.count(b"{}")
        last = outside[-1:] or last
        if values > most:
            break
    return values


T = TypeVar("T")
Steps = Generator[None, None, T]

STEP_VALUES: Final = 1_000
"""Values converted per step: some milliseconds."""
MAX_LEVELS: Final = 100
"""Nesting of messages that protobuf parsers accept: a JSON array is two levels, an object three."""
_OUTER_LEVELS: Final = 2
"""The response, and its `result`."""
_LIST_LEVELS: Final = 2
_STRUCT_LEVELS: Final = 3

_AS_BYTES: Final = "send the arguments as `payload`, and the result arrives as bytes"
NO_JSON_RESULT: Final = Failure(
    reason=Reason.INTERNAL,
    message=f"the result is not JSON that a google.protobuf.Value can hold: {_AS_BYTES}",
    executed=Executed.YES,
)
TOO_MANY_VALUES: Final = Failure(
    reason=Reason.PAYLOAD_TOO_LARGE,
    message=f"the result has more than {MAX_ELEMENTS} values, the limit of `result`: {_AS_BYTES}",
    executed=Executed.YES,
    metadata={"limit": str(MAX_ELEMENTS)},
)
TOO_DEEP_RESULT: Final = Failure(
    reason=Reason.PAYLOAD_TOO_LARGE,
    message=f"the result is nested too deep for protobuf, which takes {MAX_LEVELS} messages in one another, two of them"
    f" an array and three an object: {_AS_BYTES}",
    executed=Executed.YES,
)


def json_arguments(value: struct_pb2.Value) -> Steps[bytes | Failure]:
    """The payload of JSON arguments: an array of positional ones or a map of named ones."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return b"[]"
    if kind not in ("list_value", "struct_value"):
        return Failure(
            reason=Reason.BAD_ARGUMENTS,
            message=f"arguments: expected a list of positional arguments or a struct of named ones, got a {kind}",
            metadata={"field": "arguments"},
        )
    reading = _Reading()
    try:
        return msgspec.json.encode((yield from reading.value(value)))
    except _NotFiniteError as error:
        return Failure(
            reason=Reason.BAD_ARGUMENTS,
            message=f"{reading.shown_path()}: must be finite, is {error}: JSON has no such number; encode the arguments"
            " otherwise, and send them as `payload`",
            metadata={"field": "arguments"},
        )


def put_json_result(payload: bytes, result: struct_pb2.Value) -> Steps[Failure | None]:
    """Sets `result` to the value of the payload. Returns the failure if it does not fit."""
    if (yield from values_in(payload, MAX_ELEMENTS)) > MAX_ELEMENTS:
        return TOO_MANY_VALUES
    try:
        yield from _Writing().value(result, msgspec.json.decode(payload), _OUTER_LEVELS)
    except _TooDeepError:
        return TOO_DEEP_RESULT
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        # Their texts have parts of the result.
        return NO_JSON_RESULT
    return None


class _TooDeepError(Exception):
    """More levels than a message may have."""


class _NotFiniteError(Exception):
    """NaN or an infinity, which JSON lacks."""


class _Pace:
    """Counts values, so that each step has the same number."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP_VALUES

    def is_over(self) -> bool:
        """Counts one more value; returns whether the step is over."""
        self._left -= 1
        if self._left:
            return False
        self._left = STEP_VALUES
        return True


class _Reading(_Pace):
    """From messages to plain values."""

    __slots__ = ("_path",)

    def __init__(self) -> None:
        super().__init__()
        self._path: list[str | int] = []
        """Of the value that is read: names and indices."""

    def shown_path(self) -> str:
        """The path as messages have it: `arguments.image[3]`, shortened."""
        return show("arguments" + "".join(f"[{it}]" if isinstance(it, int) else f".{it}" for it in self._path))

    def value(self, wire: struct_pb2.Value) -> Steps[Any]:
        """The value in Python's terms."""
        match wire.WhichOneof("kind"):
            case "list_value":
                values = []
                for index, each in enumerate(wire.list_value.values):
                    if self.is_over():
                        yield
                    self._path.append(index)
                    values.append((yield from self.value(each)))
                    self._path.pop()
                return values
            case "struct_value":
                fields = {}
                for name, each in wire.struct_value.fields.items():
                    if self.is_over():
                        yield
                    self._path.append(name)
                    fields[name] = yield from self.value(each)
                    self._path.pop()
                return fields
            case "number_value" if not math.isfinite(wire.number_value):
                raise _NotFiniteError(wire.number_value)
            case _:
                return value_from_wire(wire)


class _Writing(_Pace):
    """From plain values to messages."""

    __slots__ = ()

    def value(self, wire: struct_pb2.Value, value: Any, level: int) -> Steps[None]:
        """Sets `wire`, which is `level` messages deep."""
        if level > MAX_LEVELS:
            raise _TooDeepError
        match value:
            case None:
                wire.null_value = struct_pb2.NULL_VALUE
            case bool():
                wire.bool_value = value
            case str():
                wire.string_value = value
            case list():
                values = wire.list_value.values
                wire.list_value.SetInParent()
                for each in value:
                    if self.is_over():
                        yield
                    yield from self.value(values.add(), each, level + _LIST_LEVELS)
            case dict():
                fields = wire.struct_value.fields
                wire.struct_value.SetInParent()
                for name, each in value.items():
                    if self.is_over():
                        yield
                    yield from self.value(fields[name], each, level + _STRUCT_LEVELS)
            case _:
                wire.number_value = float(value)
