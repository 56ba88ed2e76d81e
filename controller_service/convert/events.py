"""What people who watch the mesh ask for, and are told."""

from __future__ import annotations

from collections.abc import Callable

from controller_service.convert.times import timestamp
from controller_service.core.notices import EventKind, Notice
from slotmesh.spec.model import InvalidSpec, Mistake
from slotmesh.v1 import controller_service_pb2 as pb


def event_to_wire(time_s: float, notice: Notice, cursor: str, *, missed: int) -> pb.WatchEventsResponse:
    """`time_s`: seconds since 1970."""
    return pb.WatchEventsResponse(
        time=timestamp(time_s),
        kind=pb.EventKind.ValueType(notice.kind.value),
        subject=notice.subject,
        message=notice.message,
        missed=missed,
        cursor=cursor,
    )


def wanted_notices(request: pb.WatchEventsRequest) -> Callable[[Notice], bool]:
    """Whether a watcher asked for a notice. Raises InvalidSpec where it asked for kinds that there are not."""
    known = {kind.value: kind for kind in EventKind}
    if unknown := sorted({*request.kinds} - known.keys()):
        raise InvalidSpec([Mistake("kinds", f"{unknown[0]} is no kind of events that this version knows")])
    kinds = frozenset(known[kind] for kind in request.kinds) or frozenset(EventKind)
    prefix = request.subject_prefix
    return lambda notice: notice.kind in kinds and notice.subject.startswith(prefix)
