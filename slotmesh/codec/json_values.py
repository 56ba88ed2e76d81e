"""`google.protobuf.Value` and `Struct` as plain JSON values.

Invariant: protobuf carries every number as a double; integral ones up to 2^53 are meant as integers and become `int`.
"""

from __future__ import annotations

import math
from typing import Any, Final

from google.protobuf import struct_pb2

_EXACT: Final = 2.0**53
"""Above it a double no longer tells neighbouring integers apart."""


def value_from_wire(wire: struct_pb2.Value) -> Any:
    """The value in Python's terms; unset is None."""
    match wire.WhichOneof("kind"):
        case "bool_value":
            return wire.bool_value
        case "number_value":
            number = wire.number_value
            whole = math.isfinite(number) and number == math.floor(number) and abs(number) <= _EXACT
            return int(number) if whole else number
        case "string_value":
            return wire.string_value
        case "list_value":
            return [value_from_wire(value) for value in wire.list_value.values]
        case "struct_value":
            return struct_from_wire(wire.struct_value)
        case _:
            return None


def struct_from_wire(wire: struct_pb2.Struct) -> dict[str, Any]:
    """The struct as a dict."""
    return {name: value_from_wire(value) for name, value in wire.fields.items()}
