"""Calls that fail alone, each with its reason, on a stream that lives on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from slotmesh.convert.batches import ids_from_wire, ids_to_wire
from slotmesh.errors import Executed
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.v1 import call_pb2
from tests.support.fakes.controller import table
from tests.support.fakes.replica import echo, hold
from tests.support.router_bench import (
    RouterBench,
    calls,
    next_frame,
    outcomes,
    router_bench,
)
from tests.support.wait import wait_until


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ({"content_type": "text/plain"}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"timeout": duration_pb2.Duration(seconds=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"metadata": {"slotmesh-x": "1"}}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"method": "_private"}, grpc.StatusCode.NOT_FOUND, "METHOD_NOT_FOUND"),
        ({"relative_slo": duration_pb2.Duration(seconds=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
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
            ),
            capacity=replica_service_pb2.Capacity(max_ongoing=512, others=512, keyed_window=8192),
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
                calls=ids_to_wire([run.first_run_id + offset]),
                failure=call_pb2.Failure(code=2, message=text, reason="HANDLER_ERROR", executed=3),  # type: ignore[arg-type]
            )
            for offset in range(start, start + 256)
        ]
        await replica.say(replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(errors=errors)))
    failed = 0
    while failed < 512:
        frame = (await next_frame(call)).results
        assert frame.ByteSize() < 2 * 1024 * 1024
        failed += sum(len(ids_from_wire(errors.calls)) for errors in frame.errors)
