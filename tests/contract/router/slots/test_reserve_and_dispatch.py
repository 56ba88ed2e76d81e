"""Leased slots through the router, over real gRPC, with scripted replicas."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import CHUNK_BYTES, MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2
from tests.contract.router.slots.slot_caller import (
    SECOND,
    SHORT,
    Slot,
    SlotCaller,
    call,
    client_of,
    failure_of,
    one_replica,
    queued,
)
from tests.contract.router.yielding_replica import end, values
from tests.support.fakes.replica import FakeReplica, Response, cancelled, fail, hold, results
from tests.support.router_bench import RouterBench
from tests.support.wait import wait_until


class TestReserveAndDispatch:
    @pytest.mark.asyncio
    async def test_the_controller_hears_of_calls_in_slots(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.answer = hold
        running = asyncio.ensure_future(client.dispatch(slot, b"x"))
        (reports,) = mesh.controller.reports_of.values()
        await wait_until(lambda: reports[-1].loads[0].slot_calls == 1, what="a report")
        load = reports[-1].loads[0]
        assert (load.backend, load.ongoing) == ("b", 1)
        assert abs(load.sample_time.ToSeconds() - time.time()) < 600
        running.cancel()

    @pytest.mark.asyncio
    async def test_a_slot_is_reserved_and_a_call_runs_in_it_without_a_release(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot(ttl=duration_pb2.Duration(seconds=7))
        assert (slot.backend, slot.replica_id, slot.replica_address) == ("b", "r0", replica.address)
        assert (slot.ongoing, slot.ttl.seconds) == (1, 7)
        assert slot.HasField("expire_time")
        (op,) = replica.slots.ops
        assert (op.reserve.endpoint, op.reserve.ttl.seconds) == ("echo", 7)
        response = await client.dispatch(slot, b"hello", endpoint="echo", metadata={"k": "v"}, method="m")
        assert response.payload == b"hello"
        assert replica.slots.kinds == ["reserve", "dispatch"]
        dispatch = replica.slots.ops[1].dispatch
        assert (dispatch.token, dispatch.endpoint, dispatch.payload) == (slot.token, "echo", b"hello")
        assert (dispatch.options.method, dict(dispatch.options.metadata)) == ("m", {"k": "v"})
        assert not dispatch.options.HasField("timeout")
        ids = [op.op_id for op in replica.slots.ops]
        assert ids == sorted(set(ids))
        assert (await mesh.stub.Call(call(b"after"))).payload == b"after"
        assert replica.runs[-1].first_run_id > ids[-1], "one sequence of ids"
        assert replica.slots.kinds == ["reserve", "dispatch"], "the happy path takes no release"

    @pytest.mark.asyncio
    async def test_content_types_failures_and_deadlines_are_those_of_calls(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        replica.answer = lambda run: results(run, [b'{"sum":3}'])
        response = await client.dispatch(await client.slot(), b"[1,2]", content_type=JSON)
        assert (response.payload, response.content_type) == (b'{"sum":3}', JSON)
        replica.answer = fail
        failure = await failure_of(client.dispatch(await client.slot()))
        assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.YES)
        replica.answer = hold
        failure = await failure_of(client.dispatch(await client.slot(), timeout=SHORT))
        assert (failure.reason, failure.executed) == (Reason.DEADLINE_RUNNING, Executed.UNKNOWN)
        dispatch = replica.slots.ops[-1]
        assert 0 < dispatch.dispatch.options.timeout.ToNanoseconds() < SHORT.ToNanoseconds(), "what is left of it"
        await wait_until(lambda: cancelled(replica) == [dispatch.op_id], what="the replica is told")

    @pytest.mark.asyncio
    async def test_a_second_dispatch_and_one_of_another_endpoint_hear_what_the_replica_says(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        await one_replica(mesh)
        slot = await client.slot()
        failure = await failure_of(client.dispatch(slot, endpoint="other"))
        assert (failure.reason, failure.executed) == (Reason.SLOT_UNKNOWN, Executed.NO)
        assert "'echo'" in failure.message
        assert "'other'" in failure.message
        await client.dispatch(slot)
        failure = await failure_of(client.dispatch(slot))
        assert (failure.reason, failure.executed) == (Reason.SLOT_USED, Executed.NO)
        assert slot.token[:8] not in failure.message

    @pytest.mark.asyncio
    async def test_a_dispatch_does_not_wait_behind_calls_nor_for_room(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh, slots=2)
        replica.answer = hold
        slot = await client.slot()
        calls = [asyncio.ensure_future(mesh.stub.Call(call(b"waits"))) for _ in range(5)]
        await queued(mesh, 4)
        dispatched = asyncio.ensure_future(client.dispatch(slot, b"goes"))
        await wait_until(lambda: b"goes" in [run.payloads[0] for run in replica.held], what="the call has come")
        assert replica.payloads == [b"waits"]
        replica.answer = lambda run: results(run, list(run.payloads))
        await replica.answer_held()
        assert (await dispatched).payload == b"goes"
        assert len(await asyncio.gather(*calls)) == 5

    @pytest.mark.asyncio
    async def test_any_router_serves_the_slot_that_another_one_has_reserved(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        async with mesh.another_address() as address, client_of(address) as other:
            slot = await client.slot()
            assert (await other.renew(slot, SECOND)).slot.ttl == SECOND
            assert (await other.dispatch(slot, b"there")).payload == b"there"
            slot = await client.slot()
            await other.release(slot)
        assert replica.slots.reserved == 0
        assert replica.slots.kinds == ["reserve", "renew", "dispatch", "reserve", "release"]


class TestStreaming:
    @pytest.mark.asyncio
    async def test_values_come_as_they_are_yielded(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        stream = client.stream(await client.slot(), b"x", content_type=JSON)
        await wait_until(lambda: replica.held)
        (run,) = replica.held
        assert run.options.stream.each_value
        await replica.say(values(run, b"1", b"2"))
        first, second = await stream.read(), await stream.read()
        assert [first.payload, second.payload, first.content_type] == [b"1", b"2", JSON]
        await replica.say(values(run, b"3"))
        await replica.say(end(run))
        assert (await stream.read()).payload == b"3"
        assert await stream.read() is grpc.aio.EOF
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_a_caller_that_leaves_cancels_it_and_a_failure_ends_it(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        stream = client.stream(await client.slot())
        await wait_until(lambda: replica.held)
        await replica.say(values(replica.held[0], b"1"))
        await stream.read()
        stream.cancel()
        await wait_until(lambda: cancelled(replica) == [replica.held[0].first_run_id], what="the replica is told")
        replica.answer = fail
        assert (await failure_of(client.stream(await client.slot()).read())).reason is Reason.HANDLER_ERROR
        assert (await failure_of(client.stream(Slot(token="nonsense")).read())).reason is Reason.SLOT_UNKNOWN

    @pytest.mark.asyncio
    async def test_a_value_and_a_result_that_are_too_large_fail(self, mesh: RouterBench, client: SlotCaller) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        stream = client.stream(await client.slot())
        await wait_until(lambda: len(replica.held) == 1)
        await say_large(replica, replica.held[0], partial=True)
        failure = await failure_of(stream.read())
        assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)
        dispatched = asyncio.ensure_future(failure_of(client.dispatch(await client.slot())))
        await wait_until(lambda: len(replica.held) == 2)
        await say_large(replica, replica.held[1], partial=False)
        failure = await dispatched
        assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)


async def say_large(replica: FakeReplica, run: replica_service_pb2.RunBatch, *, partial: bool) -> None:
    """The call has a value, or its result, that is larger than what comes in one piece."""
    run_id, total = run.first_run_id, MAX_INLINE_BYTES + 1
    for at in range(0, total, CHUNK_BYTES):
        data = bytes(min(CHUNK_BYTES, total - at))
        await replica.say(Response(chunk=call_pb2.Chunk(call_id=run_id, offset=at, total=total, data=data)))
    batch = call_pb2.ResultBatch(call_ids=[run_id], payloads=[b""], chunked_sizes=[total], partial=partial)
    await replica.say(Response(results=call_pb2.ResultFrame(batches=[batch])))


class TestEdge:
    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"endpoint": ""}, "endpoint"),
            ({"options": call_pb2.CallOptions(ordering_key="k")}, "options.ordering_key"),
            (
                {"options": call_pb2.CallOptions(stream=call_pb2.StreamOptions(stop_generation=1))},
                "options.stream.stop_generation",
            ),
            ({"options": call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=-1))}, "options.timeout"),
            ({"ttl": duration_pb2.Duration()}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=-1)}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=1, nanos=-1)}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=300, nanos=1)}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=2**62)}, "ttl"),
            ({"request_id": "x" * 129}, "request_id"),
            ({"request_id": "é"}, "request_id"),
            ({"request_id": "two words"}, "request_id"),
            ({"excluded_replica_ids": ["r"] * 1025}, "excluded_replica_ids"),
        ],
    )
    async def test_a_wrong_reservation_names_its_field(
        self, mesh: RouterBench, client: SlotCaller, fields: dict[str, Any], field: str
    ) -> None:
        failure = await failure_of(client.reserve(**fields))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, field)
        assert no_ops(mesh.replicas)

    @pytest.mark.asyncio
    async def test_a_wrong_dispatch_names_its_field_and_leaves_the_slot(
        self, mesh: RouterBench, client: SlotCaller
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        wrong: Sequence[tuple[dict[str, Any], str]] = (
            ({"ordering_key": "k"}, "options.ordering_key"),
            ({"stream": call_pb2.StreamOptions(stop_generation=1)}, "options.stream.stop_generation"),
            ({"stream": call_pb2.StreamOptions(no_reply=True)}, "options.stream.no_reply"),
            ({"content_type": "text/html"}, "options.content_type"),
        )
        for options, field in wrong:
            for rpc in (client.dispatch(slot, **options), client.stream(slot, **options).read()):
                failure = await failure_of(rpc)
                assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, field)
        failure = await failure_of(client.dispatch(slot, streaming=True))
        assert failure.metadata["field"] == "options.stream.each_value"
        assert (await failure_of(client.dispatch(slot, method="_secret"))).reason is Reason.METHOD_NOT_FOUND
        too_large = client.dispatch(slot, bytes(4 * 1024 * 1024 + 1))
        assert (await failure_of(too_large)).reason is Reason.PAYLOAD_TOO_LARGE
        assert (await failure_of(client.renew(slot, duration_pb2.Duration(seconds=301)))).metadata["field"] == "ttl"
        assert replica.slots.kinds == ["reserve"]
        largest = bytes(4 * 1024 * 1024)
        assert (await client.dispatch(slot, largest)).payload == largest


def no_ops(replicas: Sequence[FakeReplica]) -> bool:
    return not any(replica.slots.ops for replica in replicas)
