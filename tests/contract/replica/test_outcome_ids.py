"""Ids of outcomes that follow travel as ranges, on each stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import replica_service_pb2
from tests.support.fakes.replica import Response, echo, fail
from tests.support.replicas import running_replica
from tests.support.router_bench import RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        yield bench


def echo_as_range(batch: replica_service_pb2.RunBatch) -> Response:
    response = echo(batch)
    (results,) = response.results.batches
    results.first_call_id = results.call_ids[0]
    del results.call_ids[:]
    return response


def say_that_all_failed(batch: replica_service_pb2.RunBatch) -> Response:
    """A few bytes that name very many calls."""
    response = fail(batch)
    response.results.errors[0].calls[0].last = 2**62
    return response


@pytest.mark.parametrize("answer", [echo, echo_as_range])
async def test_results_on_their_way_through_a_router(mesh: RouterBench, answer: object) -> None:
    mesh.replicas[0].answer = answer  # type: ignore[assignment]  # one of the two above
    call = await mesh.open()
    await call.write(calls(7, b"a", b"", b"c"))
    (batch,) = (await next_frame(call)).results.batches
    assert list(batch.payloads) == [b"a", b"", b"c"]
    assert (batch.first_call_id, [*batch.call_ids]) == (7, [])


async def test_failures_on_their_way_through_a_router(mesh: RouterBench) -> None:
    mesh.replicas[0].answer = fail
    call = await mesh.open()
    await call.write(calls(7, b"a", b"b", b"c"))
    (errors,) = (await next_frame(call)).results.errors
    assert [(it.first, it.last) for it in errors.calls] == [(7, 9)]


async def test_results_in_another_order_are_told_one_by_one(mesh: RouterBench) -> None:
    def backwards(batch: replica_service_pb2.RunBatch) -> Response:
        response = echo(batch)
        (results,) = response.results.batches
        results.call_ids[:] = [*reversed(results.call_ids)]
        results.payloads[:] = [*reversed(results.payloads)]
        return response

    mesh.replicas[0].answer = backwards
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2", b"3"))
    assert (await outcomes(call, 3))[0] == {1: b"1", 2: b"2", 3: b"3"}


async def test_a_replica_that_fails_more_than_it_has_loses_its_link(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    replica.answer = say_that_all_failed
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2"))
    _, failed = await outcomes(call, 2)
    assert {failure.reason for failure in failed.values()} == {"REPLICA_LOST"}
    replica.answer = echo
    await wait_until(lambda: len(replica.contexts) == 2, what="the link is back")


async def test_a_replica_tells_a_router() -> None:
    async with running_replica() as replica, replica.router() as stream:
        await stream.send(stream.run([b"a", b"b", b"c"]), stream.run([b"a", b"b"], method="nowhere"))
        await stream.wait_answers(5)
    assert stream.results == {1: b"a", 2: b"b", 3: b"c"}
    assert stream.failures.keys() == {4, 5}
    as_ranges = {bool(batch.first_call_id) for frame in stream.outcomes for batch in frame.batches}
    as_ranges |= {bool(errors.calls) for frame in stream.outcomes for errors in frame.errors}
    assert as_ranges == {True}


async def test_ranges_are_bounded_together(mesh: RouterBench) -> None:
    """Each by itself names no more than the replica has."""

    def fail_again_and_again(batch: replica_service_pb2.RunBatch) -> Response:
        response = fail(batch)
        for _ in range(3):
            response.results.errors.append(response.results.errors[0])
        return response

    replica = mesh.replicas[0]
    replica.answer = fail_again_and_again
    call = await mesh.open()
    await call.write(calls(1, b"1", b"2"))
    _, failed = await outcomes(call, 2)
    assert {failure.reason for failure in failed.values()} == {"REPLICA_LOST"}
