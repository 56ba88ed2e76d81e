"""Requests of calls that take several, on their way to one replica.

Purpose: requests of many calls leave as one frame, in turns; a large one is cut, so that nobody waits behind it.
Invariants: those of one call leave in order; a frame has little more than `MAX_REQUEST_FRAME_BYTES`. What waits here
was allowed by the replica, call by call.
Owner: the frames of the link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slotmesh.v1 import replica_service_pb2
from slotmesh.wire.rpc_frames import MAX_REQUEST_FRAME_BYTES, MAX_REQUESTS_AHEAD

Batch = replica_service_pb2.RequestBatch


class OutgoingRequests:
    """By run id."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[bytes | None]] = {}
        """None stands behind the last one. No entry where nothing waits; in the order of turns."""

    def __bool__(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    def add(self, run_id: int, requests: Sequence[bytes | None]) -> None:
        """Requests; None: there are no more."""
        waiting = self._waiting.get(run_id)
        if waiting is None:
            waiting = self._waiting[run_id] = deque()
        waiting.extend(requests)

    def discard(self, run_id: int) -> None:
        """Nobody waits for this call any more."""
        self._waiting.pop(run_id, None)

    def clear(self) -> None:
        """The link is gone."""
        self._waiting.clear()

    def take(self) -> replica_service_pb2.RequestItems:
        """The next frame. Only where something waits."""
        frame = replica_service_pb2.RequestItems()
        room = MAX_REQUEST_FRAME_BYTES
        while self._waiting and room > 0 and len(frame.batches) < MAX_REQUESTS_AHEAD:
            run_id, waiting = next(iter(self._waiting.items()))
            del self._waiting[run_id]
            room -= _fill(frame.batches.add(run_id=run_id), waiting, room)
            if waiting:
                self._waiting[run_id] = waiting  # behind the others
        return frame


def _fill(batch: Batch, waiting: deque[bytes | None], room: int) -> int:
    """Moves what fits into the batch; returns how many bytes that are."""
    size = 0
    while waiting:
        request = waiting[0]
        if request is None:
            waiting.popleft()
            batch.is_last = True
            break
        left = room - size
        if len(request) > left:
            if left > 0:
                batch.payloads.append(request[:left])
                waiting[0] = request[left:]
                batch.is_cut = True
                size = room
            break
        batch.payloads.append(request)
        waiting.popleft()
        size += len(request)
    return size
