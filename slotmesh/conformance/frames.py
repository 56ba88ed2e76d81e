"""Frames as the cases write them, made into messages.

Purpose: proto JSON in which names stand for values that are known only when the case is played: `a` for the id of call
`a`, `B` for the address of router `B`. Payloads are text; `{abc: 16384}` is a longer one. A batch with `times: 256` is
repeated.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format

from slotmesh.conformance.record import PADDING
from slotmesh.convert.batches import ids_from_wire, ids_of_results
from slotmesh.v1 import router_service_pb2

Response = router_service_pb2.StreamCallsResponse

_IDS = frozenset({"call_ids", "call_id", "first_call_id", "first", "last"})


def padded(parts: Mapping[str, int]) -> str:
    """A long text: each part is padded to its size."""
    return "".join(part.ljust(size, PADDING) for part, size in parts.items())


def to_response(
    frame: Mapping[str, Any], id_of: Callable[[str], int], address_of: Callable[[str], str]
) -> router_service_pb2.StreamCallsResponse:
    """The message that a case's frame stands for."""

    def resolve(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            if name == "data":
                return resolve(name, padded(value))
            if "times" in value:
                times, once = value["times"], {key: item for key, item in value.items() if key != "times"}
                value = {key: item * times if isinstance(item, list) else item for key, item in once.items()}
            return {key: resolve(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [resolve(name, item) for item in value]
        if isinstance(value, str):
            if name in _IDS:
                return id_of(value)
            if name == "alternates":
                return address_of(value)
            if name in ("payloads", "data"):
                return base64.b64encode(value.encode()).decode()
        return value

    return json_format.ParseDict(resolve("", frame), Response())


def ids_of_values(frame: Response) -> list[int]:
    """The calls that have values in this frame, once for each value."""
    return [number for batch in frame.results.batches if batch.partial for number in ids_of_results(batch)]


def ids_answered(frame: Response) -> list[int]:
    """The calls that have their outcome with this frame."""
    match frame.WhichOneof("frame"):
        case "results":
            results = frame.results
            return [
                *(number for batch in results.batches if not batch.partial for number in ids_of_results(batch)),
                *(number for errors in results.errors for number in ids_from_wire(errors.calls)),
                *(number for each in results.done for number in range(each.first, each.last + 1)),
            ]
        case "rejected":
            first = frame.rejected.first_call_id
            return list(frame.rejected.call_ids) or list(range(first, first + frame.rejected.count))
        case _:
            return []
