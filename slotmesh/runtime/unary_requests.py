"""The request of a unary rpc: how large it may be, and how it is read.

Purpose: gRPC hands it over as bytes; what is too large is refused as such, and what could hold many elements is counted
in steps before it is parsed. The cost for a small one is a comparison.
Invariants: nothing of a request that is refused has been looked at, but its size and its elements. A call in it was not
executed.
Owner: the guards of a server, one reader for each rpc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.frame_shapes import request_shape
from slotmesh.runtime.large_frames import LargeFrame
from slotmesh.runtime.step_queue import StepQueue
from slotmesh.spec.model import MAX_DESCRIPTOR_BYTES
from slotmesh.status import to_exception
from slotmesh.wire.frame_bounds import SMALL_BYTES
from slotmesh.wire.limits import MAX_INLINE_BYTES
from slotmesh.wire.rpc_frames import MESH_SERVICES

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

OPEN_BYTES: Final = 4 * 1024
"""Of rpcs that are open to everybody."""
PLAIN_BYTES: Final = 256 * 1024
"""Of rpcs without payload: options, names, and as many ids of replicas as a reservation may exclude."""
PAYLOAD_BYTES: Final = MAX_INLINE_BYTES + 1024 * 1024
"""Of rpcs with a payload: more than the largest payload, its options and its endpoint have, so that a payload that is a
little too large is refused by its own size."""


class RequestBounds(NamedTuple):
    """Of one rpc."""

    most_bytes: int | None = PLAIN_BYTES
    """None: as large as a message of the server may be, and its elements are not counted."""
    reason: Reason = Reason.BAD_REQUEST
    """Of the failure where it is larger."""
    way_out: str = ""
    """What the caller may do instead."""


_PLAIN: Final = RequestBounds()
_OPEN: Final = RequestBounds(OPEN_BYTES)
_PAYLOAD: Final = RequestBounds(PAYLOAD_BYTES, Reason.PAYLOAD_TOO_LARGE)
_JSON: Final = _PAYLOAD._replace(way_out="; Call takes JSON as bytes, with any number of values")
_MESH: Final = RequestBounds(None)
"""For operators alone. One backend may have 100,000 values in its `user_config`, and a mesh any number of backends."""
_ENDPOINT: Final = RequestBounds(PLAIN_BYTES + MAX_DESCRIPTOR_BYTES)
"""It may have the descriptors of users' own protos."""
_BOUNDS: Final = {
    "slotmesh.v1.RouterService/Call": _PAYLOAD,
    "slotmesh.v1.RouterService/CallJson": _JSON,
    "slotmesh.v1.RouterService/CallStreaming": _PAYLOAD,
    "slotmesh.v1.SlotService/Dispatch": _PAYLOAD,
    "slotmesh.v1.SlotService/DispatchStreaming": _PAYLOAD,
    "inference.GRPCInferenceService/ModelInfer": _PAYLOAD,
    "slotmesh.v1.ControllerService/ApplyMesh": _MESH,
    "slotmesh.v1.ControllerService/ApplyEndpoint": _ENDPOINT,
    "slotmesh.v1.ControllerService/ApplyBackend": _MESH,
}


def bounds_of(method: str, *, is_open: bool = False) -> RequestBounds:
    """Of the rpc of this full name. `is_open`: nobody is asked who they are.

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
        """`message`: what requests are; None where that is not known. Large ones are counted in `turns`."""
        self._parse = parse
        self._bounds = bounds
        self._turns = turns
        self._most_bytes = bounds.most_bytes
        is_counted = bounds.most_bytes is not None
        self._shape = request_shape(message, bounds.way_out) if message is not None and is_counted else None

    async def read(self, raw: bytes) -> Any:
        """The request, parsed.

        Raises:
            SlotmeshError: it has too many bytes, or holds too much, or is no message.
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
