"""What is wrong with a request of a client, by the field.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from typing import Final

from slotmesh.endpoint_names import endpoint_mistake
from slotmesh.errors import Failure, bad_field
from slotmesh.v1 import router_service_pb2

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
    if failure := endpoint_mistake(opening.endpoint, "open.endpoint"):
        return failure
    if len(opening.features) > MAX_FEATURES:
        return bad_field("open.features", f"at most {MAX_FEATURES}, got {len(opening.features)}")
    return None
