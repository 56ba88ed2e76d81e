"""What happens to payloads that come in chunks.

Owner: the caller's stream makes them, the scheduler reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from router_service.core.callers import Caller
from router_service.core.events import RouterEvent
from slotmesh.errors import Failure
from slotmesh.wire.chunks import Payload


@dataclass(slots=True, eq=False)
class ChunkArrived(RouterEvent):
    """So many bytes of a payload that was announced have come."""

    caller: Caller
    call_id: int
    size: int


@dataclass(slots=True, eq=False)
class UploadCompleted(RouterEvent):
    """A payload that was announced is complete."""

    caller: Caller
    call_id: int
    payload: Payload


@dataclass(slots=True, eq=False)
class UploadFailed(RouterEvent):
    """A payload that was announced will never be complete."""

    caller: Caller
    call_id: int
    failure: Failure
