"""Handlers that yield, through the router over real gRPC: a slow reader holds up its own handler only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from router_service.shell.clients.taken_values import TAKE_VALUES
from slotmesh.v1 import call_pb2
from tests.contract.router.yielding_replica import Run, end, read_end, read_values, request, running, taken, values
from tests.support.fakes.replica import FakeReplica, echo, hold
from tests.support.router_bench import Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

CREDIT_BYTES = 1024 * 1024
"""What a replica lets a handler run ahead."""


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    """A router with one replica that answers nothing by itself."""
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        bench.replicas[0].answer = hold
        yield bench


class ScriptedHandler:
    """Yields the same value again and again, as far as the credit goes."""

    def __init__(self, replica: FakeReplica, run: Run, value: bytes, count: int) -> None:
        self.given = 0
        self._replica = replica
        self._run = run
        self._value = value
        self._count = count

    async def run(self) -> None:
        while self.given < self._count:
            await wait_until(self._may_go_on, timeout=20.0, what="values are taken")
            await self._replica.say(values(self._run, self._value))
            self.given += 1
        await self._replica.say(end(self._run))

    def _may_go_on(self) -> bool:
        ahead = self.given - taken(self._replica)[self._run.first_run_id]
        return (ahead + 1) * len(self._value) <= CREDIT_BYTES


class TestCredit:
    @pytest.mark.asyncio
    async def test_the_router_takes_what_was_written_for_who_does_not_say_so(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await replica.say(values(run, *[b"v"] * TAKE_VALUES))
        await read_values(call, TAKE_VALUES)
        await wait_until(lambda: taken(replica) == {run.first_run_id: TAKE_VALUES})

    @pytest.mark.asyncio
    async def test_a_client_that_says_so_is_heard_in_the_ids_of_the_replica(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        other = await mesh.open()
        await other.write(calls(1, b"somebody else's"))
        await running(replica, 1)
        call = await mesh.open(features=["take_items"])
        await call.write(calls(70, b"x", streaming=True))
        run = (await running(replica, 2))[1]
        await replica.say(values(run, *[b"v"] * 2 * TAKE_VALUES))
        await read_values(call, 2 * TAKE_VALUES)
        assert not taken(replica)
        take = call_pb2.TakeItems(call_ids=[70, 71, 1, 99], counts=[100, 7, 1, 1])
        await call.write(Request(take=take))
        await wait_until(lambda: taken(replica) == {run.first_run_id: 100})

    @pytest.mark.asyncio
    @pytest.mark.parametrize("is_unary", [False, True])
    async def test_who_reads_slowly_holds_up_the_handler_and_nobody_else(
        self, mesh: RouterBench, is_unary: bool
    ) -> None:
        replica = mesh.replicas[0]
        value, count = bytes(64 * 1024), 512
        if is_unary:
            call = mesh.stub.CallStreaming(request())
        else:
            call = await mesh.open()
            await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        handler = ScriptedHandler(replica, run, value, count)
        running_on = asyncio.ensure_future(handler.run())
        await wait_until(lambda: handler.given * len(value) >= CREDIT_BYTES)
        replica.answer = echo
        busy = await mesh.open()
        for call_id in range(1, 200):  # so many turns would be enough for the handler to run to its end
            await busy.write(calls(call_id, b"meanwhile"))
            assert (await outcomes(busy, 1))[0] == {call_id: b"meanwhile"}
        assert handler.given * len(value) <= 12 * 1024 * 1024, "the credit, and what gRPC has on its way"
        read = 0
        while read < count:
            if is_unary:
                assert (await call.read()).payload == value
                read += 1
            else:
                read += sum(len(batch.payloads) for batch in (await next_frame(call)).results.batches)
        await running_on


class TestManyCalls:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("features", [[], ["take_items"]])
    async def test_one_that_reads_nothing_gets_little_more_than_with_few(
        self, mesh: RouterBench, features: list[str]
    ) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open(features=features)
        await call.write(calls(1, *[b"x"] * 20, streaming=True))
        for call_id in range(21, 101):
            await call.write(calls(call_id, b"x", streaming=True))
        await wait_until(lambda: sum(len(run.payloads) for run in replica.runs) == 100)
        assert sum(len(run.payloads) * (run.bytes_ahead or CREDIT_BYTES) for run in replica.runs) <= 14 * CREDIT_BYTES
        run = next(run for run in replica.runs if run.first_run_id <= 99 < run.first_run_id + len(run.payloads))
        at = 99 - run.first_run_id
        await replica.say(values(run, *[b"v"] * run.values_ahead, at=at))
        await read_values(call, run.values_ahead)
        await wait_until(lambda: taken(replica)[99] >= run.values_ahead // 2, what="the client reads")

    @pytest.mark.asyncio
    async def test_once_they_have_ended_a_call_is_alone_again(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, *[b"x"] * 100, streaming=True))
        (run,) = await running(replica)
        assert run.bytes_ahead < CREDIT_BYTES
        await replica.say(end(run))
        await read_end(call)
        await call.write(calls(101, b"x", streaming=True))
        assert (await running(replica, 2))[1].bytes_ahead == 0
