"""What people who watch the mesh are told."""

from __future__ import annotations

from controller_service.convert.times import timestamp
from controller_service.core.transitions import Notice
from slotmesh.v1 import controller_service_pb2


def event_to_wire(time_s: float, notice: Notice, *, missed: int) -> controller_service_pb2.WatchEventsResponse:
    return controller_service_pb2.WatchEventsResponse(
        time=timestamp(time_s), kind=notice.kind, subject=notice.subject, message=notice.message, missed=missed
    )
