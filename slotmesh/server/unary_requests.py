"""The request of a unary rpc: its bounds, and how it is read.

Purpose: gRPC passes it as bytes; too large ones are refused, and the elements of large ones are counted in steps before
they are parsed. A small one costs one comparison.
Invariants: of a refused request only the size and the number of elements are inspected; no call in it was executed.
Owner: the guards of a server, one reader for each rpc.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from slotmesh.calls.result_envelopes import MESH_SERVICES
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.spec.model import MAX_DESCRIPTOR_BYTES
from slotmesh.status import to_exception
from slotmesh.streams.frame_bounds import FIELDS_AN_ELEMENT, SMALL_BYTES, Field, Shape
from slotmesh.streams.limits import MAX_ELEMENTS, MAX_INLINE_BYTES, MAX_OPTIONS_BYTES
from slotmesh.transport.duplex import LargeFrame
from slotmesh.v1 import call_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor


_NUMBERS: Final = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})
_MOST_BYTES: Final = {call_pb2.CallOptions.DESCRIPTOR.full_name: MAX_OPTIONS_BYTES}
"""Limits of fields, by the message that they contain. Batches in streams may have more: their calls fail one by one."""


def shape_of(message: Descriptor) -> Shape:
    """The shape that `too_much` checks in frames of this type."""
    return Shape(_fields(message, 2), _fields(message, 3))


def request_shape(message: Descriptor, way_out: str = "") -> Shape:
    """The shape of a whole unary request. `way_out`: the alternative for its sender."""
    fields = _all_fields(message, {})
    advice = f"one request has at most {MAX_ELEMENTS} elements in all{way_out}"
    return Shape(fields, fields, advice, FIELDS_AN_ELEMENT * MAX_ELEMENTS)


@cache
def _fields(message: Descriptor, depth: int) -> Mapping[int, Field]:
    if not depth:
        return {}
    return {
        each.number: _field(each, _fields(each.message_type, depth - 1) if each.message_type else {})
        for each in message.fields
    }


def _all_fields(message: Descriptor, known: dict[str, dict[int, Field]]) -> Mapping[int, Field]:
    """Fields at any depth. `known`, by message names, makes recursive messages refer to themselves."""
    if (fields := known.get(message.full_name)) is not None:
        return fields
    fields = known[message.full_name] = {}
    for each in message.fields:
        inner = each.message_type
        most = _MOST_BYTES.get(inner.full_name, 0) if inner is not None else 0
        fields[each.number] = _field(each, _all_fields(inner, known) if inner is not None else {}, most)
    return fields


def _field(field: FieldDescriptor, fields: Mapping[int, Field], most_bytes: int = 0) -> Field:
    is_column = field.is_packed and field.cpp_type in _NUMBERS
    return Field(field.name, fields, field.is_repeated, is_column, most_bytes)


OPEN_BYTES: Final = 4 * 1024
"""The limit of rpcs without authentication."""
PLAIN_BYTES: Final = 256 * 1024
"""The limit of rpcs without payload: options, names, and the ids of replicas that a reservation excludes."""
PAYLOAD_BYTES: Final = MAX_INLINE_BYTES + 1024 * 1024
"""The limit of rpcs with a payload: larger than the largest payload with options and endpoint, so that a slightly too
large payload is refused by its own size."""


class RequestBounds(NamedTuple):
    """The bounds of one rpc."""

    most_bytes: int | None = PLAIN_BYTES
    """None: only the server's message limit applies, and elements are not counted."""
    reason: Reason = Reason.BAD_REQUEST
    """The reason of the failure if it is larger."""
    way_out: str = ""
    """The alternative for the caller."""


_PLAIN: Final = RequestBounds()
_OPEN: Final = RequestBounds(OPEN_BYTES)
_PAYLOAD: Final = RequestBounds(PAYLOAD_BYTES, Reason.PAYLOAD_TOO_LARGE)
_CALL: Final = _PAYLOAD._replace(way_out="; `payload` takes JSON text, with any number of values")
_MESH: Final = RequestBounds(None)
"""Only for operators. A backend may have 100,000 values in its `user_config`, and a mesh any number of backends."""
_ENDPOINT: Final = RequestBounds(PLAIN_BYTES + MAX_DESCRIPTOR_BYTES)
"""Allows for the descriptors of users' own protos."""
_BOUNDS: Final = {
    "slotmesh.v1.RouterService/Call": _CALL,
    "slotmesh.v1.RouterService/CallStreaming": _CALL,
    "slotmesh.v1.RouterService/Broadcast": _CALL,
    "slotmesh.v1.SlotService/Dispatch": _CALL,
    "slotmesh.v1.SlotService/DispatchStreaming": _CALL,
    "inference.GRPCInferenceService/ModelInfer": _PAYLOAD,
    "slotmesh.v1.ControllerService/ApplyMesh": _MESH,
    "slotmesh.v1.ControllerService/ApplyEndpoint": _ENDPOINT,
    "slotmesh.v1.ControllerService/ApplyBackend": _MESH,
}


def bounds_of(method: str, *, is_open: bool = False) -> RequestBounds:
    """The bounds of the rpc with this full name. `is_open`: without authentication.

    Requests of users' own protos are payloads.
    """
    if is_open:
        return _OPEN
    return _BOUNDS.get(method, _PLAIN if method.startswith(MESH_SERVICES) else _PAYLOAD)


class RequestReader:
    """Reads the requests of one rpc."""

    __slots__ = ("_bounds", "_most_bytes", "_parse", "_shape", "_turns")

    def __init__(
        self, message: Descriptor | None, parse: Callable[[bytes], Any], bounds: RequestBounds, turns: StepQueue
    ) -> None:
        """`message`: the type of the request; None if unknown. `turns` schedules the counting of large ones."""
        self._parse = parse
        self._bounds = bounds
        self._turns = turns
        self._most_bytes = bounds.most_bytes
        is_counted = bounds.most_bytes is not None
        self._shape = request_shape(message, bounds.way_out) if message is not None and is_counted else None

    async def read(self, raw: bytes) -> Any:
        """The parsed request.

        Raises:
            SlotmeshError: it is too large, has too many elements, or is invalid.
        """
        if self._most_bytes is not None and len(raw) > self._most_bytes:
            raise to_exception(self._too_large(len(raw)))
        if self._shape is None or len(raw) <= SMALL_BYTES:
            return self._parse(raw)
        return await LargeFrame(raw, self._shape, self._parse, self._turns, executed=Executed.NO).message()

    def _too_large(self, size: int) -> Failure:
        most = self._bounds.most_bytes
        return Failure(
            reason=self._bounds.reason,
            message=f"the request has {size} bytes; at most {most} bytes are allowed here",
            metadata={"actual": str(size), "limit": str(most)},
        )
