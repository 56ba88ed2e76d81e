"""`ReplicaService.Execute` over real gRPC: what routers rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from slotmesh.codec import JSON, MSGPACK
from slotmesh.internal.v1 import replica_service_pb2, replica_service_pb2_grpc
from slotmesh.runtime.channels import open_channel
from slotmesh.status import DOMAIN
from slotmesh.version import VERSION
from tests.support.execute_stream import Request
from tests.support.replicas import HANDLERS, RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

NO, UNKNOWN, YES = 1, 2, 3


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica() as running:
        yield running


# -- opening -----------------------------------------------------------------------------------------------------


async def test_the_first_frame_is_the_capacity(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        assert stream.frames[0] == "opened"
        assert stream.capacities[:1] == [replica_service_pb2.Capacity(max_ongoing=8, prefetch=4, keyed_window=8192)]


@pytest.mark.parametrize("identity", [{"replica_id": "another"}, {"incarnation": "0" * 32}, {"replica_id": ""}])
async def test_a_router_that_means_another_replica_is_refused(
    replica: RunningReplica, identity: dict[str, str]
) -> None:
    async with replica.router(**identity) as stream:
        await wait_until(lambda: stream.ended)
        assert_ended(stream, grpc.StatusCode.FAILED_PRECONDITION, "REPLICA_GONE")


async def test_the_first_frame_must_be_open(replica: RunningReplica) -> None:
    async with open_channel(replica.address) as channel:
        call = replica_service_pb2_grpc.ReplicaServiceStub(channel).Execute()
        await call.write(Request(runs=replica_service_pb2.RunFrame()))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_frames_that_it_does_not_know_end_the_stream(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.write(Request())
        await wait_until(lambda: stream.ended)
        assert_ended(stream, grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED")
        assert stream.error is not None
        assert stream.error.details() == f"unknown frame: slotmesh {VERSION} does not take this frame"


async def test_a_second_open_ends_the_stream(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.write(Request(open=replica_service_pb2.OpenExecute()))
        await wait_until(lambda: stream.ended)
        assert_ended(stream, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")


async def test_repeated_run_ids_end_the_stream(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        run = stream.run([b"x"])
        await stream.send(run)
        await stream.send(run)
        await wait_until(lambda: stream.ended)
        assert_ended(stream, grpc.StatusCode.INVALID_ARGUMENT, "DUPLICATE_CALL_ID")


async def test_health_says_serving(replica: RunningReplica) -> None:
    async with open_channel(replica.address) as channel:
        assert await health(channel) == health_pb2.HealthCheckResponse.SERVING


# -- calls -------------------------------------------------------------------------------------------------------


async def test_each_kind_of_method_answers(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        runs = [
            stream.run([b"a", b"b"]),
            stream.run([b"c"], method="thread"),
            stream.run([b"d"], method="upper"),
            stream.run([b'["you"]', b'{"name": "me"}'], method="greet", content_type=JSON),
            stream.run([b"\x91\xa1x"], method="greet", content_type=MSGPACK),
        ]
        await stream.send(*runs)
        await stream.wait_answers(7)
        assert [stream.results[run_id] for run_id in range(1, 8)] == [
            b"a",
            b"b",
            b"c",
            b"D",
            b'"hello, you"',
            b'"hello, me"',
            b"\xa8hello, x",
        ]
        assert [stream.content_types[run_id] for run_id in (1, 5, 7)] == ["application/octet-stream", JSON, MSGPACK]
        assert stream.frame_numbers == list(range(1, len(stream.frame_numbers) + 1))


async def test_failures_say_what_was_executed(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(
            stream.run([b"no good"], method="fail"),
            stream.run([b"{"], method="greet", content_type=JSON),
            stream.run([b"x"], method="nowhere"),
            stream.run([b"[1]"], method="stream"),
            stream.run([b"x"], content_type="text/plain"),
            stream.run([b"x"], time_left_s=0),
            stream.run([b"good"]),
        )
        await stream.wait_answers(7)
        told = {run_id: (each.reason, each.executed) for run_id, each in stream.failures.items()}
        assert told == {
            1: ("HANDLER_ERROR", YES),
            2: ("BAD_ARGUMENTS", NO),
            3: ("METHOD_NOT_FOUND", NO),
            4: ("BAD_REQUEST", NO),
            5: ("BAD_REQUEST", NO),
            6: ("DEADLINE_IN_QUEUE", NO),
        }
        assert stream.failures[1].message == "ValueError: no good"
        assert stream.failures[1].code == grpc.StatusCode.UNKNOWN.value[0]
        assert stream.results == {7: b"good"}


async def test_512_keys_come_as_one_frame_and_leave_as_few(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        runs = [stream.run([b"%d" % index], key=f"key-{index}", partition=index) for index in range(512)]
        await stream.send(*runs)
        await stream.wait_answers(512)
        assert stream.results == {index + 1: b"%d" % index for index in range(512)}
        # How long frames are held back follows from how quick calls are; a busy machine makes some frames more of it.
        assert len(stream.frame_numbers) <= 32


async def test_unkeyed_calls_past_the_room_are_refused_and_keyed_ones_wait(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"x"] * 20, method="wait"))
        await stream.wait_answers(8)
        assert list(stream.refused) == list(range(13, 21))
        assert {(each.reason, each.executed) for each in stream.refused.values()} == {("QUEUE_FULL", NO)}
        capacity = stream.capacities[-1]
        assert (capacity.max_ongoing, capacity.prefetch, capacity.others) == (8, 4, 0)
        await stream.send(*(stream.run([b"k"] * 300, key=f"k{index}") for index in range(4)))
        async with replica.router("router-2") as other:
            assert other.capacities[0].others == 12
            await other.send(other.run([b"x"], method="open"))
            await wait_until(lambda: other.refused)
            # It was told that there is no room; it hears when there is.
            replica.handler.gate.set()
            await wait_until(lambda: other.capacities[-1].others < 12, what="room")
        await stream.wait_answers(20 + 1200)
        assert len(stream.results) == 12 + 1200


async def test_calls_that_are_taken_back_have_one_answer_each(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"x"] * 12, method="wait"), stream.run([b"y"] * 5, key="k"))
        await stream.cancel((1, 12), (15, 99))
        await stream.send(stream.run([b"o"], method="open", key="o"))
        await stream.cancel((1000, 2000))
        await wait_until(lambda: stream.answered >= 4)
        replica.handler.gate.set()
        await stream.wait_answers(18)
        assert {each.reason for each in stream.failures.values()} <= {"CANCELLED"}
        assert set(range(9, 13)) <= set(stream.failures)
        assert set(range(1, 9)) <= set(stream.results) | set(stream.failures)
        running = [failure for run_id, failure in stream.failures.items() if run_id < 9]
        assert {each.executed for each in running} <= {NO, UNKNOWN}
        never = [failure for failure in running if failure.executed == NO]
        assert len(replica.handler.started) == 8 - len(never)


async def test_runs_of_an_older_epoch_are_refused(replica: RunningReplica) -> None:
    async with replica.router() as stream, replica.router("router-2") as late:
        await stream.send(stream.run([b"x"], key="k", partition=7, epoch=12))
        await stream.wait_answers(1)
        await late.send(
            late.run([b"x"], key="other key", partition=7, epoch=11), late.run([b"y"], key="k", partition=8, epoch=11)
        )
        await late.wait_answers(2)
        assert {run_id: each.reason for run_id, each in late.refused.items()} == {1: "STALE_TABLE"}
        assert late.results == {2: b"y"}


async def test_half_close_answers_everything_and_ends_ok(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"x"] * 3), stream.run([b"y"], method="upper"))
        await stream.call.done_writing()
        await wait_until(lambda: stream.ended)
        assert stream.error is None
        assert len(stream.results) == 4


async def test_a_router_that_goes_takes_its_waiting_calls_along(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        runs = stream.run([b"x"] * 12, method="wait_in_thread"), stream.run([b"y"], method="wait_in_thread", key="k")
        await stream.send(*runs)
        await wait_until(lambda: len(replica.handler.started) == 8)
    scheduler = replica.engine.scheduler
    await wait_until(lambda: scheduler.waiting == 0)
    async with replica.router("router-2") as other:
        assert other.capacities[0].others == 8
        replica.handler.open_all()
        await wait_until(lambda: scheduler.is_idle)


async def test_large_payloads_pass(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        payload = bytes(4 * 1024 * 1024)
        await stream.send(*(stream.run([payload]) for _ in range(4)))
        await stream.wait_answers(4)
        assert all(result == payload for result in stream.results.values())


# -- drain -------------------------------------------------------------------------------------------------------


async def test_a_drain_hands_back_finishes_and_ends_the_streams_ok(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        await stream.send(stream.run([b"x"] * 10, method="wait"), stream.run([b"k"] * 2, method="wait", key="k"))
        await wait_until(lambda: len(replica.handler.started) == 8)
        replica.app.replica.stop_asked.set()
        await wait_until(lambda: stream.go_away)
        assert stream.capacities[-1].draining
        assert {each.reason for each in stream.refused.values()} <= {"DRAINING"}
        await stream.send(stream.run([b"late"]), stream.run([b"late"], key="k"))
        await wait_until(lambda: {13, 14} <= set(stream.refused), what="refusals of what came late")
        async with open_channel(replica.address) as channel:
            assert await health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING
        replica.handler.gate.set()
        await wait_until(lambda: stream.ended)
        assert stream.error is None
        assert stream.answered == 14
        # Seven unkeyed calls and a lane ran; what waited behind them went back.
        assert {*range(1, 8), 11} <= set(stream.results)
        assert {8, 9, 10} <= set(stream.refused)
        assert await replica.task == 0


async def test_a_function_is_a_handler() -> None:
    async with running_replica(f"{HANDLERS}:shout") as replica, replica.router() as stream:
        assert replica.app.identity.backend == "shout"
        await stream.send(stream.run([b"a"], method=""), stream.run([b"b"], method="__call__"))
        await stream.wait_answers(2)
        assert stream.results == {1: b"A", 2: b"B"}


async def health(channel: grpc.aio.Channel) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    return int(answer.status)


def assert_ended(stream: Any, code: grpc.StatusCode, reason: str) -> None:
    """The stream ended with this status, and the details name the reason and that nothing was executed."""
    assert stream.error is not None
    assert stream.error.code() is code
    status = rpc_status.from_call(stream.error)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, info.metadata["executed"]) == (reason, DOMAIN, "no")


async def test_nothing_is_left_running() -> None:
    before = asyncio.all_tasks()
    async with running_replica() as replica, replica.router() as stream:
        await stream.send(stream.run([b"x"]), stream.run([b"x"], method="thread"))
        await stream.wait_answers(2)
    await wait_until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
