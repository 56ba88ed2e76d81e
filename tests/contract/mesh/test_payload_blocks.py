"""Payloads travel in blocks between ends that read them, and one by one to all others, whoever is at the other side."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.convert.batches import count_of, list_of, write
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.features import BLOCKS
from slotmesh.streams.limits import CHUNK_BYTES, MAX_ELEMENTS
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import Response
from tests.support.replicas import running_replica
from tests.support.router_bench import Request, RouterBench, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

MIXED = [b"%d" % at * (at % 5) for at in range(40)]
"""Payloads of several sizes, some of them empty."""


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def answer_as_block(batch: replica_service_pb2.RunBatch) -> Response:
    results = call_pb2.ResultBatch(first_call_id=batch.first_run_id, content_type=batch.options.content_type)
    write(results, list_of(batch), as_block=True)
    return Response(results=call_pb2.ResultFrame(batches=[results]))


def answer_one_by_one(batch: replica_service_pb2.RunBatch) -> Response:
    results = call_pb2.ResultBatch(first_call_id=batch.first_run_id, content_type=batch.options.content_type)
    write(results, list_of(batch), as_block=False)
    return Response(results=call_pb2.ResultFrame(batches=[results]))


def frame(payloads: list[bytes], *, as_block: bool, keys: list[str] | None = None) -> Request:
    batch = router_service_pb2.CallBatch(first_call_id=1, ordering_keys=keys)
    write(batch, payloads, as_block=as_block)
    return Request(calls=router_service_pb2.CallFrame(batches=[batch]))


@pytest.mark.parametrize("keys", [None, ["k"] * 40, [f"k{at}" for at in range(40)]], ids=["no key", "one key", "keys"])
@pytest.mark.parametrize("answer", [answer_as_block, answer_one_by_one])
@pytest.mark.parametrize("features", [[], [BLOCKS]], ids=["read one by one", "read as a block"])
@pytest.mark.parametrize("as_block", [False, True], ids=["sent one by one", "sent as a block"])
async def test_calls_through_a_router(
    as_block: bool, features: list[str], answer: object, keys: list[str] | None
) -> None:
    async with router_bench() as bench:
        for replica in bench.replicas:
            replica.answer = answer  # type: ignore[assignment]  # one of the two above
        await bench.linked(bench.replicas[0])
        call = await bench.open(features=features)
        await call.write(frame(MIXED, as_block=as_block, keys=keys))
        done, failed = await outcomes(call, len(MIXED))
        assert not failed
        assert done == dict(enumerate(MIXED, 1))
        runs = [run for replica in bench.replicas for run in replica.runs]
        if not as_block:
            assert not any(run.payload_sizes for run in runs)
        elif keys is None:
            assert all(run.payload_sizes for run in runs)


async def test_results_come_in_a_block_to_who_reads_it(mesh: RouterBench) -> None:
    mesh.replicas[0].answer = answer_as_block
    for features in ([], [BLOCKS]):
        call = await mesh.open(features=features)
        await call.write(frame(MIXED, as_block=True))
        (batch,) = (await next_frame(call)).results.batches
        assert bool(batch.payload_sizes) is bool(features)
        assert list_of(batch) == MIXED


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"block": b"abc", "payload_sizes": b"\2\0\0\0"}, "block"),
        ({"block": b"abc", "payload_sizes": b"\3\0\0"}, "payload_sizes"),
        ({"block": b"abc", "payload_sizes": b"\3\0\0\0", "payloads": [b"x"]}, "block"),
    ],
)
async def test_a_block_that_cannot_be_read_is_rejected_and_nothing_else(
    mesh: RouterBench, fields: dict[str, bytes], told: str
) -> None:
    mesh.replicas[0].answer = answer_as_block
    call = await mesh.open()
    bad = router_service_pb2.CallBatch(first_call_id=1, **fields)  # type: ignore[arg-type]
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[bad])))
    rejected = (await next_frame(call)).rejected
    assert (rejected.failure.reason, rejected.failure.metadata["field"]) == ("BAD_REQUEST", told)
    await call.write(frame([b"1"] * 20, as_block=True))
    assert len((await outcomes(call, 20))[0]) == 20


async def test_a_batch_that_never_fits_is_rejected_by_its_count(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(frame([b""] * 40_000, as_block=True))
    rejected = (await next_frame(call)).rejected
    assert (rejected.failure.reason, rejected.count) == ("WINDOW_EXCEEDED", 40_000)


async def test_a_replica_whose_block_cannot_be_read_loses_its_link(mesh: RouterBench) -> None:
    def too_short(batch: replica_service_pb2.RunBatch) -> Response:
        response = answer_as_block(batch)
        response.results.batches[0].block = response.results.batches[0].block[:-1]
        return response

    replica = mesh.replicas[0]
    replica.answer = too_short
    call = await mesh.open()
    await call.write(frame([b"1"] * 20, as_block=True))
    _, failed = await outcomes(call, 20)
    assert {failure.reason for failure in failed.values()} == {"REPLICA_LOST"}
    replica.answer = answer_as_block
    await wait_until(lambda: len(replica.contexts) == 2, what="the link is back")


async def test_a_replica_reads_blocks_and_answers_in_blocks() -> None:
    async with running_replica() as replica, replica.router() as stream:
        run = stream.run(MIXED, key="k")
        del run.payloads[:]
        write(run, MIXED, as_block=True)
        large = stream.run([b"x" * (CHUNK_BYTES + 1), b"y"], key="k")
        await stream.send(run, large)
        await stream.wait_answers(42)
    assert [stream.results[run_id] for run_id in range(1, 41)] == MIXED
    assert stream.results[41] == b"x" * (CHUNK_BYTES + 1), "in chunks, beside blocks"
    batches = [batch for each in stream.outcomes for batch in each.batches]
    assert {bool(batch.payload_sizes) for batch in batches if count_of(batch) > 2} == {True}


async def test_a_router_whose_block_cannot_be_read_is_told_so() -> None:
    async with running_replica() as replica, replica.router() as stream:
        run = stream.run([b"x"])
        del run.payloads[:]
        run.block, run.payload_sizes = b"abc", b"\2\0\0\0"
        await stream.send(run)
        await wait_until(lambda: stream.ended)
    assert stream.error is not None
    assert "runs.batches.block: has 3 bytes, and the sum of payload_sizes is 2" in str(stream.error.details())


async def test_a_frame_with_too_many_payloads_in_blocks_ends_the_stream() -> None:
    async with running_replica() as replica, replica.router() as stream:
        runs = [stream.run([b""] * (MAX_ELEMENTS // 2 + 1), key="k") for _ in range(2)]
        for run in runs:
            payloads = list(run.payloads)
            del run.payloads[:]
            write(run, payloads, as_block=True)
        await stream.send(*runs)
        await wait_until(lambda: stream.ended)
    assert stream.error is not None
    assert f"one frame has at most {MAX_ELEMENTS} in all" in str(stream.error.details())
