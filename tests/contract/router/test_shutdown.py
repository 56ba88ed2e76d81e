"""A router that stops: calls are answered, acknowledgements handed on, new streams refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from router_service import servicer
from slotmesh.errors import Reason
from slotmesh.status import from_rpc_error
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import echo, hold
from tests.support.router_bench import (
    Call,
    Request,
    RouterBench,
    calls,
    next_frame,
    outcomes,
    read_to_the_end,
    router_bench,
)
from tests.support.wait import wait_until

REFUSED = 600
"""Single calls that take longer, one after another, than a router waits that stops and gets none."""


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench(graceful_timeout="60s") as bench:
        yield bench


@pytest.mark.asyncio
async def test_a_router_that_stops_answers_what_clients_sent_before_they_left(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"x"))
    await wait_until(lambda: replica.runs)
    stopping = asyncio.create_task(mesh.stop())
    leave = (await next_frame(call)).go_away
    assert leave.time_left.seconds > 0
    assert mesh.address not in leave.alternates
    await call.done_writing()
    await replica.say(echo(replica.runs[0]))
    assert (await outcomes(call, 1))[0] == {1: b"x"}
    assert await read_frame(call) is None
    async with asyncio.timeout(20.0):  # the grace is longer
        await stopping


@pytest.mark.asyncio
async def test_calls_that_cross_the_word_that_a_router_stops_are_answered_on_a_stream_that_had_none(
    mesh: RouterBench,
) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    busy = await mesh.open()
    await busy.write(calls(1, b"busy"))
    await wait_until(lambda: replica.runs)
    call = await mesh.open()
    stopping = asyncio.create_task(mesh.stop())
    assert (await next_frame(call)).WhichOneof("frame") == "go_away"
    await call.write(calls(1, b"x"))
    await call.done_writing()
    await wait_until(lambda: len(replica.runs) == 2)
    for stamp in range(1, 4):  # by then the router would have ended the stream, and its end would be here
        await busy.write(Request(heartbeat=call_pb2.Heartbeat(stamp=stamp)))
        while (await next_frame(busy)).heartbeat.echoed_stamp != stamp:
            pass
    assert not call.done()
    await replica.say(echo(replica.runs[1]))
    assert (await outcomes(call, 1))[0] == {1: b"x"}
    assert await read_frame(call) is None
    await replica.say(echo(replica.runs[0]))
    await busy.done_writing()
    await stopping


@pytest.mark.asyncio
async def test_a_router_that_stops_takes_no_new_streams(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"x"))
    await wait_until(lambda: replica.runs)
    stopping = asyncio.create_task(mesh.stop())
    assert (await next_frame(call)).WhichOneof("frame") == "go_away"
    late: Call = mesh.stub.StreamCalls()
    await late.write(Request(open=router_service_pb2.OpenStream(endpoint="echo")))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await read_to_the_end(late)
    assert from_rpc_error(refused.value).reason is Reason.DRAINING
    await call.done_writing()
    await replica.say(echo(replica.runs[0]))
    assert (await outcomes(call, 1))[0] == {1: b"x"}
    await stopping


@pytest.mark.asyncio
async def test_single_calls_are_refused_for_as_long_as_they_come(
    mesh: RouterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that arrives as gRPC's server stops ends CANCELLED: its client does not know whether it was executed."""
    monkeypatch.setattr(servicer, "REFUSES_AT_MOST_S", 60.0)
    await mesh.linked(mesh.replicas[0])
    request = router_service_pb2.CallRequest(endpoint="echo", payload=b"x")
    assert (await mesh.stub.Call(request, timeout=30)).payload == b"x"
    stopping = asyncio.create_task(mesh.stop())
    reasons: list[str] = []
    while len(reasons) < REFUSED:
        try:
            await mesh.stub.Call(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            reasons.append(from_rpc_error(error).reason)
    assert {*reasons} == {Reason.DRAINING}
    await stopping


@pytest.mark.asyncio
async def test_replicas_hear_what_was_acknowledged_last_before_a_router_is_gone(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    call = await mesh.open(session_id="5e5510" * 5 + "00", epoch=1)
    await call.write(calls(1, b"x"))
    frame = await next_frame(call)
    await call.write(Request(ack=router_service_pb2.AckResults(through_frame=frame.results.frame_no)))
    await call.done_writing()
    assert await read_frame(call) is None
    await mesh.stop()
    assert any(frame.WhichOneof("frame") == "ack" for frame in mesh.replicas[0].frames)
