"""Handlers that yield, over real gRPC: how far they run ahead of clients that read."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.contract.replica.generator_calls import BOTH, CREDIT, HANDLERS, MIB, counted, flowed, handler_of, has_values
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(f"{HANDLERS}:Handler", graceful_timeout="200ms") as running:
        yield running


@BOTH
async def test_a_handler_waits_for_who_takes_its_values(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        stepped = handler_of(replica).stepped
        await stream.send(stream.run([b"1000"], method=method, streaming=True))
        await has_values(stream, 1, CREDIT)
        await flowed(stream)
        assert stepped[b"1000"] == len(stream.values[1]) == CREDIT
        await stream.take_values(r1=10, r99=1000)
        await has_values(stream, 1, CREDIT + 10)
        await flowed(stream)
        assert stepped[b"1000"] == len(stream.values[1]) == CREDIT + 10
        for allowed in (CREDIT * 2 + 10, CREDIT * 3 + 10, 1000):
            await stream.take_values(r1=CREDIT)
            await has_values(stream, 1, allowed)
        await stream.wait_answers(1)
        assert stream.values[1] == counted(1000)


async def test_nobody_takes_more_than_there_is(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"1000"], method="count", streaming=True))
        await has_values(stream, 1, CREDIT)
        await stream.take_values(r1=10_000)
        await stream.take_values(r1=-5)
        await has_values(stream, 1, 2 * CREDIT)
        await flowed(stream)
        assert len(stream.values[1]) == 2 * CREDIT


async def test_large_values_fill_the_credit_sooner(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        sizes = b"%d 400000 400000 5 400000 1 1" % (3 * MIB)
        await stream.send(stream.run([sizes], method="inflate", streaming=True))
        await has_values(stream, 1, 1)
        await flowed(stream)
        assert handler_of(replica).stepped[sizes] == 1, "one value is always allowed"
        await stream.take_values(r1=1)
        await has_values(stream, 1, 5)
        await flowed(stream)
        assert handler_of(replica).stepped[sizes] == 5
        await stream.take_values(r1=2)
        await stream.wait_answers(1)
        assert list(map(len, stream.values[1])) == list(map(int, sizes.split()))


async def test_values_and_the_end_stay_behind_large_values(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        sizes = b"3 300000 4 300001 300002 5"
        await stream.send(
            stream.run([sizes], method="inflate", streaming=True), stream.run([b"9"], method="count", streaming=True)
        )
        await stream.wait_answers(2)
        assert [(value[0], len(value)) for value in stream.values[1]] == [*enumerate(map(int, sizes.split()))]
        assert stream.values[2] == counted(9)
        assert "chunk" in stream.frames
        assert stream.answer_order == [2, 1], "small values pass those of other calls"


@BOTH
async def test_more_calls_are_paused_than_there_are_threads(replica: RunningReplica, method: str) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"300 %d" % index for index in range(4)], method=method, streaming=True))
        for run_id in range(1, 5):
            await has_values(stream, run_id, CREDIT)
        await flowed(stream)
        assert stream.answered == 0
        assert replica.engine.scheduler.in_use == 4, "a paused call holds its slot"
        await stream.send(stream.run([b"late"], method="plain_in_thread"))
        await wait_until(lambda: stream.refused, what="no room for more")
        await stream.take_values(r2=100)
        await wait_until(lambda: stream.done == {2}, what="the one that was taken from")
        await stream.send(stream.run([b"now"], method="plain_in_thread"))
        await wait_until(lambda: stream.results, what="a thread, though three calls are paused")


async def test_when_the_router_says_no_more_values_are_taken_as_they_leave(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"2000", b"3000"], method="count", streaming=True))
        await has_values(stream, 2, CREDIT)
        await stream.call.done_writing()
        await stream.wait_answers(2)
        assert (stream.values[1], stream.values[2]) == (counted(2000), counted(3000))
        await wait_until(lambda: stream.ended, what="the end")
        assert stream.error is None
