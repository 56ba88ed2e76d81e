"""Frames that hold more than a frame may: their sender gets the reason, and other clients are not affected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from router_service.convert.sessions import MAX_FEATURES, MAX_UNANSWERED_RANGES
from slotmesh.errors import Reason
from slotmesh.names import MAX_ENDPOINT_CHARS
from slotmesh.status import from_rpc_error
from slotmesh.streams.limits import MAX_ELEMENTS
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.replica import hold
from tests.support.router_bench import Call, Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

CallBatch = router_service_pb2.CallBatch
IdRange = call_pb2.IdRange
SESSION = "0123456789abcdef" * 2


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def _read_to_the_end(call: Call) -> None:
    while await read_frame(call) is not None:
        pass


async def end_of(call: Call) -> Any:
    """Why the stream ended."""
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await _read_to_the_end(call)
    return from_rpc_error(ended.value)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (Request(calls=router_service_pb2.CallFrame(batches=[CallBatch()] * (MAX_ELEMENTS + 1))), "calls.batches"),
        (Request(cancel=router_service_pb2.CancelCalls(calls=[IdRange()] * (MAX_ELEMENTS + 1))), "cancel.calls"),
        (Request(take=call_pb2.TakeItems(call_ids=range(MAX_ELEMENTS + 1))), "take.call_ids"),
    ],
)
async def test_a_frame_of_too_much_ends_its_stream_and_no_other(mesh: RouterBench, frame: Request, field: str) -> None:
    bystander, call = await mesh.open(), await mesh.open()
    mesh.replicas[0].answer = mesh.replicas[1].answer = hold
    await bystander.write(calls(1, b"1"))
    await wait_until(lambda: mesh.replicas[0].held or mesh.replicas[1].held)
    await call.write(frame)
    failure = await end_of(call)
    assert failure.reason is Reason.BAD_REQUEST
    assert failure.metadata["field"] == field
    assert field in failure.message
    for replica in mesh.replicas:
        await replica.answer_held()
    assert (await outcomes(bystander, 1))[0] == {1: b"1"}


@pytest.mark.asyncio
async def test_the_largest_frame_that_may_be_is_answered(mesh: RouterBench) -> None:
    """In parts: other streams have their turn between them."""
    call = await mesh.open()
    batches = [CallBatch(first_call_id=number, payloads=[b"x"]) for number in range(1, 8193)]
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
    done, failed = await outcomes(call, len(batches))
    assert len(done) == len(batches)
    assert not failed


@pytest.mark.asyncio
async def test_empty_batches_end_the_stream_once_too_many_of_them_are_rejected(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[CallBatch()] * MAX_ELEMENTS)))
    failure = await end_of(call)
    assert failure.reason is Reason.WINDOW_EXCEEDED


@pytest.mark.asyncio
async def test_a_batch_that_no_window_could_hold_is_rejected_unseen(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(calls(1, *[b""] * 8193))
    rejected = (await next_frame(call)).rejected
    assert (rejected.count, rejected.failure.reason) == (8193, "WINDOW_EXCEEDED")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (
            {"unanswered": [IdRange(first=at, last=at) for at in range(1, 2 * MAX_UNANSWERED_RANGES + 2, 2)]},
            "open.unanswered",
        ),
        ({"unanswered": [IdRange()] * (MAX_ELEMENTS + 1)}, "open.unanswered"),
        ({"rosters": [router_service_pb2.RosterVersion(generation="g", revision=1)] * 65}, "open.rosters"),
        ({"features": ["f"] * (MAX_FEATURES + 1)}, "open.features"),
        ({"endpoint": "e" * (MAX_ENDPOINT_CHARS + 1)}, "open.endpoint"),
    ],
)
async def test_an_opening_that_brings_too_much_is_refused(
    mesh: RouterBench, fields: dict[str, Any], field: str
) -> None:
    call = mesh.stub.StreamCalls()
    opening = {"endpoint": "echo", "session_id": SESSION, "epoch": 2, **fields}
    await call.write(Request(open=router_service_pb2.OpenStream(**opening)))
    failure = await end_of(call)
    assert failure.reason is Reason.BAD_REQUEST
    assert failure.metadata["field"] == field


@pytest.mark.asyncio
async def test_options_of_any_size_are_not_taken(mesh: RouterBench) -> None:
    call = await mesh.open(default_options=call_pb2.CallOptions(method="m" * 100_000))
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[CallBatch(first_call_id=1, payloads=[b""])])))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "BAD_REQUEST"
    assert "options" in failed[1].message
