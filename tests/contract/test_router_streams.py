"""The router over real gRPC, between a scripted controller, scripted replicas and a bare client stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2, timestamp_pb2

from router_service.core.replicas.frames import MAX_FRAME_SLICES
from slotmesh.errors import Executed, Reason
from slotmesh.partitions import partition_of
from slotmesh.runtime.duplex import read_frame
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, replica_service_pb2, router_service_pb2
from tests.fakes.controller import table
from tests.fakes.replica import echo, hold, results
from tests.support.router_bench import Call, Request, RouterBench, calls, next_frame, outcomes, router_bench
from tests.support.wait import wait_until

Options = call_pb2.CallOptions
CallBatch = router_service_pb2.CallBatch


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


async def _read_to_the_end(call: Call) -> None:
    while await read_frame(call) is not None:
        pass


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
    assert sum(len(batch.call_ids) for frame in frames for batch in frame.results.batches) == 2
    assert await call.code() is grpc.StatusCode.OK


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
    assert len(held) == len(replica.frames[-len(held) :]) == 512 // MAX_FRAME_SLICES
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
    ("options", "code", "reason"),
    [
        ({"content_type": "text/plain"}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"timeout": duration_pb2.Duration(seconds=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"metadata": {"slotmesh-x": "1"}}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"method": "_private"}, grpc.StatusCode.NOT_FOUND, "METHOD_NOT_FOUND"),
        ({"relative_slo": duration_pb2.Duration(seconds=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (
            {"relative_slo": duration_pb2.Duration(), "absolute_slo": timestamp_pb2.Timestamp(seconds=1)},
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_REQUEST",
        ),
    ],
)
async def test_bad_options_fail_these_calls_only(
    mesh: RouterBench, options: dict[str, Any], code: grpc.StatusCode, reason: str
) -> None:
    call = await mesh.open()
    await call.write(calls(1, b"x", b"y", **options))
    await call.write(calls(3, b"fine"))
    done, failed = await outcomes(call, 3)
    assert done == {3: b"fine"}
    assert set(failed) == {1, 2}
    assert failed[1].code == code.value[0]
    assert failed[1].reason == reason
    assert failed[1].executed == Executed.NO.value
    name = list(options)[-1]
    assert f"options.{name}" in failed[1].message


@pytest.mark.asyncio
async def test_an_unknown_endpoint_fails_each_call_until_it_exists(mesh: RouterBench) -> None:
    call = await mesh.open("nowhere")
    await call.write(calls(1, b"x"))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "ENDPOINT_NOT_FOUND"
    assert "echo" in failed[1].message, "says what there is"
    mesh.revision += 1
    wire = table(mesh.revision, {"r0": mesh.replicas[0].address})
    wire.endpoints[0].name = "nowhere"
    mesh.controller.push(wire)
    await wait_until(lambda: any(report.revision == mesh.revision for report in mesh.controller.reports))
    await call.write(calls(2, b"now"))
    assert (await outcomes(call, 1))[0] == {2: b"now"}


@pytest.mark.asyncio
async def test_an_oversize_payload_fails_alone(mesh: RouterBench) -> None:
    call = await mesh.open()
    await call.write(calls(1, b"a", bytes(4 * 1024 * 1024 + 1), b"c"))
    done, failed = await outcomes(call, 3)
    assert done == {1: b"a", 3: b"c"}
    assert failed[2].reason == "PAYLOAD_TOO_LARGE"
    assert failed[2].metadata["actual"] == "4194305"
    assert failed[2].metadata["limit"] == "4194304"


@pytest.mark.asyncio
async def test_a_lost_replica_fails_what_it_had_and_nothing_else(mesh: RouterBench) -> None:
    lost, other = mesh.replicas
    lost.answer = hold
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 10))
    await wait_until(lambda: lost.runs and other.runs, what="both have runs")
    lost.break_link()
    done, failed = await outcomes(call, 10)
    assert len(done) == 5
    assert {failure.reason for failure in failed.values()} == {"REPLICA_LOST"}
    assert {failure.executed for failure in failed.values()} == {Executed.UNKNOWN.value}
    assert {failure.metadata["replica_id"] for failure in failed.values()} == {"r0"}


@pytest.mark.asyncio
async def test_refused_runs_go_elsewhere_unseen(mesh: RouterBench) -> None:
    full, other = mesh.replicas

    def refuse(run: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        last = run.first_run_id + len(run.payloads) - 1
        return replica_service_pb2.ExecuteResponse(
            refused=replica_service_pb2.RunsRefused(
                runs=[call_pb2.IdRange(first=run.first_run_id, last=last)],
                failure=call_pb2.Failure(code=8, reason="QUEUE_FULL", executed=Executed.NO.value),  # type: ignore[arg-type]
                capacity=call_pb2.Capacity(max_ongoing=512, others=512, keyed_window=8192),
            )
        )

    full.answer = refuse
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 10))
    done, failed = await outcomes(call, 10)
    assert len(done) == 10
    assert not failed
    assert sum(len(run.payloads) for run in other.runs) == 10


@pytest.mark.asyncio
async def test_deadlines_in_the_queue_and_at_the_replica(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    soon = duration_pb2.Duration(nanos=50_000_000)
    await call.write(calls(1, b"x", timeout=soon))
    _, failed = await outcomes(call, 1)
    assert failed[1].reason == "DEADLINE_RUNNING"
    assert failed[1].executed == Executed.UNKNOWN.value
    await wait_until(lambda: replica.frames[-1].WhichOneof("frame") == "cancel", what="the replica is told")
    assert 0 < replica.runs[0].time_left.nanos <= 50_000_000
    await mesh.linked()
    await call.write(calls(2, b"y", timeout=soon))
    _, failed = await outcomes(call, 1)
    assert failed[2].reason == "DEADLINE_IN_QUEUE"
    assert failed[2].executed == Executed.NO.value


@pytest.mark.asyncio
async def test_a_full_queue_and_a_queue_time_that_passes(mesh: RouterBench) -> None:
    await mesh.linked(max_queued_calls=3, max_queue_time=duration_pb2.Duration(nanos=50_000_000))
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 5))
    _, failed = await outcomes(call, 5)
    assert [failed[number].reason for number in range(1, 6)] == ["QUEUE_TIMEOUT"] * 3 + ["QUEUE_FULL"] * 2
    assert {failure.executed for failure in failed.values()} == {Executed.NO.value}


@pytest.mark.asyncio
async def test_a_client_that_leaves_cancels_what_it_left(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, b"x", b"y"))
    await wait_until(lambda: replica.runs)
    call.cancel()
    await wait_until(lambda: replica.frames[-1].WhichOneof("frame") == "cancel", what="the replica is told")
    cancelled = replica.frames[-1].cancel.runs[0]
    assert (cancelled.first, cancelled.last) == (replica.runs[0].first_run_id, replica.runs[0].first_run_id + 1)
    replica.answer = echo
    second = await mesh.open()
    await second.write(calls(1, b"z"))
    assert (await outcomes(second, 1))[0] == {1: b"z"}


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
            "0.1.0",
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
        await _read_to_the_end(call)
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
async def test_failures_count_in_the_size_of_a_frame(mesh: RouterBench) -> None:
    """A frame over the transport's limit would end the stream, and with it every call on it."""
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    await call.write(calls(1, *[b"x"] * 512))
    await wait_until(lambda: sum(len(run.payloads) for run in replica.runs) == 512)
    (run,) = replica.runs
    text = "x" * 8192
    for start in range(0, 512, 256):
        errors = [
            call_pb2.CallErrors(
                call_ids=[run.first_run_id + offset],
                failure=call_pb2.Failure(code=2, message=text, reason="HANDLER_ERROR", executed=3),  # type: ignore[arg-type]
            )
            for offset in range(start, start + 256)
        ]
        await replica.say(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(errors=errors)))
    failed = 0
    while failed < 512:
        frame = (await next_frame(call)).results
        assert frame.ByteSize() < 2 * 1024 * 1024
        failed += sum(len(errors.call_ids) for errors in frame.errors)


@pytest.mark.asyncio
async def test_a_client_that_reads_no_rejections_is_cut_off(mesh: RouterBench) -> None:
    call = await mesh.open()
    bad = router_service_pb2.CallBatch(first_call_id=0, payloads=[b""])
    await call.write(Request(calls=router_service_pb2.CallFrame(batches=[bad] * 20_000)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read_to_the_end(call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    second = await mesh.open()
    await second.write(calls(1, b"fine"))
    assert (await outcomes(second, 1))[0] == {1: b"fine"}


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
    async with asyncio.timeout(2.0):  # the grace is longer
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
        await _read_to_the_end(late)
    assert from_rpc_error(refused.value).reason is Reason.DRAINING
    await call.done_writing()
    await replica.say(echo(replica.runs[0]))
    assert (await outcomes(call, 1))[0] == {1: b"x"}
    await stopping


@pytest.mark.asyncio
async def test_replicas_hear_what_was_acknowledged_last_before_a_router_is_gone(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    call = await mesh.open(session_id="5e5510" * 5 + "00", epoch=1, features=["sessions"])
    await call.write(calls(1, b"x"))
    frame = await next_frame(call)
    await call.write(Request(ack=router_service_pb2.AckResults(through_frame=frame.results.frame_no)))
    await call.done_writing()
    assert await read_frame(call) is None
    await mesh.stop()
    assert any(frame.WhichOneof("frame") == "ack" for frame in mesh.replicas[0].frames)


@pytest.mark.asyncio
async def test_what_a_router_offers_is_named(mesh: RouterBench) -> None:
    call: Call = mesh.stub.StreamCalls()
    mesh.calls.append(call)
    await call.write(Request(open=router_service_pb2.OpenStream(endpoint="echo")))
    offered = set((await next_frame(call)).opened.features)
    assert offered == {"sessions", "chunks", "take_items", "ordering_keys", "stop_generation", "large_beside"}


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


@pytest.mark.asyncio
async def test_a_client_that_reads_no_results_is_admitted_no_more_until_it_does(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = await mesh.open()
    for number in range(1, 17):
        await call.write(calls(number, b"x"))
    await wait_until(lambda: sum(len(run.payloads) for run in replica.runs) == 16)
    for run in replica.runs:
        await replica.say(results(run, [bytes(1024 * 1024)] * len(run.payloads)))
    replica.answer = echo
    other = await mesh.open()
    await other.write(calls(1, b"x"))
    await outcomes(other, 1)  # came after those of the first stream, over the same link
    await call.write(calls(17, b"x"))
    answered, rejected = 0, ""
    while answered < 16 or not rejected:
        frame = await next_frame(call)
        answered += sum(len(batch.call_ids) for batch in frame.results.batches)
        rejected = rejected or frame.rejected.failure.message
        assert answered <= 16, "admitted all the same"
    assert "read them" in rejected
    await call.write(calls(18, b"x"))
    assert set((await outcomes(call, 1))[0]) == {18}
