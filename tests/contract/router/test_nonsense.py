"""Replicas that break the contract: their link is cut and comes back, and no call is left without a true outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.support.fakes.replica import Response, echo, hold
from tests.support.router_bench import RouterBench, calls, outcomes, router_bench
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def too_few(batch: replica_service_pb2.RunBatch) -> Response:
    """Results of which one lacks its payload."""
    response = echo(batch)
    del response.results.batches[0].payloads[-1]
    return response


def far_too_many(batch: replica_service_pb2.RunBatch) -> Response:
    """Refuses more than was ever sent."""
    full = call_pb2.Failure(code=8, reason="QUEUE_FULL", message="full", executed=call_pb2.EXECUTED_NO)
    runs = [call_pb2.IdRange(first=9, last=5), call_pb2.IdRange(first=batch.first_run_id, last=2**53)]
    refused = replica_service_pb2.RunsRefused(runs=runs, failure=full)
    return Response(refused=refused, capacity=replica_service_pb2.Capacity(max_ongoing=512))


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [too_few, far_too_many])
async def test_a_replica_that_answers_nonsense_loses_its_link(mesh: RouterBench, answer: object) -> None:
    replica = mesh.replicas[0]
    replica.answer = answer  # type: ignore[assignment]  # one of the two above
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2", b"3"))
    done, failed = await outcomes(call, 3)
    assert not done
    assert {failure.reason for failure in failed.values()} == {"REPLICA_LOST"}
    replica.answer = echo
    await wait_until(lambda: len(replica.contexts) == 2, what="the link is back")
    await call.write(calls(4, b"4"))
    assert (await outcomes(call, 1))[0] == {4: b"4"}


@pytest.mark.asyncio
async def test_answers_to_calls_that_it_never_got_change_nothing(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"1"))
    await wait_until(lambda: replica.held)
    ghosts = [2, 2, 2**53, -1, 0, 77]
    batch = call_pb2.ResultBatch(call_ids=ghosts, payloads=[b"ghost"] * len(ghosts))
    await replica.say(Response(results=call_pb2.ResultFrame(batches=[batch])))
    await replica.answer_held()
    assert (await outcomes(call, 1))[0] == {1: b"1"}
    assert len(replica.contexts) == 1
