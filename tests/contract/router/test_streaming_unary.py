"""Handlers that yield, through the router by an rpc a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from router_service.shell.clients.taken_values import TAKE_VALUES
from slotmesh.errors import Executed, Reason
from slotmesh.status import from_rpc_error
from slotmesh.streams.limits import CHUNK_BYTES, MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.contract.router.yielding_replica import end, request, running, say_large, taken, values
from tests.support.fakes.replica import cancelled, fail, hold, results
from tests.support.router_bench import RouterBench, router_bench
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    """A router with one replica that answers nothing by itself."""
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        bench.replicas[0].answer = hold
        yield bench


async def failure_of(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


class TestUnary:
    @pytest.mark.asyncio
    async def test_a_response_for_each_value(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request(content_type="application/json"))
        (run,) = await running(replica)
        assert run.options.stream.each_value
        await replica.say(values(run, b"1", b"2"))
        first, second = await call.read(), await call.read()
        assert [first.payload, second.payload] == [b"1", b"2"]
        assert first.content_type == "application/json"
        await replica.say(values(run, b"3"))
        await replica.say(end(run))
        assert (await call.read()).payload == b"3"
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK

    @pytest.mark.asyncio
    async def test_values_are_taken_as_they_are_written(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, *[b"v"] * TAKE_VALUES))
        await wait_until(lambda: taken(replica) == {run.first_run_id: TAKE_VALUES})
        call.cancel()

    @pytest.mark.asyncio
    async def test_a_failure_follows_the_values_with_its_details(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        await replica.say(fail(run))
        assert (await call.read()).payload == b"1"
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.YES)
        assert failure.metadata["replica_id"] == "r0"

    @pytest.mark.asyncio
    async def test_a_caller_that_leaves_stops_the_handler(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert (await call.read()).payload == b"1"
        call.cancel()
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_value_that_is_too_large_ends_it(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await say_large(replica, run, bytes(CHUNK_BYTES + 1))
        await say_large(replica, run, bytes(MAX_INLINE_BYTES + 1))
        assert len((await call.read()).payload) == CHUNK_BYTES + 1
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_deadline_ends_it_between_values(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request(timeout=duration_pb2.Duration(seconds=1)))
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert (await call.read()).payload == b"1"
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.DEADLINE_RUNNING, Executed.YES)
        await wait_until(lambda: cancelled(replica) == [run.first_run_id])

    @pytest.mark.asyncio
    async def test_a_replica_that_is_lost_ends_it(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        await running(replica)
        replica.break_link()
        failure = await failure_of(call.read())
        assert (failure.reason, failure.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)

    @pytest.mark.asyncio
    async def test_mistakes_are_named(self, mesh: RouterBench) -> None:
        for wrong, field in (
            (request(stream=call_pb2.StreamOptions(no_reply=True)), "options.stream.no_reply"),
            (request(content_type="text/html"), "options.content_type"),
            (router_service_pb2.CallStreamingRequest(), "endpoint"),
        ):
            failure = await failure_of(mesh.stub.CallStreaming(wrong).read())
            assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, field)
        failure = await failure_of(mesh.stub.CallStreaming(request(bytes(MAX_INLINE_BYTES + 1))).read())
        assert failure.reason is Reason.PAYLOAD_TOO_LARGE
        assert not mesh.replicas[0].runs

    @pytest.mark.asyncio
    async def test_a_router_that_stops_waits_for_it(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        call = mesh.stub.CallStreaming(request())
        (run,) = await running(replica)
        await replica.say(values(run, b"1"))
        assert (await call.read()).payload == b"1"
        stopping = asyncio.ensure_future(mesh.stop())
        await replica.say(values(run, b"2"))
        await replica.say(end(run))
        assert (await call.read()).payload == b"2"
        assert await call.read() is grpc.aio.EOF
        await stopping

    @pytest.mark.asyncio
    async def test_a_call_for_one_result_gets_one(self, mesh: RouterBench) -> None:
        replica = mesh.replicas[0]
        replica.answer = lambda run: results(run, [b"[1,2,3]"])
        response = await mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo", payload=b"x"))
        assert response.payload == b"[1,2,3]"
        assert not replica.runs[0].options.stream.each_value
        options = call_pb2.CallOptions(stream=call_pb2.StreamOptions(each_value=True))
        wrong = router_service_pb2.CallRequest(endpoint="echo", options=options)
        failure = await failure_of(mesh.stub.Call(wrong))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "options.stream.each_value")
