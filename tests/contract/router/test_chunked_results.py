"""Large results through the router: in chunks, between other frames, or in one piece for clients without chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.convert.batches import ids_of_results, ids_to_wire
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.contract.replica.chunked_calls import LARGE, assemble, chunks_of
from tests.support.router_bench import Call, Response, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def large_results(batch: replica_service_pb2.RunBatch) -> list[replica_service_pb2.ExecuteResponse]:
    """Each call's result is large."""
    ids = range(batch.first_run_id, batch.first_run_id + len(batch.payloads))
    frames = [replica_service_pb2.ExecuteResponse(chunk=chunk) for each in ids for chunk in chunks_of(each, LARGE)]
    sizes = [len(LARGE)] * len(ids)
    result = call_pb2.ResultBatch(call_ids=ids, payloads=[b""] * len(ids), chunked_sizes=sizes)
    frames.append(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result])))
    return frames


async def answer_large(mesh: RouterBench, call: Call, *payloads: bytes) -> None:
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, *payloads))
    await wait_until(lambda: bool(runs), what="the run arrives")
    for frame in large_results(runs[0]):
        await replica.say(frame)


@pytest.mark.asyncio
async def test_large_results_come_in_chunks_to_who_takes_them(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    await answer_large(mesh, call, b"a", b"b")
    assert await assemble(call, 2) == {1: LARGE, 2: LARGE}


@pytest.mark.asyncio
async def test_large_results_come_in_one_piece_to_who_does_not(mesh: RouterBench) -> None:
    call = await mesh.open()
    await answer_large(mesh, call, b"a")
    done, _ = await outcomes(call, 1)
    assert done == {1: LARGE}


@pytest.mark.asyncio
async def test_a_large_result_that_comes_inline_goes_on_in_chunks(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    await call.write(calls(1, b"small"))
    await outcomes(call, 1)

    def inline(batch: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        result = call_pb2.ResultBatch(call_ids=[batch.first_run_id], payloads=[LARGE])
        return replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result]))

    mesh.replicas[0].answer = inline
    await call.write(calls(2, b"now"))
    assert await assemble(call, 1) == {2: LARGE}


@pytest.mark.asyncio
async def test_a_result_that_is_too_large_for_one_piece_says_so(mesh: RouterBench) -> None:
    call = await mesh.open()
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, b"a"))
    await wait_until(lambda: bool(runs), what="the run arrives")
    large = LARGE * 5
    for chunk in chunks_of(runs[0].first_run_id, large):
        await replica.say(replica_service_pb2.ExecuteResponse(chunk=chunk))
    result = call_pb2.ResultBatch(call_ids=[runs[0].first_run_id], payloads=[b""], chunked_sizes=[len(large)])
    await replica.say(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result])))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].executed) == ("PAYLOAD_TOO_LARGE", call_pb2.EXECUTED_YES)
    assert failed[1].metadata["actual"] == str(len(large))


@pytest.mark.asyncio
async def test_small_results_pass_a_large_one(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, b"a", b"b"))
    await wait_until(lambda: bool(runs), what="the run arrives")
    first = runs[0].first_run_id
    large = LARGE * 40
    for chunk in chunks_of(first, large):
        await replica.say(replica_service_pb2.ExecuteResponse(chunk=chunk))
    results = [
        call_pb2.ResultBatch(call_ids=[first], payloads=[b""], chunked_sizes=[len(large)]),
        call_pb2.ResultBatch(call_ids=[first + 1], payloads=[b"small"]),
    ]
    await replica.say(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=results)))
    frames: list[Response] = [await next_frame(call) for _ in range(3)]
    assert 2 in [call_id for frame in frames for batch in frame.results.batches for call_id in ids_of_results(batch)]


@pytest.mark.asyncio
async def test_a_result_whose_chunks_never_came_ends_the_link_and_no_caller_waits(mesh: RouterBench) -> None:
    call = await mesh.open()
    replica = mesh.replicas[0]

    def lie(batch: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        result = call_pb2.ResultBatch(call_ids=[batch.first_run_id], payloads=[b""], chunked_sizes=[9])
        return replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(batches=[result]))

    replica.answer = lie
    await call.write(calls(1, b"a"))
    _, failed = await outcomes(call, 1)
    assert (failed[1].reason, failed[1].executed) == ("REPLICA_LOST", call_pb2.EXECUTED_UNKNOWN)
    assert "chunked_sizes" in failed[1].message


@pytest.mark.asyncio
async def test_a_large_value_and_the_failure_behind_it_may_come_in_one_frame(mesh: RouterBench) -> None:
    call = await mesh.open(features=["chunks"])
    replica = mesh.replicas[0]
    runs: list[replica_service_pb2.RunBatch] = []
    replica.answer = runs.append
    await call.write(calls(1, b"a", streaming=True))
    await wait_until(lambda: bool(runs), what="the run arrives")
    run_id = runs[0].first_run_id
    for chunk in chunks_of(run_id, LARGE):
        await replica.say(replica_service_pb2.ExecuteResponse(chunk=chunk))
    value = call_pb2.ResultBatch(call_ids=[run_id], payloads=[b""], chunked_sizes=[len(LARGE)], partial=True)
    failure = call_pb2.Failure(code=2, reason="HANDLER_ERROR", message="no", executed=call_pb2.EXECUTED_YES)
    frame = call_pb2.ResultFrame(
        batches=[value], errors=[call_pb2.CallErrors(calls=ids_to_wire([run_id]), failure=failure)]
    )
    await replica.say(replica_service_pb2.ExecuteResponse(results=frame))
    assert await assemble(call, 1) == {1: LARGE}
