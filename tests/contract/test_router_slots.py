"""Leased slots through the router, over real gRPC, with replicas that a test tells what to say."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2

from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.chunks import CHUNK_BYTES, MAX_INLINE_BYTES
from slotmesh.codec import JSON
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.slots.token import format_token
from slotmesh.status import from_rpc_error
from slotmesh.v1 import (
    call_pb2,
    replica_service_pb2,
    router_service_pb2,
    slot_service_pb2,
    slot_service_pb2_grpc,
)
from tests.fakes.controller import fake_controller
from tests.fakes.replica import FakeReplica, Response, fail, hold, results
from tests.fakes.slots import failed, held, refused
from tests.support.router_bench import RouterBench, router_bench
from tests.support.wait import wait_until

Slot = slot_service_pb2.Slot
SECOND = duration_pb2.Duration(seconds=1)
SHORT = duration_pb2.Duration(nanos=50_000_000)


class Client:
    """A client of SlotService."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)

    def reserve(self, endpoint: str = "echo", *, options: Any = None, **fields: Any) -> Any:
        return self.stub.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint=endpoint, options=options, **fields))

    async def slot(self, **fields: Any) -> Slot:
        response = await self.reserve(**fields)
        return response.slot  # type: ignore[no-any-return]  # stubs of grpc.aio know no types

    def dispatch(self, slot: Slot | str, payload: bytes = b"x", *, endpoint: str = "", **options: Any) -> Any:
        return self.stub.Dispatch(
            slot_service_pb2.DispatchRequest(
                token=slot if isinstance(slot, str) else slot.token,
                payload=payload,
                endpoint=endpoint,
                options=call_pb2.CallOptions(**options),
            )
        )

    def stream(self, slot: Slot, payload: bytes = b"x", **options: Any) -> Any:
        return self.stub.DispatchStreaming(
            slot_service_pb2.DispatchStreamingRequest(
                token=slot.token, payload=payload, options=call_pb2.CallOptions(**options)
            )
        )

    def renew(self, slot: Slot | str, ttl: duration_pb2.Duration | None = None) -> Any:
        token = slot if isinstance(slot, str) else slot.token
        return self.stub.RenewSlot(slot_service_pb2.RenewSlotRequest(token=token, ttl=ttl))

    def release(self, slot: Slot | str) -> Any:
        token = slot if isinstance(slot, str) else slot.token
        return self.stub.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=token))


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


@pytest_asyncio.fixture
async def client(mesh: RouterBench) -> AsyncIterator[Client]:
    async with client_of(mesh.address) as client:
        yield client


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[Client]:
    async with open_channel(address) as channel:
        yield Client(channel)


async def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def one_replica(mesh: RouterBench, slots: int = 8, **fields: Any) -> FakeReplica:
    replica = mesh.replicas[0]
    await mesh.with_slots(slots, replica, **fields)
    return replica


def call(payload: bytes = b"x", **options: Any) -> router_service_pb2.CallRequest:
    return router_service_pb2.CallRequest(endpoint="echo", payload=payload, options=call_pb2.CallOptions(**options))


def cancelled(replica: FakeReplica) -> list[int]:
    """What the replica was told that nobody waits for."""
    ranges = [each for frame in replica.frames for each in frame.cancel.runs]
    return [run_id for each in ranges for run_id in range(each.first, each.last + 1)]


async def queued(mesh: RouterBench, count: int) -> None:
    await wait_until(
        lambda: any(load.queued == count for load in mesh.controller.reports[-1].loads), what=f"{count} are queued"
    )


async def one_link(replica: FakeReplica, links: int) -> None:
    await wait_until(lambda: len(replica.contexts) == links, what="the router has connected again")


def values(run: replica_service_pb2.RunBatch, *payloads: bytes) -> Response:
    ids = [run.first_run_id] * len(payloads)
    batch = call_pb2.ResultBatch(call_ids=ids, payloads=payloads, content_type=run.options.content_type, partial=True)
    return Response(results=call_pb2.ResultFrame(batches=[batch]))


def end(run: replica_service_pb2.RunBatch) -> Response:
    ended = call_pb2.IdRange(first=run.first_run_id, last=run.first_run_id)
    return Response(results=call_pb2.ResultFrame(done=[ended]))


class TestReserveAndDispatch:
    @pytest.mark.asyncio
    async def test_a_slot_is_reserved_and_a_call_runs_in_it_without_a_release(
        self, mesh: RouterBench, client: Client
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
        self, mesh: RouterBench, client: Client
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
        self, mesh: RouterBench, client: Client
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
    async def test_a_dispatch_does_not_wait_behind_calls_nor_for_room(self, mesh: RouterBench, client: Client) -> None:
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
        self, mesh: RouterBench, client: Client
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
    async def test_values_come_as_they_are_yielded(self, mesh: RouterBench, client: Client) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        stream = client.stream(await client.slot(), b"x", content_type=JSON)
        await wait_until(lambda: replica.held)
        (run,) = replica.held
        assert run.options.streaming
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
        self, mesh: RouterBench, client: Client
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
    async def test_a_value_and_a_result_that_are_too_large_fail(self, mesh: RouterBench, client: Client) -> None:
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


class TestLosses:
    @pytest.mark.asyncio
    @pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.DRAINING, Reason.BACKEND_UNAVAILABLE])
    @pytest.mark.parametrize("refusal", [refused, failed], ids=["as runs are", "as operations are"])
    async def test_a_reservation_that_is_refused_is_accepted_elsewhere(
        self, mesh: RouterBench, client: Client, reason: Reason, refusal: Callable[..., Response]
    ) -> None:
        first, second = mesh.replicas
        first.slots.reserve = held
        await mesh.linked(first)
        reserving = asyncio.ensure_future(client.slot())
        await wait_until(lambda: first.slots.held, what="the reservation has come")
        await mesh.linked(first, second)
        await first.say(refusal(first.slots.held[0], reason))
        slot = await reserving
        assert slot.replica_id == "r1"
        assert (await client.dispatch(slot, b"x")).payload == b"x"
        assert first.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_a_reservation_whose_replica_is_lost_is_accepted_elsewhere(
        self, mesh: RouterBench, client: Client
    ) -> None:
        first, second = mesh.replicas
        first.slots.reserve = held
        await mesh.linked(first)
        reserving = asyncio.ensure_future(client.slot())
        await wait_until(lambda: first.slots.held, what="the reservation has come")
        await mesh.linked(first, second)
        first.set_serving(False)
        first.break_link()
        assert (await reserving).replica_id == "r1"

    @pytest.mark.asyncio
    async def test_the_slots_of_a_replica_that_left_are_gone(self, mesh: RouterBench, client: Client) -> None:
        first, second = mesh.replicas
        await mesh.linked(first)
        slot = await client.slot()
        await mesh.linked(second)
        await assert_gone(client, slot.token)
        assert first.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_of_lives_and_replicas_that_the_table_does_not_name_nothing_is_said(
        self, mesh: RouterBench, client: Client
    ) -> None:
        """The router's table may be older than the slot."""
        await one_replica(mesh)
        await assert_unproven(client, format_token("r0", "another life", secrets.token_bytes(16)), Reason.STALE_TABLE)
        await assert_unproven(client, format_token("r99", "life", secrets.token_bytes(16)), Reason.STALE_TABLE)

    @pytest.mark.asyncio
    async def test_what_is_no_token_reaches_no_replica_and_a_forged_one_is_unknown_there(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        flipped = slot.token[:-3] + ("A" if slot.token[-3] != "A" else "B") + slot.token[-2:]
        for text in ("well-guessed", slot.token[:-1], slot.token[1:], slot.token + "A", flipped, slot.token * 100):
            for rpc in (client.dispatch, client.renew, client.release):
                failure = await failure_of(rpc(text))
                assert (failure.reason, failure.executed) == (Reason.SLOT_UNKNOWN, Executed.NO)
                assert "not a slot token" in failure.message
                assert text[:8] not in failure.message
        failure = await failure_of(client.dispatch(""))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "token")
        assert replica.slots.kinds == ["reserve"]
        forged = format_token("r0", "life", secrets.token_bytes(16))
        assert (await failure_of(client.dispatch(forged))).reason is Reason.SLOT_UNKNOWN
        assert (await failure_of(client.renew(forged))).reason is Reason.SLOT_UNKNOWN
        await client.release(forged)
        assert replica.slots.kinds[1:] == ["dispatch", "renew", "release"]
        assert replica.slots.reserved == 1

    @pytest.mark.asyncio
    async def test_a_dispatched_call_whose_replica_is_lost_is_not_executed_again(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        pending = asyncio.ensure_future(failure_of(client.dispatch(await client.slot(), idempotent=True)))
        await wait_until(lambda: replica.held)
        replica.break_link()
        failure = await pending
        assert (failure.reason, failure.executed) == (Reason.REPLICA_LOST, Executed.UNKNOWN)
        await one_link(replica, links=len(replica.contexts) + 1)
        replica.answer = lambda run: results(run, list(run.payloads))
        await mesh.stub.Call(call())
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_a_slot_outlives_the_link_and_what_follows_waits_for_the_next_one(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slots = [await client.slot() for _ in range(3)]
        replica.set_serving(False)
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked_replica_ids, what="the link is lost")
        waiting = [client.dispatch(slots[0], b"late"), client.renew(slots[1], SECOND), client.release(slots[2])]
        # A round trip later the three have come.
        await failure_of(client.reserve(endpoint="nowhere"))
        replica.set_serving(True)
        dispatched, renewed, released = [await each for each in waiting]
        assert dispatched.payload == b"late"
        assert renewed.slot.token == slots[1].token
        assert released.max_ongoing == 8
        assert replica.slots.reserved == 1

    @pytest.mark.asyncio
    async def test_nothing_is_sent_over_a_link_before_the_replica_has_introduced_itself(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.greets = False
        links = len(replica.contexts)
        replica.break_link()
        await one_link(replica, links + 1)
        dispatched = asyncio.ensure_future(client.dispatch(slot, b"late"))
        await failure_of(client.reserve(endpoint="nowhere"))
        assert replica.slots.kinds == ["reserve"]
        replica.greets = True
        replica.break_link()
        assert (await dispatched).payload == b"late"
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_what_waits_for_a_link_that_does_not_come_back_ends_in_time(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.set_serving(False)
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked_replica_ids, what="the link is lost")
        started = asyncio.get_running_loop().time()
        await assert_unproven(client, slot.token, Reason.BACKEND_UNAVAILABLE)
        assert asyncio.get_running_loop().time() - started < 3.0
        assert replica.slots.kinds == ["reserve"]


async def assert_gone(client: Client, token: str) -> None:
    """Nothing can be done with the slot, and nothing of it is held."""
    dispatch, renew, released = await asyncio.gather(
        failure_of(client.dispatch(token)), failure_of(client.renew(token)), client.release(token)
    )
    assert (dispatch.reason, dispatch.executed) == (Reason.REPLICA_GONE, Executed.NO)
    assert renew.reason is Reason.REPLICA_GONE
    assert (released.ongoing, released.max_ongoing) == (0, 0)


async def assert_unproven(client: Client, token: str, reason: Reason) -> None:
    """The slot may live, so nobody says that it does not. Nothing was sent."""
    operations = (client.dispatch(token), client.renew(token), client.release(token))
    for failure in await asyncio.gather(*map(failure_of, operations)):
        assert (failure.reason, failure.executed, failure.retry_delay_s) == (reason, Executed.NO, 1.0)


class TestLeaving:
    @pytest.mark.asyncio
    async def test_one_that_leaves_while_it_waits_in_the_queue_leaves_no_trace(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh, slots=1)
        replica.answer = hold
        running = asyncio.ensure_future(mesh.stub.Call(call()))
        await wait_until(lambda: replica.held)
        reserving = client.reserve()
        await queued(mesh, 1)
        reserving.cancel()
        await queued(mesh, 0)
        await replica.answer_held()
        await running
        assert (await client.slot()).replica_id == "r0"
        assert replica.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_one_that_leaves_while_the_replica_has_it_is_taken_back(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        reserving = client.reserve()
        await wait_until(lambda: replica.slots.held)
        (op,) = replica.slots.held
        reserving.cancel()
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")
        await replica.say(failed(op, Reason.CANCELLED))
        replica.slots.reserve = replica.slots.granted
        await client.slot()
        assert replica.slots.kinds == ["reserve", "reserve"], "nothing was granted, so nothing is released"

    @pytest.mark.asyncio
    async def test_one_that_leaves_is_offered_to_nobody_else(self, mesh: RouterBench, client: Client) -> None:
        """Its replica refuses it after that."""
        first, second = mesh.replicas
        first.slots.reserve = held
        await mesh.linked(first)
        reserving = client.reserve()
        await wait_until(lambda: first.slots.held)
        (op,) = first.slots.held
        await mesh.linked(first, second)
        reserving.cancel()
        await wait_until(lambda: cancelled(first) == [op.op_id], what="the replica is told")
        await first.say(refused(op, Reason.DRAINING))
        await client.slot(replica_id="r1")
        assert (first.slots.kinds, second.slots.kinds) == (["reserve"], ["reserve"])

    @pytest.mark.asyncio
    async def test_what_waits_for_a_link_is_not_sent_when_its_caller_has_left(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        replica.set_serving(False)
        replica.break_link()
        await wait_until(lambda: not mesh.controller.reports[-1].linked_replica_ids, what="the link is lost")
        waiting = [client.dispatch(slot), client.renew(slot), client.release(slot)]
        await failure_of(client.reserve(endpoint="nowhere"))  # a round trip later they have come
        for each in waiting:
            each.cancel()
        await failure_of(client.reserve(endpoint="nowhere"))
        replica.set_serving(True)
        assert (await client.dispatch(slot, b"mine")).payload == b"mine", "it is still there"
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_a_slot_that_is_granted_to_one_who_has_left_is_released_at_once(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        reserving = client.reserve()
        await wait_until(lambda: replica.slots.held)
        (op,) = replica.slots.held
        reserving.cancel()
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")
        await replica.say(replica.slots.granted(op))
        assert replica.slots.reserved == 1
        await wait_until(lambda: replica.slots.kinds == ["reserve", "release"], what="the slot is released")
        assert replica.slots.reserved == 0

    @pytest.mark.asyncio
    async def test_one_that_leaves_its_call_cancels_it(self, mesh: RouterBench, client: Client) -> None:
        replica = await one_replica(mesh)
        replica.answer = hold
        dispatched = client.dispatch(await client.slot())
        await wait_until(lambda: replica.held)
        dispatched.cancel()
        op = replica.slots.ops[-1]
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")
        assert replica.slots.kinds == ["reserve", "dispatch"]

    @pytest.mark.asyncio
    async def test_release_is_idempotent(self, mesh: RouterBench, client: Client) -> None:
        replica = await one_replica(mesh)
        slot, other = await client.slot(), await client.slot()
        for _ in range(3):
            released = await client.release(slot)
            assert (released.ongoing, released.max_ongoing) == (1, 8)
        failure = await failure_of(client.renew(slot))
        assert failure.reason is Reason.SLOT_USED, "as the replica of the tests says it"
        await client.dispatch(other)
        await client.release(other)
        assert replica.slots.slots[other.token].state == "done"


class TestRequestIds:
    @pytest.mark.asyncio
    async def test_the_same_id_returns_the_same_slot_while_its_lease_lives(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot(request_id="once")
        again = await client.slot(request_id="once")
        assert again.token == slot.token
        assert 0 < again.ttl.ToNanoseconds() <= slot.ttl.ToNanoseconds()
        assert (await client.slot(request_id="another")).token != slot.token
        assert replica.slots.kinds == ["reserve", "reserve"]
        await client.dispatch(slot)
        assert (await client.slot(request_id="once")).token != slot.token, "the first one is used up"

    @pytest.mark.asyncio
    async def test_those_who_ask_at_the_same_time_share_one_reservation(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        asking = [asyncio.ensure_future(client.slot(request_id="once")) for _ in range(5)]
        await wait_until(lambda: replica.slots.held)
        asking.append(asyncio.ensure_future(client.slot(request_id="once")))
        await replica.say(replica.slots.granted(replica.slots.held[0]))
        slots = await asyncio.gather(*asking)
        assert len({slot.token for slot in slots}) == 1
        assert replica.slots.kinds == ["reserve"]

    @pytest.mark.asyncio
    async def test_one_of_two_may_leave_and_the_last_one_ends_it(self, mesh: RouterBench, client: Client) -> None:
        replica = await one_replica(mesh)
        replica.slots.reserve = held
        first, second = client.reserve(request_id="once"), client.reserve(request_id="once")
        await wait_until(lambda: replica.slots.held)
        (op,) = replica.slots.held
        # A round trip later the second one has come as well, and has joined the first.
        await failure_of(client.reserve(endpoint="nowhere"))
        first.cancel()
        await failure_of(client.reserve(endpoint="nowhere"))
        assert cancelled(replica) == []
        await replica.say(replica.slots.granted(op))
        assert (await second).slot.token in replica.slots.slots

        third, fourth = client.reserve(request_id="twice"), client.reserve(request_id="twice")
        await wait_until(lambda: len(replica.slots.held) == 2)
        await failure_of(client.reserve(endpoint="nowhere"))
        third.cancel()
        fourth.cancel()
        op = replica.slots.held[1]
        await wait_until(lambda: cancelled(replica) == [op.op_id], what="the replica is told")

    @pytest.mark.asyncio
    async def test_an_id_means_one_thing(self, mesh: RouterBench, client: Client) -> None:
        await one_replica(mesh)
        slot = await client.slot(request_id="once", ttl=SECOND)
        for other in ({}, {"ttl": SHORT}, {"ttl": SECOND, "replica_id": "r0"}):
            failure = await failure_of(client.reserve(request_id="once", **other))
            assert failure.reason is Reason.BAD_REQUEST
            assert "request_id" in failure.message
        failure = await failure_of(client.reserve("other", request_id="once", ttl=SECOND))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "request_id")
        assert (await client.slot(request_id="once", ttl=SECOND)).token == slot.token
        await client.release(slot)
        assert (await client.slot(request_id="once")).token != slot.token


class TestBackPressure:
    @pytest.mark.asyncio
    async def test_reservations_wait_for_room_and_give_up_at_their_deadline(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh, slots=1)
        replica.answer = hold
        running = asyncio.ensure_future(mesh.stub.Call(call()))
        await wait_until(lambda: replica.held)
        failure = await failure_of(client.reserve(options=call_pb2.CallOptions(timeout=SHORT)))
        assert (failure.reason, failure.executed) == (Reason.NO_SLOT, Executed.NO)
        assert failure.retry_delay_s is not None
        reserving = asyncio.ensure_future(client.slot())
        await queued(mesh, 1)
        assert replica.slots.kinds == []
        await replica.answer_held()
        assert (await reserving).replica_id == "r0"
        await running

    @pytest.mark.asyncio
    async def test_a_slot_holds_its_permit_until_it_is_free_again(self, mesh: RouterBench, client: Client) -> None:
        replica = await one_replica(mesh, slots=1)
        slot = await client.slot()
        calling = asyncio.ensure_future(mesh.stub.Call(call(b"waits")))
        await queued(mesh, 1)
        assert replica.runs == []
        await client.release(slot)
        assert (await calling).payload == b"waits"

    @pytest.mark.asyncio
    async def test_a_full_queue_refuses(self, mesh: RouterBench, client: Client) -> None:
        await one_replica(mesh, slots=1, max_queued_calls=2)
        slot = await client.slot()
        waiting = [asyncio.ensure_future(client.slot()) for _ in range(2)]
        await queued(mesh, 2)
        failure = await failure_of(client.reserve())
        assert (failure.reason, failure.executed) == (Reason.QUEUE_FULL, Executed.NO)
        assert failure.retry_delay_s is not None
        await client.release(slot)
        (first,), (second,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await client.release(first.result())
        assert (await second).token != first.result().token

    @pytest.mark.asyncio
    async def test_without_a_replica_or_an_endpoint(self, mesh: RouterBench, client: Client) -> None:
        await mesh.linked()
        failure = await failure_of(client.reserve(options=call_pb2.CallOptions(timeout=SHORT)))
        assert (failure.reason, failure.executed) == (Reason.NO_SLOT, Executed.NO)
        failure = await failure_of(client.reserve("nowhere"))
        assert (failure.reason, failure.executed) == (Reason.ENDPOINT_NOT_FOUND, Executed.NO)
        reserving = asyncio.ensure_future(client.slot())
        await queued(mesh, 1)
        await mesh.linked(mesh.replicas[1])
        assert (await reserving).replica_id == "r1"

    @pytest.mark.asyncio
    async def test_without_a_table_nothing_is_known_to_be_gone(self) -> None:
        """A router that was started a moment ago: another one, or this one later, serves the token."""
        token = format_token("r0", "life", secrets.token_bytes(16))
        async with (
            fake_controller() as controller,
            serve(RouterSettings(port=0, metrics_port=-1, controller=controller.address)) as server,
            client_of(server.address) as client,
        ):
            wanted = client.reserve(replica_id="r0")
            for rpc in (client.reserve(), wanted, client.dispatch(token), client.renew(token), client.release(token)):
                failure = await failure_of(rpc)
                assert (failure.reason, failure.executed) == (Reason.BACKEND_UNAVAILABLE, Executed.NO)
                assert failure.retry_delay_s


class TestWanted:
    @pytest.mark.asyncio
    async def test_a_wanted_replica_and_those_that_are_not(self, mesh: RouterBench, client: Client) -> None:
        for wanted in ("r0", "r1", "r1", "r0", "r0"):
            assert (await client.slot(replica_id=wanted)).replica_id == wanted
            assert (await client.slot(excluded_replica_ids=[wanted, "r9"])).replica_id != wanted
        failure = await failure_of(client.reserve(replica_id="r9"))
        assert (failure.reason, failure.executed) == (Reason.REPLICA_GONE, Executed.NO)
        everybody = client.reserve(excluded_replica_ids=["r0", "r1"], options=call_pb2.CallOptions(timeout=SHORT))
        assert (await failure_of(everybody)).reason is Reason.NO_SLOT
        failure = await failure_of(client.reserve(replica_id="r0", excluded_replica_ids=["r0"]))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, "excluded_replica_ids")

    @pytest.mark.asyncio
    async def test_a_replica_that_drains_grants_no_more_wanted_or_not(self, mesh: RouterBench, client: Client) -> None:
        first, second = mesh.replicas
        slots = [await client.slot(replica_id="r0") for _ in range(2)]
        first.capacity.draining = True
        await first.say(Response(capacity=first.capacity))
        wanted = client.reserve(replica_id="r0", options=call_pb2.CallOptions(timeout=SHORT))
        assert (await failure_of(wanted)).reason is Reason.NO_SLOT
        assert {(await client.slot()).replica_id for _ in range(4)} == {"r1"}
        assert (await client.dispatch(slots[0], b"honoured")).payload == b"honoured"
        await client.release(slots[1])
        assert first.slots.kinds == ["reserve", "reserve", "dispatch", "release"]
        assert second.slots.kinds == ["reserve"] * 4

    @pytest.mark.asyncio
    async def test_one_that_waits_for_a_replica_holds_up_nobody(self, mesh: RouterBench, client: Client) -> None:
        first, second = mesh.replicas
        first.capacity.max_ongoing = second.capacity.max_ongoing = 1
        await mesh.linked()
        await mesh.linked(first, second)
        slot = await client.slot(replica_id="r0")
        waiting = asyncio.ensure_future(client.slot(replica_id="r0"))
        await queued(mesh, 1)
        assert (await mesh.stub.Call(call())).replica_id == "r1"
        assert (await client.slot()).replica_id == "r1"
        await client.release(slot)
        assert (await waiting).replica_id == "r0"


class TestEdge:
    @pytest.mark.asyncio
    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"endpoint": ""}, "endpoint"),
            ({"options": call_pb2.CallOptions(ordering_key="k")}, "options.ordering_key"),
            ({"options": call_pb2.CallOptions(stop_generation=1)}, "options.stop_generation"),
            ({"options": call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=-1))}, "options.timeout"),
            ({"ttl": duration_pb2.Duration()}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=-1)}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=1, nanos=-1)}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=300, nanos=1)}, "ttl"),
            ({"ttl": duration_pb2.Duration(seconds=2**62)}, "ttl"),
            ({"request_id": "x" * 1025}, "request_id"),
            ({"request_id": "é" * 513}, "request_id"),
            ({"excluded_replica_ids": ["r"] * 1025}, "excluded_replica_ids"),
        ],
    )
    async def test_a_wrong_reservation_names_its_field(
        self, mesh: RouterBench, client: Client, fields: dict[str, Any], field: str
    ) -> None:
        failure = await failure_of(client.reserve(**fields))
        assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, field)
        assert no_ops(mesh.replicas)

    @pytest.mark.asyncio
    async def test_a_wrong_dispatch_names_its_field_and_leaves_the_slot(
        self, mesh: RouterBench, client: Client
    ) -> None:
        replica = await one_replica(mesh)
        slot = await client.slot()
        wrong: Sequence[tuple[dict[str, Any], str]] = (
            ({"ordering_key": "k"}, "options.ordering_key"),
            ({"stop_generation": 1}, "options.stop_generation"),
            ({"no_reply": True}, "options.no_reply"),
            ({"content_type": "text/html"}, "options.content_type"),
        )
        for options, field in wrong:
            for rpc in (client.dispatch(slot, **options), client.stream(slot, **options).read()):
                failure = await failure_of(rpc)
                assert (failure.reason, failure.metadata["field"]) == (Reason.BAD_REQUEST, field)
        failure = await failure_of(client.dispatch(slot, streaming=True))
        assert failure.metadata["field"] == "options.streaming"
        assert (await failure_of(client.dispatch(slot, method="_secret"))).reason is Reason.METHOD_NOT_FOUND
        too_large = client.dispatch(slot, bytes(4 * 1024 * 1024 + 1))
        assert (await failure_of(too_large)).reason is Reason.PAYLOAD_TOO_LARGE
        assert (await failure_of(client.renew(slot, duration_pb2.Duration(seconds=301)))).metadata["field"] == "ttl"
        assert replica.slots.kinds == ["reserve"]
        largest = bytes(4 * 1024 * 1024)
        assert (await client.dispatch(slot, largest)).payload == largest


def no_ops(replicas: Sequence[FakeReplica]) -> bool:
    return not any(replica.slots.ops for replica in replicas)
