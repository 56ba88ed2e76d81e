"""What batches of a frame to a client say beside payloads: sizes of what came in chunks, and who has executed calls.

Purpose: executors are said in columns, for stretches of neighbours, to clients that want to know them: so replicas that
answer in turn split no batch.
Owner: pure functions of the outbox of a client's stream.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import cast

from router_service.core.commands import DeliverResults, DeliverValues
from slotmesh.batch_payloads import write
from slotmesh.outcome_ids import write_ids
from slotmesh.v1 import call_pb2
from slotmesh.wire.payload_block import PayloadBlock, concatenated
from slotmesh.wire.ranges import joined


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
        """Adds the result of a call, so many bytes, that chunks have brought."""
        add_chunked(self._frame, results, size, names_executors=self._names_executors)
        self._newest = None

    def close(self, *, as_range: bool, as_block: bool) -> None:
        """Writes ids and payloads. `as_range`, `as_block`: what the client reads."""
        for batch in self._open:
            write_ids(batch.wire, batch.ids, as_range=as_range)
            payloads = cast("Sequence[bytes]", concatenated(batch.parts))
            write(batch.wire, payloads, as_block=as_block and type(payloads) is PayloadBlock)


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
    """Adds a batch for a payload of so many bytes that chunks have brought."""
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
    """Says who has executed the calls whose payloads have their place from `at` on."""
    backend, replica_id = what.replica.backend.name, what.replica.replica_id
    if not batch.replica_ids or batch.replica_ids[-1] != replica_id or batch.backends[-1] != backend:
        batch.executor_starts.append(at)
        batch.backends.append(backend)
        batch.replica_ids.append(replica_id)
