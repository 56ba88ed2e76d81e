"""What one router is to be told, until a frame takes it along.

Purpose: results of many runs leave as one frame; while a frame is written, the next one fills.
Invariants: within a frame the ids of one content type are together; a frame stays near `MAX_FRAME_BYTES` and below
`MAX_FRAME_CALLS`; capacity is read when the frame is built, so that it is never older than the frame's results; after
`discard` nothing is kept.
Owner: the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from replica_service import convert
from replica_service.core.capacity import Capacity
from slotmesh.errors import Failure
from slotmesh.status import to_wire
from slotmesh.v1 import call_pb2, replica_service_pb2

Response = replica_service_pb2.ExecuteResponse

MAX_FRAME_CALLS = 16_384
MAX_FRAME_BYTES = 1024 * 1024


class _Chunk:
    """Results of one content type that fit into one frame."""

    __slots__ = ("content_type", "ids", "payloads", "size")

    def __init__(self, content_type: str) -> None:
        self.content_type = content_type
        self.ids: list[int] = []
        self.payloads: list[bytes] = []
        self.size = 0


class Outbox:
    """Answers on their way to one router."""

    def __init__(self, capacity: Callable[[], Capacity]) -> None:
        """`capacity` is asked when a frame is built."""
        self._capacity = capacity
        self._wake: Callable[[], None] = _sleep
        self._chunks: deque[_Chunk] = deque()
        self._last: _Chunk | None = None
        self._failed: list[tuple[list[int], Failure]] = []
        self._done: list[tuple[int, int]] = []
        self._refused: list[tuple[list[tuple[int, int]], Failure]] = []
        self._answers: deque[replica_service_pb2.Reconciled] = deque()
        self._heartbeat: Callable[[], call_pb2.Heartbeat] | None = None
        self._capacity_due = True
        self._is_open = False
        """The first frame has left: capacity, whatever else there is."""
        self._go_away = ""
        self._frame_no = 0
        self._discards = False

    def connect(self, wake: Callable[[], None]) -> None:
        """Whom to wake when there is something."""
        self._wake = wake

    def discard(self) -> None:
        """Nobody reads any more."""
        self._discards = True
        self._wake = _sleep
        self._chunks.clear()
        self._failed.clear()
        self._refused.clear()
        self._done.clear()
        self._answers.clear()
        self._last = None

    # -- in --------------------------------------------------------------------------------------------------------

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        """Results of consecutive calls from run id `first` on, `size` bytes in all."""
        if self._discards:
            return
        count = len(payloads)
        chunk = self._last
        if (
            chunk is None
            or chunk.content_type != content_type
            or chunk.size + size > MAX_FRAME_BYTES
            or len(chunk.ids) + count > MAX_FRAME_CALLS
        ):
            if count > 1 and (size > MAX_FRAME_BYTES or count > MAX_FRAME_CALLS):
                half = count // 2
                begin = sum(map(len, payloads[:half]))
                self.results(first, payloads[:half], begin, content_type)
                self.results(first + half, payloads[half:], size - begin, content_type)
                return
            chunk = self._last = _Chunk(content_type)
            self._chunks.append(chunk)
        chunk.ids.extend(range(first, first + count))
        chunk.payloads.extend(payloads)
        chunk.size += size
        self._wake()

    def failed(self, first: int, count: int, failure: Failure) -> None:
        """Consecutive calls failed alike."""
        if self._discards:
            return
        if not self._failed or self._failed[-1][1] != failure:
            self._failed.append(([], failure))
        self._failed[-1][0].extend(range(first, first + count))
        self._wake()

    def done(self, first: int, count: int) -> None:
        """Consecutive calls that nobody waits for have ended."""
        if self._discards:
            return
        if self._done and sum(self._done[-1]) == first:
            self._done[-1] = (self._done[-1][0], self._done[-1][1] + count)
        else:
            self._done.append((first, count))
        self._wake()

    def reconciled(self, answer: replica_service_pb2.Reconciled) -> None:
        """What became of calls of sessions."""
        if not self._discards:
            self._answers.append(answer)
            self._wake()

    def heartbeat(self, beat: Callable[[], call_pb2.Heartbeat]) -> None:
        """A sign of life is due; `beat` is asked when it leaves."""
        if not self._discards:
            self._heartbeat = beat
            self._wake()

    def refused(self, first: int, count: int, failure: Failure) -> None:
        """Consecutive calls were not taken."""
        if self._discards:
            return
        if not self._refused or self._refused[-1][1] != failure:
            self._refused.append(([], failure))
        self._refused[-1][0].append((first, count))
        self._wake()

    def tell_capacity(self) -> None:
        """The router should hear of the capacity, with or without results."""
        self._capacity_due = True
        self._wake()

    def go_away(self, message: str) -> None:
        """The replica takes nothing new."""
        self._go_away = message
        self._capacity_due = True
        self._wake()

    # -- out -------------------------------------------------------------------------------------------------------

    def next_frame(self) -> Response | None:
        """The next frame of what is pending; None where nothing is."""
        if self._capacity_due and not (self._chunks and self._is_open):
            self._is_open = True
            return Response(capacity=self._capacity_to_wire())
        if self._heartbeat is not None:
            beat, self._heartbeat = self._heartbeat, None
            return Response(heartbeat=beat())
        if self._go_away:
            message, self._go_away = self._go_away, ""
            return Response(go_away=call_pb2.GoAway(message=message))
        if self._refused:
            runs, failure = self._refused.pop(0)
            return Response(
                refused=replica_service_pb2.RunsRefused(
                    runs=convert.id_ranges(runs), failure=to_wire(failure), capacity=self._capacity_to_wire()
                )
            )
        if self._answers:
            return Response(reconciled=self._answers.popleft())
        if self._chunks or self._failed or self._done:
            return self._result_frame()
        return None

    def _result_frame(self) -> Response:
        response = Response()
        frame = response.results
        self._frame_no += 1
        frame.frame_no = self._frame_no
        calls = size = 0
        while self._chunks:
            chunk = self._chunks[0]
            if calls and (calls + len(chunk.ids) > MAX_FRAME_CALLS or size + chunk.size > MAX_FRAME_BYTES):
                break
            self._chunks.popleft()
            calls += len(chunk.ids)
            size += chunk.size
            frame.batches.append(
                call_pb2.ResultBatch(call_ids=chunk.ids, payloads=chunk.payloads, content_type=chunk.content_type)
            )
        if not self._chunks:
            self._last = None
        while self._failed and calls < MAX_FRAME_CALLS:
            ids, failure = self._failed[0]
            part, rest = ids[: MAX_FRAME_CALLS - calls], ids[MAX_FRAME_CALLS - calls :]
            calls += len(part)
            frame.errors.append(call_pb2.CallErrors(call_ids=part, failure=to_wire(failure)))
            if rest:
                self._failed[0] = (rest, failure)
            else:
                self._failed.pop(0)
        frame.done.extend(convert.id_ranges(self._done[:MAX_FRAME_CALLS]))
        del self._done[:MAX_FRAME_CALLS]
        frame.capacity.CopyFrom(self._capacity_to_wire())
        return response

    def _capacity_to_wire(self) -> call_pb2.Capacity:
        self._capacity_due = False
        return convert.capacity_to_wire(self._capacity())


def _sleep() -> None:
    """Not connected yet: `connect` is followed by the first look."""
