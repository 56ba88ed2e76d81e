"""Arguments and results of CallJson.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

import msgspec
from google.protobuf import json_format, struct_pb2

from slotmesh.codec.json_values import value_from_wire
from slotmesh.errors import Failure, Reason


def json_arguments(value: struct_pb2.Value) -> bytes | Failure:
    """The payload of a CallJson: an array of positional arguments or a map of named ones."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return b"[]"
    if kind not in ("list_value", "struct_value"):
        return Failure(
            reason=Reason.BAD_ARGUMENTS,
            message=f"arguments: expected a list of positional arguments or a struct of named ones, got a {kind}",
            metadata={"field": "arguments"},
        )
    return msgspec.json.encode(value_from_wire(value))


def json_result(payload: bytes) -> struct_pb2.Value:
    """The result of a CallJson."""
    return json_format.Parse(payload, struct_pb2.Value())
