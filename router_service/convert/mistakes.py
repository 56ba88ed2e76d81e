"""What is wrong with a request of a client, by the field.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from typing import Final

from slotmesh.errors import Failure, bad_field
from slotmesh.v1 import router_service_pb2

MAX_ENDPOINT_CHARS: Final = 1024
MAX_FEATURES: Final = 256
"""Names of optional behaviours that a client may know."""

StreamRequest = router_service_pb2.StreamCallsRequest


def opening_mistake(request: StreamRequest) -> Failure | None:
    """What is wrong with the first frame of a stream."""
    if request.WhichOneof("frame") != "open":
        return bad_field(
            "open", f"the first frame must be open, got {request.WhichOneof('frame') or 'an unknown frame'}"
        )
    opening = request.open
    if not opening.endpoint:
        return bad_field("open.endpoint", "is required")
    if len(opening.endpoint) > MAX_ENDPOINT_CHARS:
        return bad_field("open.endpoint", f"at most {MAX_ENDPOINT_CHARS} characters, got {len(opening.endpoint)}")
    if len(opening.features) > MAX_FEATURES:
        return bad_field("open.features", f"at most {MAX_FEATURES}, got {len(opening.features)}")
    return None
