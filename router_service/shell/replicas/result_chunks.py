"""Results that come in chunks from one replica.

Purpose: puts chunks together until the frame comes that brings the outcome itself.
Invariants: chunks that break the rules raise: the replica is not to be trusted with more. Parts are passed on as they
came, never joined. What belongs to calls that failed instead is dropped.
Owner: the replica's link, for one stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slotmesh.batch_payloads import payloads_of
from slotmesh.outcome_ids import ids_of_results
from slotmesh.v1 import call_pb2
from slotmesh.wire.chunks import BadChunk, PartsAssembly, Payload, joined
from slotmesh.wire.limits import CHUNK_BYTES, MAX_PAYLOAD_BYTES


class ArrivingResults:
    """Payloads of results under way, by run id."""

    def __init__(self) -> None:
        self._under_way: dict[int, PartsAssembly] = {}

    def add(self, chunk: call_pb2.Chunk) -> None:
        """The next chunk of a result.

        Raises:
            BadChunk: it is not.
        """
        assembly = self._under_way.get(chunk.call_id)
        if assembly is None:
            if not 0 < chunk.total <= MAX_PAYLOAD_BYTES:
                raise BadChunk("total", f"{chunk.total} bytes; at most {MAX_PAYLOAD_BYTES} are allowed")
            assembly = self._under_way[chunk.call_id] = PartsAssembly(chunk.total)
        assembly.add(chunk.offset, chunk.total, chunk.data)

    def payloads(self, batch: call_pb2.ResultBatch) -> Sequence[Payload]:
        """The payloads of a batch, with those that chunks have brought.

        Raises:
            BadChunk: the batch names a payload that is not complete.
        """
        if not batch.chunked_sizes:
            return payloads_of(batch)
        payloads: list[Payload] = list(batch.payloads)
        run_ids = ids_of_results(batch)
        for at, size in enumerate(batch.chunked_sizes):
            if size:
                assembly = self._under_way.pop(run_ids[at], None)
                if assembly is None or assembly.received != size:
                    raise BadChunk("chunked_sizes", f"{size} bytes of run {run_ids[at]} have not come")
                payload = assembly.payload()
                payloads[at] = payload if size > CHUNK_BYTES else joined(payload)
        return payloads

    def drop(self, run_ids: Iterable[int]) -> None:
        """These calls have failed: what has come of their results is of no use."""
        if self._under_way:
            for run_id in run_ids:
                self._under_way.pop(run_id, None)
