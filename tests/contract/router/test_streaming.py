"""Handlers that yield, through the router over real gRPC: values as they come, and how such calls end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.convert.batches import ids_of_results
from slotmesh.errors import Executed, Reason
from slotmesh.streams.limits import CHUNK_BYTES, MAX_INLINE_BYTES
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.contract.router.yielding_replica import end, read_end, read_values, running, say_large, values
from tests.support.fakes.replica import cancelled, fail, hold
from tests.support.router_bench import Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

SESSION = "5e55" * 8


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    """A router with one replica that answers nothing by itself."""
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        bench.replicas[0].answer = hold
        yield bench


class TestStreams:
    @pytest.mark.asyncio
    async def test_values_come_as_they_are_yielded_and_the_call_ends_after_them(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(5, b"x", b"y", streaming=True, content_type="application/json"))
        (run,) = await running(replica)
        assert run.options.stream.each_value
        await replica.say(values(run, b"1", b"2"))
        assert await read_values(call, 2) == [(5, b"1"), (5, b"2")]
        await replica.say(values(run, b"3", at=1))
        assert await read_values(call, 1) == [(6, b"3")]
        await replica.say(end(run))
        assert await read_end(call) == [5, 6]

    @pytest.mark.asyncio
    async def test_a_failure_may_follow_values(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        await replica.say(fail(run))
        assert await read_values(call, 1) == [(1, b"1")]
        _, failed = await outcomes(call, 1)
        assert failed[1].reason == Reason.HANDLER_ERROR

    @pytest.mark.asyncio
    async def test_half_close_waits_for_the_end(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        await call.done_writing()
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert await read_values(call, 1) == [(1, b"1")]
        await replica.say(values(run, b"2"))
        await replica.say(end(run))
        assert await read_values(call, 1) == [(1, b"2")]
        assert await read_end(call) == [1]
        assert await read_frame(call) is None

    @pytest.mark.asyncio
    async def test_taking_a_call_back_stops_its_handler(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        await read_values(call, 1)
        await call.write(Request(cancel=router_service_pb2.CancelCalls(calls=[call_pb2.IdRange(first=1, last=1)])))
        _, failed = await outcomes(call, 1)
        assert (failed[1].reason, failed[1].executed) == (Reason.CANCELLED, Executed.YES.value)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_lost_replica_ends_what_it_had_begun_to_say(self, mesh: RouterBench) -> None:
        replica, other = mesh.replicas
        await mesh.linked(replica, other)
        replica.capacity.max_ongoing = other.capacity.max_ongoing = 1
        other.answer = hold
        call = await mesh.open()
        await call.write(calls(1, b"x", b"y", streaming=True, idempotent=True))
        await wait_until(lambda: replica.runs and other.runs)
        (run,) = replica.runs
        await replica.say(values(run, b"1"))
        ((call_id, _),) = await read_values(call, 1)
        replica.break_link()
        _, failed = await outcomes(call, 1)
        assert (failed[call_id].reason, failed[call_id].executed) == (Reason.REPLICA_LOST, Executed.YES.value)
        assert "broke after the handler had begun" in failed[call_id].message

    @pytest.mark.asyncio
    async def test_a_stream_of_which_no_value_came_broke_before_it_answered(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        await running(replica)
        replica.break_link()
        _, failed = await outcomes(call, 1)
        assert "broke before it answered" in failed[1].message

    @pytest.mark.asyncio
    async def test_a_session_that_breaks_off_ends_its_streaming_calls_and_no_other(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open(session_id=SESSION, epoch=1)
        await call.write(calls(1, b"x", streaming=True))
        await call.write(calls(2, b"y"))
        (run, other) = await running(replica, 2)
        assert (run.session_id, other.session_id) == (SESSION, SESSION), "starts of both are fenced"
        await replica.say(values(run, b"1"))
        await read_values(call, 1)
        call.cancel()
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])


class TestLargeValues:
    @pytest.mark.asyncio
    async def test_they_come_in_chunks_and_in_order(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open(features=["chunks"])
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        large = bytes(range(256)) * (2 * CHUNK_BYTES // 256) + b"the end"
        await say_large(replica, run, large)
        await replica.say(values(run, b"small"))
        await replica.say(end(run))
        parts = b""
        while (frame := await next_frame(call)).WhichOneof("frame") == "chunk":
            assert (frame.chunk.call_id, frame.chunk.offset) == (1, len(parts))
            parts += frame.chunk.data
        assert parts == large
        announced, *others = frame.results.batches
        assert (list(ids_of_results(announced)), list(announced.chunked_sizes)) == ([1], [len(large)])
        assert announced.partial
        while not others:
            others = list((await next_frame(call)).results.batches)
        assert [(list(ids_of_results(each)), list(each.payloads)) for each in others] == [([1], [b"small"])]

    @pytest.mark.asyncio
    async def test_what_is_too_large_for_its_caller_ends_the_call(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = await mesh.open()
        await call.write(calls(1, b"x", streaming=True))
        (run,) = await running(replica)
        await say_large(replica, run, bytes(MAX_INLINE_BYTES + 1))
        _, failed = await outcomes(call, 1)
        assert (failed[1].reason, failed[1].executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES.value)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])
