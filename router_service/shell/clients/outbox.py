"""Outcomes on their way to one client: gathered into frames, and bounded if the client does not read.

Purpose: the answering half of a stream. Results that replicas keep for a session need not be kept here: above
`MAX_UNREAD_BYTES`, and when all streams together hold too much (`core/limits/unread_results.py`), their payloads are
dropped, and fetched again when the client reads. A few outcomes wait for a moment if more are about to arrive
(`slotmesh.streams.pacing`).
Invariants: outcomes leave in the order in which they became known, except for fetched ones; each leaves once. A call
counts against the caller's window until its outcome was put into a frame. Replicas keep the outcomes of a frame until
the client acknowledges the frame.
Owner: the client's stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from math import inf
from typing import Final

from router_service import convert
from router_service.core import failures
from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.core.events import StreamedOutcomesLeft
from router_service.core.limits.unread_results import Unread
from router_service.core.runs import Caller
from router_service.shell.clients.result_frames import (
    DroppedResults,
    FrameResults,
    FrameTiming,
    UnacknowledgedRuns,
    add_chunked,
    add_values,
    bytes_of,
    held_by,
    results_singly,
    singly,
    values_singly,
)
from router_service.shell.clients.taken_values import Taking
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.payload_block import PayloadBlock, largest_of
from slotmesh.convert.batches import errors_to_wire, ids_to_wire
from slotmesh.status import to_wire
from slotmesh.streams.chunks import Announced, ChunkTurns, Lines, fits_whole, joined
from slotmesh.streams.features import BLOCKS, CHUNKS, EXECUTORS, TAKE_ITEMS
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAME_CALLS, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from slotmesh.streams.spliced_frames import spliced
from slotmesh.telemetry.names import DIRECTION_OUT
from slotmesh.transport.pump import Pacer
from slotmesh.v1 import call_pb2, router_service_pb2

Response = router_service_pb2.StreamCallsResponse
_CHUNK_DATA: Final = (Response.CHUNK_FIELD_NUMBER, call_pb2.Chunk.DATA_FIELD_NUMBER)
_RESULT_PAYLOADS: Final = (
    Response.RESULTS_FIELD_NUMBER,
    call_pb2.ResultFrame.BATCHES_FIELD_NUMBER,
    call_pb2.ResultBatch.PAYLOADS_FIELD_NUMBER,
)

MAX_UNREAD_BYTES = 4 * 1024 * 1024
"""Results that may wait for a client that does not read."""
MIN_DROPPED_BYTES = 512
"""Smaller results are not worth to be dropped."""


class ResultOutbox:
    """What is to be written to one client."""

    def __init__(
        self,
        caller: Caller,
        endpoint: str,
        dispatcher: Dispatcher,
        pacer: Pacer,
        unread: Unread,
        features: Collection[str] = (),
    ) -> None:
        """`unread` is what all streams hold. `features`: the client's."""
        self._reads_blocks = BLOCKS in features
        self._names_executors = EXECUTORS in features
        self._takes_chunks = CHUNKS in features
        self.taking = Taking(dispatcher, caller.streams, by_caller=TAKE_ITEMS in features)
        self._lines: Lines[Delivery] = Lines()
        """Calls with a large value under way, and what waits behind each."""
        self._large: ChunkTurns[DeliverResults | DeliverValues] = ChunkTurns()
        """Results and values on their way in chunks, each of one call."""
        self._large_bytes = 0
        self._chunked: dict[DeliverResults, int] = {}
        """Results that were sent in chunks, and their sizes."""
        self._unread_bytes = 0
        self._unread = unread
        self._leaving = 0
        """Bytes of the frame that is being written."""
        self._left_at = inf
        """When the newest frame of the stream left; infinite once it was written."""
        self._is_closed = False
        self._timing = FrameTiming(caller, pacer)
        self._caller = caller
        self._dispatcher = dispatcher
        self._outcomes: deque[tuple[Delivery, int, int]] = deque()
        """What the next frames bring: outcomes, and values of calls that go on; what each takes here, and what the
        client is to read before it may send more, in bytes."""
        self._dropped = DroppedResults(caller, endpoint, dispatcher, MAX_FRAME_BYTES)
        self._frame_no = 0
        self.unacknowledged = UnacknowledgedRuns(dispatcher)

    def __bool__(self) -> bool:
        """Whether something waits, here or to be fetched."""
        return bool(self._outcomes or self._large or self._dropped)

    @property
    def unread_bytes(self) -> int:
        """Results that wait for the client, without those of which one is always allowed."""
        return self._unread_bytes + max(0, self._large_bytes - MAX_PAYLOAD_BYTES)

    @property
    def stuck_since(self) -> float:
        """When the frame left that is being written; infinite where none is."""
        return self._left_at

    def leaves(self) -> None:
        """A frame of the stream is being written."""
        self._left_at = self._dispatcher.clock.now()

    def written(self) -> None:
        """All frames of the stream were written."""
        if self.taking.leaving:
            self.taking.written()
        self._left_at = inf
        if self._leaving:
            self._leaves(-self._leaving)
        if self._unread.is_braked:
            self._unread.written()

    def close(self) -> None:
        """The client has left: what is queued is dropped."""
        self._is_closed = True
        self._unread.left(self)
        self._leaves(-self._leaving)

    def shed(self, *, is_stuck: bool) -> None:
        """Drops results that replicas keep; those that no replica keeps are lost where the client is stuck."""
        in_session = self._caller.session is not None
        if not (in_session or is_stuck):
            return
        outcomes, self._outcomes = self._outcomes, deque()
        for outcome, held, size in outcomes:
            if not isinstance(outcome, DeliverResults) or outcome.options.streaming or size <= MIN_DROPPED_BYTES:
                self._outcomes.append((outcome, held, size))
                continue
            self._unread_bytes -= size
            self._queue(-held)
            if in_session:
                self._dropped.drop(outcome, size)
                continue
            kept = (outcome.replica, outcome.first, outcome.links)
            lost = DeliverFailure(outcome.caller, outcome.ids, failures.NOT_READ, outcome.size, *kept)
            self._append(lost, bytes_of(lost))

    def add(self, outcome: Delivery) -> None:
        """Outcomes or values of calls, for the next frame."""
        if self._is_closed:
            return
        if isinstance(outcome, DeliverValues):
            self._add_values(outcome)
            return
        if self._lines.by_call and self._lines.concern(outcome.ids):
            for each in singly(outcome):
                if not self._lines.wait(each.ids[0], each):
                    self.add(each)
            return
        size = bytes_of(outcome)
        if size > CHUNK_BYTES and isinstance(outcome, DeliverResults) and largest_of(outcome.payloads) > CHUNK_BYTES:
            for part in results_singly(outcome) if len(outcome.ids) > 1 else (outcome,):
                if (size := bytes_of(part)) > CHUNK_BYTES and not self._takes_whole(part):
                    self._add_large(part, size)
                elif size > CHUNK_BYTES:
                    self._add_results(part, size)
                else:
                    self.add(part)
            return
        self._add_results(outcome, size)

    def _takes_whole(self, outcome: DeliverResults) -> bool:
        """Whether a large result leaves in the next frame, because it fits and nothing waits before it."""
        if self._outcomes or self._large.rota:
            return False
        return fits_whole(outcome.payloads[0], min(MAX_FRAME_BYTES, self._unread.frame_bytes))

    def _add_results(self, outcome: Delivery, size: int) -> None:
        """Adds outcomes that leave in frames."""
        if self._dropped.fetching and not self._dropped.fetching.isdisjoint(outcome.ids):
            self._dropped.fetching.difference_update(outcome.ids)
        elif (
            self._unread_bytes + size > MAX_UNREAD_BYTES
            and isinstance(outcome, DeliverResults)
            and self._caller.session is not None
            and not outcome.options.streaming
        ):
            self._dropped.drop(outcome, size)
            return
        self._append(outcome, size)

    def next_frame(self) -> Response | None:
        """All that is ready, up to the bounds of a frame; None if nothing is. `written` was called before."""
        large = self._large
        return large.next(self._chunk_frame, self._result_frame) if large.rota else self._result_frame()

    def _result_frame(self) -> Response | None:
        if not self._outcomes:
            self._dropped.fetch()
        if not self._outcomes:
            return None
        # Where it is the only call, there is no other answer to wait for.
        most = self._timing.most_calls(self._outcomes, MAX_FRAME_CALLS) if self._caller.calls > 1 else MAX_FRAME_CALLS
        if not most:
            return None
        self._dispatcher.counts.client_frames[DIRECTION_OUT,] += 1
        response = Response()
        frame = response.results
        frame.frame_no = self._frame_no = self._frame_no + 1
        calls = size = request_bytes = leaving = value_bytes = 0
        whole = False
        results = FrameResults(frame, names_executors=self._names_executors)
        values: call_pb2.ResultBatch | None = None
        keeps, streams = self._caller.session is not None, self._caller.streams
        chunked, unacknowledged = self._chunked, self.unacknowledged.runs
        most_bytes = min(MAX_FRAME_BYTES, self._unread.frame_bytes)
        while self._outcomes and calls < most and size + value_bytes < most_bytes:
            outcome, held, nbytes = self._take_next(most_bytes)
            leaving += held
            if isinstance(outcome, DeliverValues):
                values = self._put_values(frame, values, outcome)
                value_bytes += sum(map(len, outcome.payloads))
                continue
            if streams:
                self.taking.ended(outcome.ids)
                self._dispatcher.post(StreamedOutcomesLeft(self._caller, outcome.ids))
            calls += len(outcome.ids)
            request_bytes += outcome.size
            size += nbytes
            if keeps and outcome.replica is not None:
                kept = (outcome.replica, outcome.links, outcome.first, len(outcome.ids))
                unacknowledged.append((self._frame_no, kept))
            if chunked and isinstance(outcome, DeliverResults) and outcome in chunked:
                results.add_chunked(outcome, chunked.pop(outcome))
            elif isinstance(outcome, DeliverResults):
                results.add(outcome)
                whole = True
            elif isinstance(outcome, DeliverDone):
                frame.done.extend(ids_to_wire(outcome.ids))
            else:
                frame.errors.append(errors_to_wire(outcome.ids, to_wire(outcome.failure)))
        beside = results.close(as_block=self._reads_blocks)
        if whole and self._large.rota:
            self._large.passed(size)
        self._unread_bytes -= size
        self._leaves(leaving)
        self._dispatcher.scheduler.released(self._caller, calls, request_bytes)
        return spliced(response, _RESULT_PAYLOADS, beside) if beside else response

    def _take_next(self, most_bytes: int) -> tuple[Delivery, int, int]:
        """What comes next, and its bytes here and in a frame; of many results those that fit, but one in any case."""
        outcome, held, nbytes = self._outcomes.popleft()
        self._queue(-held)
        if nbytes <= most_bytes or not isinstance(outcome, DeliverResults) or len(outcome.ids) == 1:
            return outcome, held, nbytes
        if type(outcome.payloads) is PayloadBlock:
            outcome.payloads = outcome.payloads.cut()
        count, size = 1, len(outcome.payloads[0])
        while (size := size + len(outcome.payloads[count])) <= most_bytes:
            count += 1
        ids, payloads, first = outcome.ids, outcome.payloads, outcome.first
        rest = replace(outcome, ids=ids[count:], payloads=payloads[count:], first=first + count)
        first_ones = replace(outcome, ids=ids[:count], payloads=payloads[:count], size=0)
        size = bytes_of(first_ones)
        left = held_by(rest, nbytes - size)
        self._outcomes.appendleft((rest, left, nbytes - size))
        self._queue(left)
        return first_ones, held_by(first_ones, size), size

    def _add_values(self, values: DeliverValues) -> None:
        """They are never dropped, and count for nothing: no more wait here than the credit of each call."""
        lines = self._lines
        if max(map(len, values.payloads)) <= CHUNK_BYTES and not (lines.by_call and lines.concern(values.ids)):
            self._append(values, 0)
            return
        for each in values_singly(values):
            (payload,) = each.payloads
            if lines.wait(each.ids[0], each):
                continue
            if len(payload) > CHUNK_BYTES and not isinstance(payload, Announced):
                if self._takes_chunks:
                    lines.begin(each.ids[0])
                    each.payloads = [Announced(len(payload))]
                    self._large.add(each, payload)
                    self._queue(len(payload))
                    continue
                each.payloads = [joined(payload)]
            self._append(each, 0)

    def _put_values(
        self, frame: call_pb2.ResultFrame, batch: call_pb2.ResultBatch | None, values: DeliverValues
    ) -> call_pb2.ResultBatch | None:
        """Adds values to a frame, to the batch where they fit. Returns the one to which the next values go."""
        self.taking.leave(values)
        large = values.payloads[0]
        if isinstance(large, Announced):
            add_chunked(frame, values, len(large), names_executors=self._names_executors)
            # Not before: two payloads of one call are never sent in chunks at the same time.
            for each in self._lines.end(values.ids[0]):
                self.add(each)
            return None
        return add_values(frame, batch, values, names_executors=self._names_executors)

    def _append(self, outcome: Delivery, size: int) -> None:
        """`size`: what the client is to read before it may send more."""
        held = held_by(outcome, size)
        self._outcomes.append((outcome, held, size))
        self._unread_bytes += size
        self._queue(held)

    def _queue(self, size: int) -> None:
        if not self._is_closed:
            self._unread.queue(self, size)

    def _leaves(self, size: int) -> None:
        self._leaving += size
        self._unread.leaving += size

    def _add_large(self, outcome: DeliverResults, size: int) -> None:
        """A large result of one call: in chunks, where the client takes them."""
        (payload,) = outcome.payloads
        was_fetched = not self._dropped.fetching.isdisjoint(outcome.ids)
        self._dropped.fetching.difference_update(outcome.ids)
        may_drop = not was_fetched and self._caller.session is not None and not outcome.options.streaming
        if self._takes_chunks:
            if self._large_bytes and self._large_bytes + size > MAX_PAYLOAD_BYTES and may_drop:
                self._dropped.drop(outcome, size)
                return
            outcome.payloads = (b"",)
            self._large.add(outcome, payload)
            self._large_bytes += size
            self._queue(size)
        elif size <= MAX_INLINE_BYTES and self._unread_bytes + size > MAX_UNREAD_BYTES and may_drop:
            self._dropped.drop(outcome, size)
        elif size <= MAX_INLINE_BYTES:
            outcome.payloads = (joined(payload),)
            self._append(outcome, size)
        else:
            failure = convert.result_too_large(size)
            kept = (outcome.replica, outcome.first, outcome.links)
            failed = DeliverFailure(outcome.caller, outcome.ids, failure, outcome.size, *kept)
            self._append(failed, bytes_of(failed))

    def _chunk_frame(self) -> Response:
        """The next chunk. Behind the last one of a result comes its outcome."""
        chunk = self._large.take()
        outcome = chunk.owner
        self._queue(-len(chunk.data))
        self._leaves(len(chunk.data))
        if chunk.is_last:
            if isinstance(outcome, DeliverValues):
                self._append(outcome, 0)
            else:
                self._large_bytes -= chunk.total
                self._chunked[outcome] = chunk.total
                self._append(outcome, 0)
        wire = call_pb2.Chunk(call_id=outcome.ids[0], offset=chunk.offset, total=chunk.total)
        return spliced(Response(chunk=wire), _CHUNK_DATA, [chunk.data])
