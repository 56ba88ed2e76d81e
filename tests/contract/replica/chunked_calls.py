"""Calls of the stream with a router whose payloads or results come in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from slotmesh.streams.limits import CHUNK_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.router_bench import Call, Request, next_frame
from tests.support.wire_options import wire_options

LARGE = bytes(range(256)) * (CHUNK_BYTES * 4 // 256) + b"the end"
"""Five chunks, the last one short."""


def announced(first: int, *sizes: int, payloads: Sequence[bytes] | None = None, **options: object) -> Request:
    batch = router_service_pb2.CallBatch(
        first_call_id=first,
        payloads=payloads or [b""] * len(sizes),
        chunked_sizes=sizes,
        options=wire_options(**options),
    )
    return Request(calls=router_service_pb2.CallFrame(batches=[batch]))


def chunks_of(call_id: int, payload: bytes) -> list[call_pb2.Chunk]:
    return [
        call_pb2.Chunk(call_id=call_id, offset=at, total=len(payload), data=payload[at : at + CHUNK_BYTES])
        for at in range(0, len(payload), CHUNK_BYTES)
    ]


async def upload(call: Call, call_id: int, payload: bytes) -> None:
    for chunk in chunks_of(call_id, payload):
        await call.write(Request(chunk=chunk))


async def assemble(call: Call, ids: int) -> dict[int, bytes]:
    """Results of so many calls, whether they came in chunks or not."""
    parts: dict[int, bytes] = {}
    results: dict[int, bytes] = {}
    while len(results) < ids:
        frame = await next_frame(call)
        if frame.WhichOneof("frame") == "chunk":
            chunk = frame.chunk
            assert chunk.offset == len(parts.setdefault(chunk.call_id, b""))
            parts[chunk.call_id] += chunk.data
            continue
        for batch in frame.results.batches:
            sizes = batch.chunked_sizes or [0] * len(batch.call_ids)
            for call_id, payload, size in zip(batch.call_ids, batch.payloads, sizes, strict=True):
                results[call_id] = parts.pop(call_id) if size else payload
                assert not size or len(results[call_id]) == size
    assert not parts
    return results
