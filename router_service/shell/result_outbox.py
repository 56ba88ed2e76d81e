"""Outcomes on their way to one client: gathered into frames, and kept small where the client does not read.

Purpose: the answering half of a stream. What replicas keep for a session need not be kept here as well: above
`MAX_UNREAD_BYTES` the payloads of its results are dropped, and fetched again when the client reads.
Invariants: outcomes leave in the order in which they became known, but for those that were fetched; each leaves once.
A call counts against the caller's window until its outcome was put into a frame. What a frame has brought is kept by
replicas until the client acknowledges the frame.
Owner: the client's stream.
"""

from __future__ import annotations

from collections import deque

from router_service import convert
from router_service.core.callers import Caller
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, Outcome
from router_service.core.replicas import Replica
from router_service.shell.dispatcher import Dispatcher
from slotmesh.status import to_wire
from slotmesh.telemetry.names import DIRECTION_OUT
from slotmesh.v1 import call_pb2, router_service_pb2

Response = router_service_pb2.StreamCallsResponse

MAX_FRAME_CALLS = 16_384
MAX_FRAME_BYTES = 1024 * 1024
MAX_UNREAD_BYTES = 4 * 1024 * 1024
"""Results that may wait for a client that does not read."""
MAX_UNACKED_FRAMES = 16_384
"""Of a client that never acknowledges: replicas forget by themselves what is older."""

_Kept = tuple[Replica, int, int, int]
"""Runs whose outcomes a replica keeps: the replica, its lost links when they were sent, first run id, count."""


class ResultOutbox:
    """What one client is to be told."""

    def __init__(self, caller: Caller, endpoint: str, dispatcher: Dispatcher) -> None:
        self.unread_bytes = 0
        self._caller = caller
        self._endpoint = endpoint
        self._dispatcher = dispatcher
        self._outcomes: deque[Outcome] = deque()
        self._dropped: deque[tuple[DeliverResults, int]] = deque()
        """Results without their payloads, and how many bytes these had."""
        self._fetching: set[int] = set()
        """Calls whose results were asked for again."""
        self._frame_no = 0
        self._unacked: deque[tuple[int, list[_Kept]]] = deque(maxlen=MAX_UNACKED_FRAMES)
        """Frame number, and the runs whose outcomes the frame has."""

    def __bool__(self) -> bool:
        """Whether something waits, here or to be fetched."""
        return bool(self._outcomes or self._dropped)

    def add(self, outcome: Outcome) -> None:
        """Outcomes of calls, for the next frame."""
        size = _bytes_of(outcome)
        if self._fetching and not self._fetching.isdisjoint(outcome.ids):
            self._fetching.difference_update(outcome.ids)
        elif (
            self.unread_bytes + size > MAX_UNREAD_BYTES
            and isinstance(outcome, DeliverResults)
            and self._caller.session is not None
        ):
            # Its call counts on, the bytes of its arguments do not: nobody has them any more.
            self._caller.released(0, outcome.size)
            outcome.payloads, outcome.size = (), 0
            self._dropped.append((outcome, size))
            return
        self._outcomes.append(outcome)
        self.unread_bytes += size

    def next_frame(self) -> Response | None:
        """Everything that is ready, up to the bounds of a frame; None where nothing is."""
        if not self._outcomes:
            self._fetch()
        if not self._outcomes:
            return None
        self._dispatcher.scheduler.counters.frames[DIRECTION_OUT,] += 1
        self._frame_no += 1
        response = Response()
        frame = response.results
        frame.frame_no = self._frame_no
        calls = size = request_bytes = 0
        batch: call_pb2.ResultBatch | None = None
        kept: list[_Kept] = []
        keeps = self._caller.session is not None
        while self._outcomes and calls < MAX_FRAME_CALLS and size < MAX_FRAME_BYTES:
            outcome = self._outcomes.popleft()
            calls += len(outcome.ids)
            request_bytes += outcome.size
            size += _bytes_of(outcome)
            if keeps and outcome.replica is not None:
                kept.append((outcome.replica, outcome.links, outcome.first, len(outcome.ids)))
            if isinstance(outcome, DeliverResults):
                if batch is None or batch.content_type != outcome.content_type:
                    batch = frame.batches.add(content_type=outcome.content_type)
                batch.call_ids.extend(outcome.ids)
                batch.payloads.extend(outcome.payloads)
            elif isinstance(outcome, DeliverDone):
                frame.done.extend(convert.ranges_of_ids(outcome.ids))
            else:
                frame.errors.add(call_ids=outcome.ids, failure=to_wire(outcome.failure))
        if kept:
            self._unacked.append((self._frame_no, kept))
        self.unread_bytes -= size
        self._caller.released(calls, request_bytes)
        return response

    def acknowledge(self, through_frame: int) -> None:
        """The client has all result frames up to this one: their runs need not be kept any longer."""
        unacked, forget = self._unacked, self._dispatcher.forget
        while unacked and unacked[0][0] <= through_frame:
            for kept in unacked.popleft()[1]:
                forget(*kept)

    def _fetch(self) -> None:
        """The client reads again: asks for a frame of what was dropped, one frame at a time."""
        if self._fetching:
            return
        asked: list[DeliverResults] = []
        size = 0
        while self._dropped and size < MAX_FRAME_BYTES:
            answered, nbytes = self._dropped.popleft()
            asked.append(answered)
            size += nbytes
            self._fetching.update(answered.ids)
        for answered in asked:
            self._dispatcher.fetch(self._caller, self._endpoint, answered)


def _bytes_of(outcome: Outcome) -> int:
    """What the outcome adds to a frame, near enough."""
    if isinstance(outcome, DeliverResults):
        return sum(map(len, outcome.payloads))
    return len(outcome.failure.message) if isinstance(outcome, DeliverFailure) else 0
