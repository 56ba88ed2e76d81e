"""What routers ask about calls by their ids."""

from __future__ import annotations

from collections.abc import Iterable

from replica_service.core.ranges import Range
from slotmesh.v1 import call_pb2, replica_service_pb2


def ranges_of(ranges: Iterable[call_pb2.IdRange]) -> list[tuple[int, int]]:
    """Ranges of ids, both ends included."""
    return [(each.first, each.last) for each in ranges]


def questions_of(frame: replica_service_pb2.Reconcile) -> list[tuple[str, int, list[Range]]]:
    """Session, epoch and calls, a session at a time."""
    return [(each.session_id, each.epoch, ranges_of(each.calls)) for each in frame.sessions]
