"""The parts of an outbox's frames of results: batches, executors, sizes, timing, dropped results and acknowledgements.

Purpose: `FrameResults` builds the batches of a frame. Executors are given in columns, for stretches of neighbouring
calls, to clients that want them: so replicas that answer in turn split no batch. The functions split deliveries of
several calls into single ones, and compute the bytes of an outcome in a frame and in memory.
Owner: the outbox of a client's results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from typing import Final, cast

from router_service.core.commands import DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.core.events import ResultsRequested
from router_service.core.limits.capacity import KnownReplica
from router_service.core.limits.unread_results import CALL_BYTES
from router_service.core.runs import Caller
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.id_ranges import joined
from slotmesh.calls.payload_block import PayloadBlock, concatenated, nbytes_of
from slotmesh.convert.batches import write, write_ids
from slotmesh.streams.chunks import Announced
from slotmesh.streams.pacing import COUNTED_FRAMES, most_calls
from slotmesh.streams.spliced_frames import are_large
from slotmesh.transport.pump import Pacer
from slotmesh.v1 import call_pb2


class DroppedResults:
    """Results of one client, in order, whose payloads were dropped because it did not read.

    Replicas keep them, and are asked for them when the client reads again.
    """

    def __init__(self, caller: Caller, endpoint: str, dispatcher: Dispatcher, fetch_bytes: int) -> None:
        """`fetch_bytes` are asked for at a time."""
        self._caller = caller
        self._endpoint = endpoint
        self._dispatcher = dispatcher
        self._fetch_bytes = fetch_bytes
        self._dropped: deque[tuple[DeliverResults, int]] = deque()
        """Results without their payloads, and how many bytes these had."""
        self.fetching: set[int] = set()
        """Calls whose results were asked for again."""

    def __bool__(self) -> bool:
        """Whether something was dropped, and not asked for."""
        return bool(self._dropped)

    def drop(self, outcome: DeliverResults, size: int) -> None:
        """The call still counts in the window, the bytes of its arguments do not: they are freed."""
        self._dispatcher.scheduler.released(self._caller, 0, outcome.size)
        outcome.payloads, outcome.size = (), 0
        self._dropped.append((outcome, size))

    def fetch(self) -> None:
        """The client reads again: asks for a frame of what was dropped, one frame at a time."""
        if self.fetching:
            return
        asked: list[DeliverResults] = []
        size = 0
        while self._dropped and size < self._fetch_bytes:
            answered, nbytes = self._dropped.popleft()
            asked.append(answered)
            size += nbytes
            self.fetching.update(answered.ids)
        for answered in asked:
            self._dispatcher.post(ResultsRequested(self._caller, self._endpoint, answered))


MAX_RUNS = 16_384
"""Of a client that never acknowledges: replicas forget by themselves what is older."""

KeptRuns = tuple[KnownReplica, int, int, int]
"""Runs whose outcomes a replica keeps: the replica, its lost links when they were sent, first run id, count."""


class UnacknowledgedRuns:
    """Runs whose outcomes were sent to one client, in the order of frames.

    Replicas keep their outcomes until the client acknowledges the frame.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.runs: deque[tuple[int, KeptRuns]] = deque(maxlen=MAX_RUNS)
        """Runs, and the number of the frame that had their outcomes."""

    def acknowledge(self, through_frame: int) -> None:
        """The client has all result frames up to this one: their runs need not be kept any longer."""
        runs, forget = self.runs, self._dispatcher.links.forget
        while runs and runs[0][0] <= through_frame:
            forget(*runs.popleft()[1])


def values_singly(values: DeliverValues) -> Iterator[DeliverValues]:
    """The same, a value each."""
    for call_id, run_id, payload in zip(values.ids, values.run_ids, values.payloads, strict=True):
        yield replace(values, ids=[call_id], run_ids=[run_id], payloads=[payload])


def singly(delivery: Delivery) -> Iterator[Delivery]:
    """The same, a call or a value each. The first carries what the window gets back."""
    if isinstance(delivery, DeliverValues):
        yield from values_singly(delivery)
        return
    for at in range(len(delivery.ids)):
        first = delivery.first + at if delivery.first else 0
        size = 0 if at else delivery.size
        part = replace(delivery, ids=delivery.ids[at : at + 1], size=size, first=first)
        if isinstance(part, DeliverResults):
            part.payloads = part.payloads[at : at + 1]
        yield part


def results_singly(outcome: DeliverResults) -> Iterator[DeliverResults]:
    """The same, a call each."""
    for at, payload in enumerate(outcome.payloads):
        size = 0 if at else outcome.size
        yield replace(outcome, ids=outcome.ids[at : at + 1], payloads=(payload,), size=size, first=outcome.first + at)


ID_BYTES: Final = 40
"""What an id takes in a list."""


def bytes_of(outcome: Delivery) -> int:
    """What the outcome adds to a frame, near enough. Values are counted by credits."""
    if isinstance(outcome, DeliverResults):
        return nbytes_of(outcome.payloads)
    return len(outcome.failure.message) if isinstance(outcome, DeliverFailure) else 0


def held_by(outcome: Delivery, nbytes: int) -> int:
    """Bytes of memory for the outcome, which adds `nbytes` to a frame. Payloads in chunks are counted separately."""
    if isinstance(outcome, DeliverResults):
        return CALL_BYTES * len(outcome.ids) + nbytes
    if isinstance(outcome, DeliverValues):
        size = CALL_BYTES * len(outcome.ids)
        return size if isinstance(outcome.payloads[0], Announced) else size + sum(map(len, outcome.payloads))
    # However many calls have failed alike: they are one object, and most often a range.
    return CALL_BYTES + (0 if isinstance(outcome.ids, range) else ID_BYTES * len(outcome.ids)) + nbytes


class FrameTiming:
    """When a frame of results leaves: a few outcomes wait for a moment if more are about to arrive.

    `slotmesh.streams.pacing` has the reasoning.
    """

    def __init__(self, caller: Caller, pacer: Pacer) -> None:
        self._caller = caller
        self._pacer = pacer

    def most_calls(self, outcomes: Sequence[tuple[Delivery, int, int]], most: int) -> int:
        """How many calls the next frame may end, at most `most`; 0 where those that have ended better wait for others.

        Values never wait. The frame leaves where it may bring something.
        """
        ended = sum([len(each.ids) for each, _, _ in outcomes if not isinstance(each, DeliverValues)])
        unanswered = self._caller.calls - ended
        if not any(isinstance(each, DeliverValues) for each, _, _ in outcomes):
            (newest, _, _), left, are_quick = outcomes[-1], unanswered, False
            if isinstance(newest, DeliverResults) and newest.replica.is_quick(newest.options.method):
                left, are_quick = self._caller.count_quick(newest.replica.is_quick, ended * COUNTED_FRAMES), True
            if self._pacer.holds(ended, left, are_quick=are_quick):
                return 0
        self._pacer.left()
        return min(most, most_calls(ended, unanswered))


class FrameResults:
    """The results of one frame: a batch for each content type, until all that the frame has of them are known."""

    __slots__ = ("_frame", "_names_executors", "_newest", "_open")

    def __init__(self, frame: call_pb2.ResultFrame, *, names_executors: bool) -> None:
        self._frame = frame
        self._names_executors = names_executors
        self._open: list[_OpenBatch] = []
        self._newest: _OpenBatch | None = None

    def add(self, results: DeliverResults) -> None:
        """Adds results, none of which leaves in chunks."""
        batch = self._newest
        if batch is None or batch.wire.content_type != results.content_type:
            batch = self._newest = _OpenBatch(self._frame.batches.add(content_type=results.content_type))
            self._open.append(batch)
        if self._names_executors:
            name_executor(batch.wire, results, batch.calls)
        batch.ids = joined(batch.ids, results.ids)
        batch.parts.append(results.payloads)
        batch.calls += len(results.ids)

    def add_chunked(self, results: DeliverResults, size: int) -> None:
        """Adds the result of a call, `size` bytes, that was sent in chunks."""
        add_chunked(self._frame, results, size, names_executors=self._names_executors)
        self._newest = None

    def close(self, *, as_block: bool) -> Sequence[bytes]:
        """Writes ids and payloads. `as_block`: the client reads blocks.

        Returns the payloads that are to be spliced into the only batch of the frame.
        """
        for batch in self._open:
            write_ids(batch.wire, batch.ids)
            payloads = cast("Sequence[bytes]", concatenated(batch.parts))
            if len(self._frame.batches) == 1 and type(payloads) is not PayloadBlock and are_large(payloads):
                return payloads
            write(batch.wire, payloads, as_block=as_block and type(payloads) is PayloadBlock)
        return ()


class _OpenBatch:
    __slots__ = ("calls", "ids", "parts", "wire")

    def __init__(self, wire: call_pb2.ResultBatch) -> None:
        self.wire = wire
        self.calls = 0
        self.ids: Sequence[int] = ()
        self.parts: list[Sequence[Sized]] = []


def add_chunked(
    frame: call_pb2.ResultFrame, what: DeliverResults | DeliverValues, size: int, *, names_executors: bool
) -> None:
    """Adds a batch for a payload of `size` bytes that was sent in chunks."""
    batch = frame.batches.add(call_ids=what.ids, chunked_sizes=[size], content_type=what.content_type)
    batch.partial = isinstance(what, DeliverValues)
    if names_executors:
        name_executor(batch, what, 0)
    batch.payloads.append(b"")


def add_values(
    frame: call_pb2.ResultFrame, batch: call_pb2.ResultBatch | None, values: DeliverValues, *, names_executors: bool
) -> call_pb2.ResultBatch:
    """Adds values to the batch where they fit. Returns the one to which the next values go."""
    if batch is None or batch.content_type != values.content_type:
        batch = frame.batches.add(content_type=values.content_type, partial=True)
    if names_executors:
        name_executor(batch, values, len(batch.payloads))
    batch.call_ids.extend(values.ids)
    batch.payloads.extend(values.payloads)  # type: ignore[arg-type]  # what is larger was joined, or cut
    return batch


def name_executor(batch: call_pb2.ResultBatch, what: DeliverResults | DeliverValues, at: int) -> None:
    """Names the executor of the calls whose payloads begin at position `at`."""
    backend, replica_id = what.replica.backend.name, what.replica.replica_id
    if not batch.replica_ids or batch.replica_ids[-1] != replica_id or batch.backends[-1] != backend:
        batch.executor_starts.append(at)
        batch.backends.append(backend)
        batch.replica_ids.append(replica_id)
