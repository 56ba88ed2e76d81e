"""Clients that do not read what a router says to them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from slotmesh.convert.batches import ids_of_results
from slotmesh.v1 import router_service_pb2
from tests.support.fakes.replica import echo, hold, results
from tests.support.router_bench import (
    Request,
    RouterBench,
    calls,
    next_frame,
    outcomes,
    read_to_the_end,
    router_bench,
)
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


@pytest.mark.asyncio
async def test_a_client_that_reads_no_rejections_is_cut_off(mesh: RouterBench) -> None:
    call = await mesh.open()
    bad = router_service_pb2.CallBatch(first_call_id=0, payloads=[b""])
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[bad] * 20_000)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_the_end(call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    second = await mesh.open()
    await second.write(calls(1, b"fine"))
    assert (await outcomes(second, 1))[0] == {1: b"fine"}


@pytest.mark.asyncio
async def test_a_client_that_reads_no_results_is_admitted_no_more_until_it_does(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    for number in range(1, 17):
        await call.write(calls(number, b"x"))
    await wait_until(lambda: sum(len(run.payloads) for run in replica.runs) == 16)
    for run in replica.runs:
        await replica.say(results(run, [bytes(1024 * 1024)] * len(run.payloads)))
    replica.answer = echo
    other = await mesh.open()
    await other.write(calls(1, b"x"))
    await outcomes(other, 1)  # came after those of the first stream, over the same link
    await call.write(calls(17, b"x"))
    answered, rejected = 0, ""
    while answered < 16 or not rejected:
        frame = await next_frame(call)
        answered += sum(len(ids_of_results(batch)) for batch in frame.results.batches)
        rejected = rejected or frame.rejected.failure.message
        assert answered <= 16, "admitted all the same"
    assert "read them" in rejected
    await call.write(calls(18, b"x"))
    assert set((await outcomes(call, 1))[0]) == {18}
