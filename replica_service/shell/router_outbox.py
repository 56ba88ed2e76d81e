"""The messages to one router that wait for a frame.

Purpose: results of many runs are sent as one frame; while a frame is written, the next one fills, and a small one waits
briefly if more calls are about to end (`slotmesh.streams.pacing`). Large results are sent before the frame that names
them, in chunks: at most one chunk between two other frames, and several results take turns. Yielded values are sent in
order, and the end of a call after its last value.
Invariants: within a frame the ids of one content type are together; a frame stays near `MAX_FRAME_BYTES` and below
`MAX_FRAME_CALLS`; capacity is read when the frame is built, so that it is never older than the frame's results; after
`discard` nothing is kept.
Owner: the engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from replica_service.convert.reports import capacity_to_wire, lanes_stopped_to_wire, service_times_to_wire
from replica_service.convert.slots import Issuer, SlotAnswer, add_answers
from replica_service.core.call_times import ServiceTimes
from replica_service.core.permits import PermitCapacity
from replica_service.shell.outgoing_values import ChunkOwner, OutgoingEnds, OutgoingResults, OutgoingValues
from replica_service.shell.state_reports import StateCursor
from slotmesh.calls.id_ranges import Range, joined
from slotmesh.convert.batches import ranges_to_wire
from slotmesh.errors import Failure
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.status import to_wire
from slotmesh.streams.chunks import ChunkTurns, fits_whole
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAME_CALLS
from slotmesh.streams.spliced_frames import are_large, spliced
from slotmesh.transport.pump import Pacer
from slotmesh.v1 import call_pb2

Response = replica_service_pb2.ExecuteResponse
ExecuteOpened = replica_service_pb2.ExecuteOpened
_CHUNK_DATA: Final = (Response.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER)
_RESULT_PAYLOADS: Final = (
    Response.RESULTS_FIELD_NUMBER,
    call_pb2.ResultFrame.BATCHES_FIELD_NUMBER,
    call_pb2.ResultBatch.PAYLOADS_FIELD_NUMBER,
)


class Outbox:
    """The pending messages to one router."""

    def __init__(
        self,
        capacity: Callable[[], PermitCapacity],
        issuer: Issuer,
        *,
        times: ServiceTimes | None = None,
        opening: ExecuteOpened | None = None,
        state: StateCursor | None = None,
        about_to_end: Callable[[], int] = int,
        are_quick: Callable[[], bool] = bool,
    ) -> None:
        """`capacity` is called when a frame is built. `issuer` names this replica in slot tokens.

        `times`: service times to be reported. `opening`: the first frame. `state`: what the handler reports of itself.
        `about_to_end`: how many of the router's calls are, and `are_quick`: whether they are known to take little time.
        """
        self._capacity = capacity
        self._about_to_end, self._are_quick = about_to_end, are_quick
        self._times = times
        self._opening = opening or ExecuteOpened()
        self._state = state
        self._state_due = state is not None
        self._times_version = 0
        """The version of the service times that the router has."""
        self.issuer = issuer
        self._large: ChunkTurns[ChunkOwner] = ChunkTurns()
        """Results that are sent in chunks, by run id and content type."""
        self._wake: Callable[[], None] = _sleep
        self._pacer = Pacer(_sleep)
        self._batches: deque[OutgoingResults] = deque()
        self._last: OutgoingResults | None = None
        self._values = OutgoingValues(self._batches, self._large)
        self._on_values: Callable[[list[int]], None] | None = None
        self._ends = OutgoingEnds()
        self._refused: list[tuple[list[Range], Failure]] = []
        self._answers: deque[replica_service_pb2.Reconciled] = deque()
        self._stopped: list[Range] = []
        """Run ids of calls at which lanes have stopped."""
        self._slot_answers: list[tuple[int, SlotAnswer]] = []
        self._heartbeat: Callable[[], call_pb2.Heartbeat] | None = None
        self._capacity_due = True
        self._is_open = False
        """Whether the first frame was sent."""
        self._go_away: call_pb2.GoAway | None = None
        self._frame_no = 0
        self._discards = False

    def connect(self, wake: Callable[[], None], now: Callable[[], float] = time.monotonic) -> None:
        """`wake` is called when there is something to write. `now`: monotonic seconds."""
        self._wake = wake
        self._pacer = Pacer(wake, now)

    def hurry(self) -> None:
        """Sends everything without waiting for more, because the stream ends."""
        self._pacer.hurry()

    def discard(self) -> None:
        """Drops everything, because the link has ended."""
        self._discards = True
        self._wake = _sleep
        self._pacer.stop()
        self._batches.clear()
        self._refused.clear()
        self._answers.clear()
        self._stopped.clear()
        self._slot_answers.clear()
        self._large.clear()
        self._ends.clear()
        self._last = None
        self._values.clear()

    # -- in --------------------------------------------------------------------------------------------------------

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        """Adds results of consecutive calls from run id `first` on, `size` bytes in total."""
        if self._discards:
            return
        if size > CHUNK_BYTES and max(map(len, payloads)) > CHUNK_BYTES:
            self._results_one_by_one(first, payloads, content_type)
        else:
            self._join(first, payloads, size, content_type)

    def _join(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        """Adds results that leave in frames."""
        count = len(payloads)
        batch = self._last
        if batch is None or batch.content_type != content_type or not batch.has_room(count, size):
            if count > 1 and (size > MAX_FRAME_BYTES or count > MAX_FRAME_CALLS):
                half = count // 2
                begin = sum(map(len, payloads[:half]))
                self._join(first, payloads[:half], begin, content_type)
                self._join(first + half, payloads[half:], size - begin, content_type)
                return
            batch = self._last = OutgoingResults(content_type)
            self._batches.append(batch)
        batch.ids = joined(batch.ids, range(first, first + count))
        batch.payloads.extend(payloads)
        batch.size += size
        self._wake()

    def values(self, run_id: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        """Adds yielded values of a call, `size` bytes in total."""
        if self._discards:
            return
        self._values.put(run_id, payloads, size, content_type)
        self._wake()

    def take_values(self, take: Callable[[list[int]], None]) -> None:
        """Calls `take` from now on with the run ids of sent values, an id for each value."""
        self._on_values = take

    def _results_one_by_one(self, first: int, payloads: Sequence[bytes], content_type: str) -> None:
        """Some of the results are too large for a frame with others: one that nothing waits before may leave whole."""
        for run_id, payload in enumerate(payloads, first):
            size = len(payload)
            room = 0 if self._batches or self._large.rota else MAX_FRAME_BYTES
            if size <= CHUNK_BYTES or fits_whole(payload, room):
                self._join(run_id, (payload,), size, content_type)
            else:
                self._large.add((run_id, content_type), payload)
                self._wake()

    def failed(self, first: int, count: int, failure: Failure) -> None:
        """Adds consecutive calls with the same failure."""
        if self._discards:
            return
        if self._values:
            self._ends.tell(self._values.end(first, count, failure))
        else:
            self._ends.failed(first, count, failure)
        self._wake()

    def done(self, first: int, count: int) -> None:
        """Adds consecutive calls that succeeded without a result."""
        if self._discards:
            return
        if self._values:
            self._ends.tell(self._values.end(first, count, None))
        else:
            self._ends.done(first, count)
        self._wake()

    def reconciled(self, answer: replica_service_pb2.Reconciled) -> None:
        """Adds the state of sessions' calls."""
        if not self._discards:
            self._answers.append(answer)
            self._wake()

    def stopped(self, ranges: Iterable[Range]) -> None:
        """Adds calls at which lanes have stopped, by run ids, both ends included."""
        if not self._discards:
            self._stopped += ranges
            self._wake()

    def slot_answer(self, op_id: int, answer: SlotAnswer) -> None:
        """Adds the result of a slot operation."""
        if not self._discards:
            self._slot_answers.append((op_id, answer))
            self._wake()

    def heartbeat(self, beat: Callable[[], call_pb2.Heartbeat]) -> None:
        """Schedules a heartbeat; `beat` is called when it is sent."""
        if not self._discards:
            self._heartbeat = beat
            self._wake()

    def refused(self, first: int, count: int, failure: Failure) -> None:
        """Adds consecutive calls that were refused."""
        if self._discards:
            return
        if not self._refused or self._refused[-1][1] != failure:
            self._refused.append(([], failure))
        self._refused[-1][0].append((first, first + count - 1))
        self._wake()

    def tell_capacity(self) -> None:
        """Adds the capacity to the next frame, with or without results."""
        self._capacity_due = True
        self._wake()

    def announce_state(self) -> None:
        """The handler has reported something of itself."""
        self._state_due = True
        self._wake()

    def go_away(self, message: str, *, now: bool = False) -> None:
        """Reports that the replica accepts no new calls. `now`: the router should half-close."""
        self._go_away = call_pb2.GoAway(message=message)
        if now:
            self._go_away.time_left.SetInParent()
        self._capacity_due = True
        self._wake()

    # -- out -------------------------------------------------------------------------------------------------------

    def next_frame(self) -> Response | None:
        """Returns the next frame; None if nothing is pending."""
        if not self._is_open:
            self._is_open = True
            return Response(opened=self._opening, capacity=self._capacity_to_wire())
        if self._large.rota:
            return self._large.next(self._next_chunk, self._next_other)
        return self._next_other()

    def _next_chunk(self) -> Response:
        (run_id, content_type), offset, total, data, is_last = self._large.take()
        if is_last:
            ends = self._values.chunks_left(run_id, content_type, total)
            if ends is None:
                self._ends.large.append((run_id, content_type, total))
            else:
                self._ends.tell(ends)
        wire = call_pb2.Chunk(call_id=run_id, offset=offset, total=total)
        return spliced(Response(chunk=wire), _CHUNK_DATA, [data])

    def _next_other(self) -> Response | None:
        if self._slot_answers:
            return self._slots_frame()
        if self._capacity_due and not self._batches:
            return Response(capacity=self._capacity_to_wire())
        if self._heartbeat is not None or self._state_due:
            return self._next_sign()
        if self._go_away is not None:
            leave, self._go_away = self._go_away, None
            return Response(go_away=leave)
        if self._refused:
            runs, failure = self._refused.pop(0)
            refused = replica_service_pb2.RunsRefused(runs=ranges_to_wire(runs), failure=to_wire(failure))
            return Response(refused=refused, capacity=self._capacity_to_wire())
        if self._stopped:
            stopped, self._stopped = self._stopped, []
            return Response(stopped=lanes_stopped_to_wire(stopped))
        if self._answers:
            return Response(reconciled=self._answers.popleft())
        return self._next_outcomes()

    def _next_sign(self) -> Response | None:
        """Returns a heartbeat, or what the handler reports of itself."""
        if self._heartbeat is not None:
            beat, self._heartbeat = self._heartbeat, None
            return Response(heartbeat=beat())
        self._state_due = False
        state = self._state.next() if self._state is not None else None
        return self._next_other() if state is None else Response(handler_state=state)

    def _next_outcomes(self) -> Response | None:
        """Returns the frame of ended calls; changed service times are sent before it."""
        ends = self._ends
        if not (self._batches or ends.failures or ends.without_result or ends.large):
            return None
        if self._times is not None and self._times_version != self._times.version:
            self._times_version = self._times.version
            return Response(service_times=service_times_to_wire(self._times.reported))
        unanswered = self._about_to_end()
        return None if unanswered and self._holds_back(unanswered) else self._result_frame()

    def _holds_back(self, unanswered: int) -> bool:
        """Whether a small frame should wait for calls that are about to end. Values never wait."""
        ends = self._ends
        if self._values or ends.large or self._capacity_due:
            return False
        calls = sum(len(batch.ids) for batch in self._batches) + ends.calls
        if self._pacer.holds(calls, unanswered, are_quick=self._are_quick()):
            return True
        self._pacer.left()
        return False

    def _slots_frame(self) -> Response:
        answers = self._slot_answers[:MAX_FRAME_CALLS]
        del self._slot_answers[:MAX_FRAME_CALLS]
        response = Response()
        add_answers(response.slots, answers, self.issuer)
        response.capacity.CopyFrom(self._capacity_to_wire())
        return response

    def _result_frame(self) -> Response:
        response = Response()
        frame = response.results
        self._frame_no += 1
        frame.frame_no = self._frame_no
        calls = size = 0
        only = self._batches[0] if len(self._batches) == 1 and not self._ends.large else None
        beside = only.payloads if only is not None and are_large(only.payloads) else ()
        while self._batches:
            batch = self._batches[0]
            if calls and (calls + len(batch.ids) > MAX_FRAME_CALLS or size + batch.size > MAX_FRAME_BYTES):
                break
            self._batches.popleft()
            calls += len(batch.ids)
            size += batch.size
            frame.batches.append(batch.to_wire(is_apart=bool(beside)))
            if batch.is_partial:
                self._values_leave(batch)
            elif batch is self._last:
                self._last = None
        if calls and self._large.rota:
            self._large.passed(size)
        ends = self._ends
        if ends.failures or ends.without_result or ends.large:
            ends.fill(response, calls)
        response.capacity.CopyFrom(self._capacity_to_wire())
        return spliced(response, _RESULT_PAYLOADS, beside) if beside else response

    def _values_leave(self, batch: OutgoingResults) -> None:
        """They are in the frame that is being built."""
        self._ends.tell(self._values.left(batch))
        if self._on_values is not None:
            self._on_values([*batch.ids])

    def _capacity_to_wire(self) -> replica_service_pb2.Capacity:
        self._capacity_due = False
        return capacity_to_wire(self._capacity())


def _sleep() -> None:
    """Not connected yet: `connect` is followed by the first look."""
