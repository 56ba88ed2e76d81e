"""Unary calls through the router, over real gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2, struct_pb2

from slotmesh.codec import JSON
from slotmesh.convert.batches import ids_to_wire
from slotmesh.errors import Executed, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.streams.limits import MAX_ELEMENTS, MAX_ROUTER_REQUEST_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.fakes.controller import table
from tests.support.fakes.replica import FakeReplica, echo, hold, results
from tests.support.router_bench import RouterBench, router_bench
from tests.support.tiers import long
from tests.support.wait import wait_until

Options = call_pb2.CallOptions


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


def request(payload: bytes = b"x", endpoint: str = "echo", **options: Any) -> router_service_pb2.CallRequest:
    return router_service_pb2.CallRequest(endpoint=endpoint, payload=payload, options=Options(**options))


async def failure_of(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


@pytest.mark.asyncio
async def test_a_call_says_who_executed_it(mesh: RouterBench) -> None:
    response = await mesh.stub.Call(request(b"hello"))
    assert response.payload == b"hello"
    assert response.backend == "b"
    assert response.replica_id in {"r0", "r1"}


@pytest.mark.asyncio
async def test_failures_carry_their_reason_and_whether_the_call_ran(mesh: RouterBench) -> None:
    failure = await failure_of(mesh.stub.Call(request(endpoint="nowhere")))
    assert (failure.reason, failure.executed) == (Reason.ENDPOINT_NOT_FOUND, Executed.NO)
    failure = await failure_of(mesh.stub.Call(request(endpoint="")))
    assert failure.reason is Reason.BAD_REQUEST
    assert "endpoint" in failure.message
    failure = await failure_of(mesh.stub.Call(request(bytes(4 * 1024 * 1024 + 1))))
    assert failure.reason is Reason.PAYLOAD_TOO_LARGE
    failure = await failure_of(mesh.stub.Call(request(content_type="text/html")))
    assert failure.reason is Reason.BAD_REQUEST

    def fail(run: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        wire = call_pb2.Failure(
            code=2, reason="HANDLER_ERROR", message="ValueError: no", executed=call_pb2.EXECUTED_YES
        )
        errors = call_pb2.CallErrors(calls=ids_to_wire([run.first_run_id]), failure=wire)
        return replica_service_pb2.ExecuteResponse(results=call_pb2.ResultFrame(errors=[errors]))

    for replica in mesh.replicas:
        replica.answer = fail
    failure = await failure_of(mesh.stub.Call(request()))
    assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.YES)
    assert failure.metadata["replica_id"] in {"r0", "r1"}


@pytest.mark.asyncio
async def test_a_lost_replica_and_a_deadline(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    failure = await failure_of(mesh.stub.Call(request(timeout=duration_pb2.Duration(nanos=30_000_000))))
    assert (failure.reason, failure.executed) == (Reason.DEADLINE_RUNNING, Executed.UNKNOWN)
    pending = asyncio.ensure_future(failure_of(mesh.stub.Call(request())))
    await wait_until(lambda: len(replica.runs) == 2)
    replica.break_link()
    failure = await pending
    assert (failure.reason, failure.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)


@pytest.mark.asyncio
async def test_a_caller_that_leaves_cancels_its_call(mesh: RouterBench) -> None:
    await mesh.linked(mesh.replicas[0])
    replica = mesh.replicas[0]
    replica.answer = hold
    call = mesh.stub.Call(request())
    await wait_until(lambda: replica.runs)
    call.cancel()
    await wait_until(lambda: replica.frames[-1].WhichOneof("frame") == "cancel", what="the replica is told")


@pytest.mark.asyncio
async def test_json_values_in_and_out(mesh: RouterBench) -> None:
    seen: list[bytes] = []

    def answer(run: replica_service_pb2.RunBatch) -> replica_service_pb2.ExecuteResponse:
        seen.append(run.payloads[0])
        assert run.options.content_type == JSON
        return results(run, [b'{"sum":3,"half":1.5,"none":null}'])

    for replica in mesh.replicas:
        replica.answer = answer
    arguments = struct_pb2.Value()
    arguments.list_value.extend([1, 2.0, 2.5, "x", True, None])
    response = await mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo", arguments=arguments))
    assert seen == [b'[1,2,2.5,"x",true,null]']
    assert response.result.struct_value["sum"] == 3
    assert response.result.struct_value["half"] == 1.5
    named = struct_pb2.Value()
    named.struct_value.update({"a": 1})
    await mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo", arguments=named))
    await mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo"))
    assert seen[1:] == [b'{"a":1}', b"[]"]
    scalar = struct_pb2.Value(number_value=3)
    wrong = mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo", arguments=scalar))
    failure = await failure_of(wrong)
    assert failure.reason is Reason.BAD_ARGUMENTS
    assert "arguments" in failure.message


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"[" + b"0," * MAX_ELEMENTS + b"0]", Reason.PAYLOAD_TOO_LARGE),
        (b"[" * 60 + b"]" * 60, Reason.PAYLOAD_TOO_LARGE),
        (b'{"secret":1', Reason.INTERNAL),
    ],
)
async def test_a_result_that_no_json_value_can_hold_is_refused_in_constant_words(
    mesh: RouterBench, payload: bytes, reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    for replica in mesh.replicas:
        replica.answer = lambda run: results(run, [payload])
    failure = await failure_of(mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo")))
    assert (failure.reason, failure.executed) == (reason, Executed.YES)
    assert "as `payload`" in failure.message
    assert "secret" not in failure.message + caplog.text
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.asyncio
async def test_a_content_type_is_repeated_in_part(mesh: RouterBench) -> None:
    options = Options(content_type="t" * 2_000)
    for call in (
        mesh.stub.Call(router_service_pb2.CallRequest(endpoint="echo", options=options)),
        mesh.stub.Call(request(content_type="t" * 2_000)),
    ):
        failure = await failure_of(call)
        assert failure.reason is Reason.BAD_REQUEST
        assert len(failure.message) < 300


@pytest.mark.asyncio
async def test_a_router_reads_no_message_larger_than_clients_need(mesh: RouterBench) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await mesh.stub.Call(request(bytes(MAX_ROUTER_REQUEST_BYTES)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    failure = await failure_of(mesh.stub.Call(request(bytes(MAX_ROUTER_REQUEST_BYTES // 2))))
    assert failure.reason is Reason.PAYLOAD_TOO_LARGE


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1_000, long(8_000)])
async def test_a_burst_of_calls_ends_ok_or_exhausted_and_none_is_cancelled(mesh: RouterBench, count: int) -> None:
    await mesh.linked(*mesh.replicas, max_ongoing=64, max_queued_calls=count // 2)
    replica_answers = echo
    for replica in mesh.replicas:
        replica.answer = replica_answers
    outcomes: Counter[grpc.StatusCode] = Counter()

    async def one() -> None:
        try:
            await mesh.stub.Call(request())
            outcomes[grpc.StatusCode.OK] += 1
        except grpc.aio.AioRpcError as error:
            outcomes[error.code()] += 1

    await asyncio.gather(*(one() for _ in range(count)))
    assert set(outcomes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, outcomes
    assert outcomes.total() == count
    assert outcomes[grpc.StatusCode.OK] >= count // 2
    assert (await mesh.stub.Call(request(b"after"))).payload == b"after"


@pytest.mark.asyncio
async def test_an_endpoint_that_is_removed_fails_what_is_queued(mesh: RouterBench) -> None:
    await mesh.linked()
    pending = [asyncio.ensure_future(failure_of(mesh.stub.Call(request()))) for _ in range(3)]
    await wait_until(
        lambda: any(load.queued == 3 for report in mesh.controller.reports for load in report.loads),
        what="the calls are queued",
    )
    mesh.revision += 1
    wire = table(mesh.revision, {})
    del wire.endpoints[:]
    mesh.controller.push(wire)
    failures = await asyncio.gather(*pending)
    assert {failure.reason for failure in failures} == {Reason.ENDPOINT_NOT_FOUND}


@pytest.mark.asyncio
async def test_a_flood_from_one_connection_does_not_hold_up_another_ones_calls(mesh: RouterBench) -> None:
    replica = mesh.replicas[0]
    await mesh.with_slots(8, replica)
    replica.answer = hold
    flood = [asyncio.ensure_future(mesh.stub.Call(request(b"flood"))) for _ in range(1000)]
    await wait_until(
        lambda: any(load.queued == 992 for report in mesh.controller.reports for load in report.loads),
        timeout=30.0,
        what="the flood is queued",
    )
    async with open_channel(mesh.address) as channel:
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        single = asyncio.ensure_future(stub.Call(request(b"single")))
        await wait_until(
            lambda: any(load.queued == 993 for report in mesh.controller.reports for load in report.loads),
            what="the single call is queued",
        )
        while b"single" not in replica.payloads:
            already = len(replica.payloads)
            await replica.answer_held()
            await wait_until(partial(_has_more, replica, already))
        assert len(replica.payloads) <= 8 + 64 + 8, "the slots, a turn of the flood, and what fits beside it"
        replica.answer = echo
        await replica.answer_held()
        assert (await single).payload == b"single"
    assert len(await asyncio.gather(*flood)) == 1000


def _has_more(replica: FakeReplica, payloads: int) -> bool:
    return len(replica.payloads) > payloads
