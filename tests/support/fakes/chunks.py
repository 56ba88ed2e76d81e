"""Payloads of calls that come to a fake router in chunks."""

from __future__ import annotations

from typing import Generic, TypeVar

from slotmesh.streams.arriving_payloads import BadChunk, JoinedAssembly
from slotmesh.streams.limits import CHUNK_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2

Response = router_service_pb2.StreamCallsResponse
BatchT = TypeVar("BatchT")


class Announced(Generic[BatchT]):
    """Batches that wait for some of their payloads."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[BatchT, list[bytes], int, JoinedAssembly]] = {}
        """Of each call: its batch, the payloads, its place among them."""

    def add(self, batch: BatchT, ids: list[int], payloads: list[bytes], sizes: list[int]) -> bool:
        """Whether the batch waits for chunks."""
        for place, (call_id, size) in enumerate(zip(ids, sizes, strict=False)):
            if size:
                self._waiting[call_id] = (batch, payloads, place, JoinedAssembly(size))
        return any(sizes)

    def accept(self, chunk: call_pb2.Chunk) -> BatchT | None:
        """The batch that is complete now.

        Raises:
            BadChunk: a client must not send it.
        """
        if chunk.call_id not in self._waiting:
            raise BadChunk("call_id", f"{chunk.call_id} was not announced, or was taken back")
        batch, payloads, place, assembly = self._waiting[chunk.call_id]
        if not assembly.add(chunk.offset, chunk.total, chunk.data):
            return None
        payloads[place] = assembly.payload()
        del self._waiting[chunk.call_id]
        return None if any(each is batch for each, *_ in self._waiting.values()) else batch

    def forget(self, call_id: int) -> None:
        """The call was taken back, and no more chunks come. Its batch waits for it no longer, nor is it answered."""
        self._waiting.pop(call_id, None)


def in_chunks(call_id: int, payload: bytes) -> list[Response]:
    """The frames of a large result."""
    return [
        Response(
            chunk=call_pb2.Chunk(call_id=call_id, offset=at, total=len(payload), data=payload[at : at + CHUNK_BYTES])
        )
        for at in range(0, len(payload), CHUNK_BYTES)
    ]
