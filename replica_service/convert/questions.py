"""What routers ask about calls by their ids."""

from __future__ import annotations

from collections.abc import Iterator

from replica_service.convert.options import bad_request
from slotmesh.status import to_exception
from slotmesh.v1 import replica_service_pb2
from slotmesh.wire.limits import MAX_ELEMENTS
from slotmesh.wire.ranges import Range


def questions_of(frame: replica_service_pb2.Reconcile) -> list[tuple[str, int, Iterator[Range]]]:
    """Session, epoch and calls, a session at a time. Of sessions that are not known nobody need look at the calls.

    Raises:
        BadRequest: it asks about more ranges of calls than one frame may.
    """
    if (asked := sum(len(each.calls) for each in frame.sessions)) > MAX_ELEMENTS:
        problem = f"at most {MAX_ELEMENTS} ranges in one frame, got {asked}"
        raise to_exception(bad_request("reconcile.sessions.calls", problem))
    return [
        (each.session_id, each.epoch, ((calls.first, calls.last) for calls in each.calls)) for each in frame.sessions
    ]
