"""The router over real gRPC, between a scripted controller, scripted replicas and a bare client stream."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from router_service.core.replicas.frames import MAX_FRAME_SLICES
from router_service.shell.clients.stream import ClientStream
from slotmesh.calls.key_hash import partition_of
from slotmesh.convert.batches import ids_of_results
from slotmesh.errors import Executed
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.transport.duplex import read_frame
from slotmesh.v1 import call_pb2, router_service_pb2
from tests.support.fakes.controller import table
from tests.support.fakes.replica import echo, hold, results
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

Options = call_pb2.CallOptions
CallBatch = router_service_pb2.CallBatch


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


@pytest.mark.asyncio
async def test_each_reply_comes_at_its_own_call(mesh: RouterBench) -> None:
    call = await mesh.open()
    payloads = [b"%d" % number for number in range(100)]
    await call.write(calls(1, *payloads[:60]))
    await call.write(calls(61, *payloads[60:]))
    done, failed = await outcomes(call, 100)
    assert done == {number + 1: payload for number, payload in enumerate(payloads)}
    assert not failed
    assert sum(len(run.payloads) for replica in mesh.replicas for run in replica.runs) == 100
    assert all(replica.runs for replica in mesh.replicas), "an unkeyed run is spread over idle replicas"


@pytest.mark.asyncio
async def test_batches_may_follow_open_at_once_and_half_close_answers_all(mesh: RouterBench) -> None:
    call = mesh.stub.StreamCalls()
    await call.write(Request(open=router_service_pb2.OpenStream(endpoint="echo")))
    await call.write(calls(1, b"a", b"b"))
    await call.done_writing()
    frames = []
    while (frame := await read_frame(call)) is not None:
        frames.append(frame)
    assert frames[0].WhichOneof("frame") == "opened"
    assert sum(len(ids_of_results(batch)) for frame in frames for batch in frame.results.batches) == 2
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["half-closed", "cancelled"])
@pytest.mark.parametrize("session", ["", "5e55" * 8])
async def test_a_stream_that_has_ended_leaves_nothing_to_the_garbage_collector(
    mesh: RouterBench, session: str, ending: str
) -> None:
    """Hundreds that end at once would else be found by one collection, for which all calls wait."""
    gc.collect()
    gc.freeze()  # each look at the objects is for new ones only
    gc.disable()
    try:
        call = await mesh.open(session_id=session, epoch=1 if session else 0)
        await call.write(calls(1, b"a"))
        done, _ = await outcomes(call, 1)
        assert done == {1: b"a"}
        assert any(isinstance(each, ClientStream) for each in gc.get_objects())
        if ending == "half-closed":
            await call.done_writing()
            assert await read_frame(call) is None
        else:
            call.cancel()
        await wait_until(
            lambda: not any(isinstance(each, ClientStream) for each in gc.get_objects()),
            what="the stream is freed",
        )
    finally:
        gc.enable()


@pytest.mark.asyncio
@pytest.mark.parametrize("has_column", [False, True])
async def test_512_calls_with_512_keys_are_a_few_batches_with_columns(mesh: RouterBench, has_column: bool) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    held: list[replica_service_pb2.RunBatch] = []
    replica.answer = held.append
    call = await mesh.open()
    keys = [f"key-{number}" for number in range(1, 513)]
    payloads = [b"%d" % number for number in range(1, 513)]
    if has_column:
        batches = [CallBatch(first_call_id=1, payloads=payloads, ordering_keys=keys)]
    else:
        batches = [
            CallBatch(first_call_id=at, payloads=[payload], options=Options(ordering_key=key))
            for at, (payload, key) in enumerate(zip(payloads, keys, strict=True), 1)
        ]
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=batches)))
    await wait_until(lambda: sum(len(run.payloads) for run in held) == 512, what="the runs arrive")
    frames = 1 if has_column else 512 // MAX_FRAME_SLICES
    assert len(held) == len(replica.frames[-len(held) :]) == frames
    assert [key for run in held for key in run.ordering_keys] == keys
    assert [partition for run in held for partition in run.partitions] == list(map(partition_of, keys))
    assert {epoch for run in held for epoch in run.owner_epochs} == {1}
    for run in held:
        await replica.say(echo(run))
    done, _ = await outcomes(call, 512)
    assert list(done) == list(range(1, 513))
    assert list(done.values()) == payloads


@pytest.mark.asyncio
async def test_a_column_of_keys_that_is_too_short_is_rejected(mesh: RouterBench) -> None:
    call = await mesh.open()
    batch = CallBatch(first_call_id=1, payloads=[b"a", b"b"], ordering_keys=["k"])
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[batch])))
    rejected = (await next_frame(call)).rejected
    assert (rejected.failure.reason, rejected.failure.metadata["field"]) == ("BAD_REQUEST", "ordering_keys")


@pytest.mark.asyncio
async def test_keyed_runs_go_to_the_owner_of_their_partition(mesh: RouterBench) -> None:
    call = await mesh.open()
    for number in range(1, 21):
        await call.write(calls(number, b"x", ordering_key=f"key-{number % 5}"))
    await outcomes(call, 20)
    for index, replica in enumerate(mesh.replicas):
        for run in replica.runs:
            partitions = list(run.partitions) or [run.partition]
            assert {partition % 2 for partition in partitions} == {index}
            assert set(run.owner_epochs or [run.owner_epoch]) == {1}


@pytest.mark.asyncio
async def test_a_batch_with_decreasing_ids_is_rejected_and_the_stream_lives_on(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(calls(10, b"a", b"b"))
    await outcomes(call, 2)
    await call.write(calls(11, b"again"))
    rejected = (await next_frame(call)).rejected
    assert (rejected.first_call_id, rejected.count) == (11, 1)
    assert rejected.failure.reason == "DUPLICATE_CALL_ID"
    assert rejected.failure.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert rejected.failure.executed == Executed.NO.value
    await call.write(calls(12, b"on"))
    assert (await outcomes(call, 1))[0] == {12: b"on"}


@pytest.mark.asyncio
async def test_sparse_ids_are_answered_under_their_own_ids(mesh: RouterBench) -> None:
    call = await mesh.open()
    batch = router_service_pb2.CallBatch(call_ids=[3, 7, 100], payloads=[b"3", b"7", b"100"])
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[batch])))
    assert (await outcomes(call, 3))[0] == {3: b"3", 7: b"7", 100: b"100"}
    for bad in (
        router_service_pb2.CallBatch(call_ids=[101, 102], payloads=[b"one"]),
        router_service_pb2.CallBatch(call_ids=[103, 103], payloads=[b"one", b"two"]),
        router_service_pb2.CallBatch(first_call_id=104),
        router_service_pb2.CallBatch(first_call_id=104, payloads=[b"x"], resend=True),
        router_service_pb2.CallBatch(first_call_id=2**53, payloads=[b"x"]),
    ):
        await call.write(Request(calls=router_service_pb2.CallFrame(batches=[bad])))
        assert (await next_frame(call)).WhichOneof("frame") == "rejected"


@pytest.mark.asyncio
async def test_over_the_window_a_batch_is_rejected_and_room_returns_with_results(mesh: RouterBench) -> None:
    for replica in mesh.replicas:
        replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 8192))
    await call.write(calls(8193, b"one more"))
    rejected = (await next_frame(call)).rejected
    assert rejected.failure.reason == "WINDOW_EXCEEDED"
    assert rejected.failure.HasField("retry_delay")
    await wait_until(lambda: all(replica.runs for replica in mesh.replicas))
    for replica in mesh.replicas:
        held = replica.runs
        replica.answer = echo
        for run in held:
            await replica.say(echo(run))
    await outcomes(call, 8192)
    await call.write(calls(8194, b"fits"))
    assert (await outcomes(call, 1))[0] == {8194: b"fits"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("frames", "code", "text"),
    [
        ([calls(1, b"x")], grpc.StatusCode.INVALID_ARGUMENT, "open"),
        ([Request(open=router_service_pb2.OpenStream())], grpc.StatusCode.INVALID_ARGUMENT, "open.endpoint"),
        (
            [Request(open=router_service_pb2.OpenStream(endpoint="echo", session_id="ab", epoch=1))],
            grpc.StatusCode.INVALID_ARGUMENT,
            "open.session_id",
        ),
        ([Request(open=router_service_pb2.OpenStream(endpoint="echo"))] * 2, grpc.StatusCode.INVALID_ARGUMENT, "open"),
        (
            [Request(open=router_service_pb2.OpenStream(endpoint="echo")), Request()],
            grpc.StatusCode.UNIMPLEMENTED,
            "0.2.0",
        ),
    ],
)
async def test_frames_that_break_the_contract_end_the_stream(
    mesh: RouterBench, frames: list[Request], code: grpc.StatusCode, text: str
) -> None:
    call = mesh.stub.StreamCalls()
    for frame in frames:
        await call.write(frame)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_the_end(call)
    assert caught.value.code() is code
    assert text in (caught.value.details() or "")


@pytest.mark.asyncio
async def test_results_out_of_order_and_in_pieces_find_their_calls(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, *[b"%d" % number for number in range(1, 9)]))
    await wait_until(lambda: replica.runs)
    run = replica.runs[0]
    order = [5, 0, 1, 7, 6, 3, 2, 4]
    frame = call_pb2.ResultFrame(
        batches=[
            call_pb2.ResultBatch(
                call_ids=[run.first_run_id + offset for offset in order],
                payloads=[run.payloads[offset] for offset in order],
            )
        ]
    )
    await replica.say(replica_service_pb2.ExecuteResponse(results=frame))
    await replica.say(results(run, [b"again"]))
    done, _ = await outcomes(call, 8)
    assert done == {number: b"%d" % number for number in range(1, 9)}


@pytest.mark.asyncio
async def test_alternates_are_the_other_routers(mesh: RouterBench) -> None:
    mesh.revision += 1
    wire = table(mesh.revision, {})
    wire.router_addresses.extend([mesh.address, "127.0.0.1:7171"])
    mesh.controller.push(wire)
    await wait_until(lambda: any(report.revision == mesh.revision for report in mesh.controller.reports))
    call: Call = mesh.stub.StreamCalls()
    mesh.calls.append(call)
    await call.write(Request(open=router_service_pb2.OpenStream(endpoint="echo")))
    assert list((await next_frame(call)).opened.alternates) == ["127.0.0.1:7171"]
