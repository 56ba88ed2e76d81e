"""Batches over real gRPC: of several routers, with weights, with calls that end alone, with settings that change."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.codec import JSON, decode
from tests.contract.batching_handlers import Batching
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO, YES = 1, 3
INVALID_ARGUMENT, UNKNOWN = 3, 2


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica("tests.contract.batching_handlers:Batching") as running:
        yield running
    Batching.gathered.set_max_batch_size(4)
    Batching.gathered.set_batch_wait_timeout_s(60.0)


async def test_calls_of_two_routers_share_a_batch_and_each_has_its_own_results(replica: RunningReplica) -> None:
    async with replica.router("router-1") as one, replica.router("router-2") as other:
        await one.send(one.run([b"a"], method="gathered"))
        await wait_until(lambda: replica.engine.scheduler.in_use == 1)
        await other.send(other.run([b"b", b"c", b"d", b"e"], method="gathered"))
        await one.wait_answers(1)
        await other.wait_answers(3)
        assert replica.handler.given == [[b"a", b"b", b"c", b"d"]]
        assert (one.results, other.results) == ({1: b"A"}, {1: b"B", 2: b"C", 3: b"D"})


async def test_calls_of_a_key_share_batches_in_order(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        sent = [b"%d" % number for number in range(12)]
        for begin in range(0, 12, 3):
            await stream.send(stream.run(sent[begin : begin + 3], method="gathered", key="k"))
        await stream.wait_answers(12)
        assert replica.handler.given == [sent[:4], sent[4:8], sent[8:]]


async def test_a_call_that_has_raised_by_its_entry_fails_alone(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a", b"bad", b"c", b"d"], method="gathered"))
        await stream.wait_answers(4)
        assert stream.results == {1: b"A", 3: b"C", 4: b"D"}
        failure = stream.failures[2]
        assert (failure.code, failure.reason, failure.executed) == (UNKNOWN, "HANDLER_ERROR", YES)
        assert failure.message == "KeyError: 'bad'"


async def test_a_call_that_is_too_heavy_is_an_invalid_argument(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"aaa", b"x" * 9, b"bbbb", b"cc", b"d" * 6], method="weighed"))
        await stream.wait_answers(5)
        assert replica.handler.given == [[b"aaa", b"bbbb"], [b"cc", b"d" * 6]]
        failure = stream.failures[2]
        assert (failure.code, failure.reason, failure.executed) == (INVALID_ARGUMENT, "BAD_ARGUMENTS", NO)
        assert dict(failure.metadata) == {"weight": "9", "max_batch_size": "8"}


async def test_calls_of_a_batch_that_yields_end_each_at_its_own_time(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run([b"[3]", b"[1]"], method="counted", content_type=JSON, streaming=True),
            stream.run([b"[2]"], method="counted", content_type=JSON),
        )
        await stream.wait_answers(3)
        assert stream.values == {1: [b"0", b"1", b"2"], 2: [b"0"]}
        assert stream.results == {3: b"[0,1]"}
        assert stream.done == {1, 2}


async def test_a_handler_changes_how_its_batches_are_cut(replica: RunningReplica) -> None:
    async with replica.router() as stream:

        async def ask(arguments: bytes) -> bytes:
            await stream.send(run := stream.run([arguments], method="settle_for", content_type=JSON))
            return await wait_until(lambda: stream.results.get(run.first_run_id, b""))

        await stream.send(stream.run([b"a", b"b"], method="gathered"))
        await wait_until(lambda: replica.engine.scheduler.in_use == 2)
        assert await ask(b"[0, 1.0]") == b'"max_batch_size must be 1 \xe2\x80\xa6 100,000, got 0"'
        assert await ask(b"[2, 60.0]") == b'""'
        await wait_until(lambda: replica.handler.given == [[b"a", b"b"]])
        assert await ask(b"[4, 0.0]") == b'""'
        await stream.send(stream.run([b"c"], method="gathered"))
        await wait_until(lambda: replica.handler.given == [[b"a", b"b"], [b"c"]])


async def test_a_handler_can_see_how_its_batches_do(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"a", b"b", b"c"], method="held"))
        await wait_until(lambda: replica.handler.given)
        await stream.send(asked := stream.run([b"[]"], method="state_of_held", content_type=JSON))
        state = decode(JSON, await wait_until(lambda: stream.results.get(asked.first_run_id, b"")))
        (stack,) = state.pop("stacks")
        assert state == {"is_alive": True, "waiting": 1, "running": [2]}
        assert "await self.gate.wait()" in stack
        replica.handler.gate.set()
        await stream.wait_answers(4)
