"""Payloads of calls that come in chunks from one client.

Purpose: puts chunks together and tells the scheduler when a payload is complete.
Invariants: a chunk of a call that is not awaited (it was rejected, has ended, or never was announced) is dropped; one
that breaks the rules fails its call, and no other. Parts of a call are kept until it has its outcome, and no longer.
Owner: the client's stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.callers import Caller
from router_service.core.uploads.events import ChunkArrived, UploadCompleted, UploadFailed
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Failure, Reason
from slotmesh.v1 import call_pb2
from slotmesh.wire.chunks import BadChunk, PartsAssembly, joined
from slotmesh.wire.limits import CHUNK_BYTES


class ClientUploads:
    """What one client has announced and not brought."""

    def __init__(self, caller: Caller, dispatcher: Dispatcher) -> None:
        self._caller = caller
        self._dispatcher = dispatcher
        self.under_way: dict[int, PartsAssembly] = {}
        """By call id. To be read: whether any payload is awaited is asked for each frame of results."""

    def announce(self, call_id: int, total: int) -> None:
        """The chunks of this call's payload come next, `total` bytes in all."""
        self.under_way[call_id] = PartsAssembly(total)

    def add(self, chunk: call_pb2.Chunk) -> None:
        """The next chunk of some payload."""
        call_id = chunk.call_id
        assembly = self.under_way.get(call_id)
        if assembly is None:
            return
        try:
            is_complete = assembly.add(chunk.offset, chunk.total, chunk.data)
        except BadChunk as mistake:
            self._dispatcher.post(UploadFailed(self._caller, call_id, _failure(mistake)))
            return
        self._dispatcher.post(ChunkArrived(self._caller, call_id, len(chunk.data)))
        if is_complete:
            del self.under_way[call_id]
            parts = assembly.payload()
            payload = parts if assembly.total > CHUNK_BYTES else joined(parts)
            self._dispatcher.post(UploadCompleted(self._caller, call_id, payload))

    def ended(self, ids: Sequence[int]) -> None:
        """These calls have their outcome: what has come of their payloads is of no use."""
        for call_id in ids:
            self.under_way.pop(call_id, None)

    def end(self) -> None:
        """Nothing more comes: what is not complete never will be."""
        for call_id, assembly in list(self.under_way.items()):
            message = f"chunk: the stream was half-closed after {assembly.received} of {assembly.total} bytes"
            failure = Failure(reason=Reason.BAD_REQUEST, message=message, metadata={"field": "chunk"})
            self._dispatcher.post(UploadFailed(self._caller, call_id, failure))


def _failure(mistake: BadChunk) -> Failure:
    field = f"chunk.{mistake.field}"
    return Failure(reason=Reason.BAD_REQUEST, message=f"chunk.{mistake}", metadata={"field": field})
