"""Options of calls as messages, by the names that they have in Python."""

from __future__ import annotations

from typing import Any, Final

from slotmesh.v1 import call_pb2

_OF_STREAMS: Final = {
    "no_reply": "no_reply",
    "streaming": "each_value",
    "stop_generation": "stop_generation",
    "http": "http",
}


def wire_options(**options: Any) -> call_pb2.CallOptions:
    """Those of streams are in their message."""
    of_stream = {_OF_STREAMS[name]: options.pop(name) for name in _OF_STREAMS.keys() & options.keys()}
    wire = call_pb2.CallOptions(**options)
    if any(of_stream.values()):
        wire.stream.CopyFrom(call_pb2.StreamOptions(**of_stream))
    return wire
