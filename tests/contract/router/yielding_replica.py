"""A replica behind a router with scripted handlers that yield, and the client that reads the values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from slotmesh.convert.batches import ids_of_results
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import CHUNK_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import FakeReplica, Response
from tests.support.router_bench import Call, next_frame
from tests.support.wait import wait_until
from tests.support.wire_options import wire_options

Run = replica_service_pb2.RunBatch


def values(run: Run, *payloads: bytes, at: int = 0) -> Response:
    """The handler of one call of the run has yielded."""
    ids = [run.first_run_id + at] * len(payloads)
    content_type = run.options.content_type
    batch = call_pb2.ResultBatch(call_ids=ids, payloads=payloads, content_type=content_type, partial=True)
    return Response(results=call_pb2.ResultFrame(batches=[batch]))


async def say_large(replica: FakeReplica, run: Run, payload: bytes) -> None:
    """The handler of the run's only call has yielded a value that travels in chunks."""
    run_id, total = run.first_run_id, len(payload)
    for at in range(0, total, CHUNK_BYTES):
        data = payload[at : at + CHUNK_BYTES]
        await replica.say(Response(chunk=call_pb2.Chunk(call_id=run_id, offset=at, total=total, data=data)))
    batch = call_pb2.ResultBatch(call_ids=[run_id], payloads=[b""], chunked_sizes=[total], partial=True)
    await replica.say(Response(results=call_pb2.ResultFrame(batches=[batch])))


def end(run: Run) -> Response:
    """All calls of the run have ended."""
    ended = call_pb2.IdRange(first=run.first_run_id, last=run.first_run_id + len(run.payloads) - 1)
    return Response(results=call_pb2.ResultFrame(done=[ended]))


def taken(replica: FakeReplica) -> Counter[int]:
    """Values that the replica was told are taken, by run id."""
    counts: Counter[int] = Counter()
    for frame in replica.frames:
        counts.update(dict(zip(frame.take.call_ids, frame.take.counts, strict=True)))
    return counts


async def running(replica: FakeReplica, count: int = 1) -> Sequence[Run]:
    """The runs that have come, at least so many."""
    await wait_until(lambda: len(replica.runs) >= count, what="the runs have come")
    return replica.runs


async def read_values(call: Call, count: int) -> list[tuple[int, bytes]]:
    """The next values, and the call of each."""
    read: list[tuple[int, bytes]] = []
    while len(read) < count:
        frame = (await next_frame(call)).results
        assert not frame.errors
        for batch in frame.batches:
            assert batch.partial
            read += zip(ids_of_results(batch), batch.payloads, strict=True)
    assert len(read) == count
    return read


async def read_end(call: Call) -> list[int]:
    """The calls that the next frame says have ended."""
    frame = (await next_frame(call)).results
    assert not frame.batches
    return [call_id for each in frame.done for call_id in range(each.first, each.last + 1)]


def request(payload: bytes = b"x", **options: Any) -> router_service_pb2.CallStreamingRequest:
    return router_service_pb2.CallStreamingRequest(endpoint="echo", payload=payload, options=wire_options(**options))
