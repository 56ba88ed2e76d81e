"""Calls that have not ended, over real gRPC: which ones a router lists, where they are, and what it keeps to itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

import slotmesh
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.calls.key_hash import partition_of
from slotmesh.errors import Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import tap_service_pb2 as pb
from slotmesh.v1 import tap_service_pb2_grpc
from tests.support.fakes.controller import fake_controller, table
from tests.support.fakes.replica import FakeReplica, fake_replica, hold

pytestmark = pytest.mark.asyncio
WAITING, AT_REPLICA, LEFT = pb.OPEN_CALL_STATE_WAITING, pb.OPEN_CALL_STATE_AT_REPLICA, pb.OPEN_CALL_STATE_ABANDONED


class Bench:
    """A router with endpoint `echo` and one replica that answers nothing, a client, and the stub that lists calls."""

    def __init__(self, stub: Any, client: Any, replica: FakeReplica) -> None:
        self.stub = stub
        self.echo = client.endpoint("echo")
        self.replica = replica
        self.tasks: list[asyncio.Future[Any]] = []

    def call(self, key: str = "", **options: Any) -> asyncio.Future[Any]:
        """A call that goes on."""
        view: Any = self.echo.options(**options) if options else self.echo
        task: asyncio.Future[Any] = (view.ordered(key) if key else view).say(b"xyz")
        self.tasks.append(task)
        return task

    async def listed(self, **fields: Any) -> pb.ListCallsResponse:
        response: pb.ListCallsResponse = await self.stub.ListCalls(pb.ListCallsRequest(**fields), timeout=20)
        return response

    async def until(self, count: int, **fields: Any) -> pb.ListCallsResponse:
        """The list, once so many calls match."""
        async with asyncio.timeout(20):
            while True:
                found = await self.listed(**fields)
                if found.waiting + found.at_replicas == count:
                    return found
                await asyncio.sleep(0.01)

    async def refusal(self, **fields: Any) -> Any:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.listed(**fields)
        return from_rpc_error(caught.value)


@asynccontextmanager
async def bench(*, max_ongoing: int = 512, **settings: Any) -> AsyncIterator[Bench]:
    async with fake_controller() as controller, fake_replica() as replica, AsyncExitStack() as stack:
        replica.answer, replica.capacity.max_ongoing = hold, max_ongoing
        told = RouterSettings(port=0, metrics_port=-1, controller=controller.address, **settings)
        server = await stack.enter_async_context(serve(told))
        controller.push(table(1, {"r0": replica.address}, max_ongoing=max_ongoing))
        channel = await stack.enter_async_context(open_channel(server.address))
        client = await stack.enter_async_context(slotmesh.connect(server.address))
        each = Bench(tap_service_pb2_grpc.TapServiceStub(channel), client, replica)
        try:
            yield each
        finally:
            for task in each.tasks:
                task.cancel()
            await asyncio.gather(*each.tasks, return_exceptions=True)


async def test_calls_are_where_they_are_and_what_waits_says_for_what() -> None:
    async with bench(max_ongoing=1) as it:
        it.call()
        await it.until(1)
        it.call(tenant="acme")
        found = await it.until(2)
        running, waiting = found.calls
        assert (running.state, running.replica_id, running.backend) == (AT_REPLICA, "r0", "b")
        assert (running.endpoint, running.method, running.request_bytes, running.attempt) == ("echo", "say", 6, 1)
        assert running.HasField("sent_age")
        assert not running.waits_for
        assert (waiting.state, waiting.replica_id, waiting.tenant) == (WAITING, "", "acme")
        assert not waiting.HasField("sent_age")
        assert waiting.waits_for.startswith("no replica of b had room")
        assert running.age.ToNanoseconds() > waiting.age.ToNanoseconds() > 0
        assert (found.waiting, found.at_replicas) == (1, 1)
        assert not any(call.key_tag or call.HasField("partition") for call in found.calls)


async def test_calls_of_a_key_are_found_by_it_and_their_key_is_not_shown() -> None:
    async with bench() as it:
        for key in ("red", "blue", "red"):
            it.call(key)
        found = await it.until(3)
        assert [call.partition for call in found.calls] == [partition_of(key) for key in ("red", "blue", "red")]
        first, other, second = (call.key_tag for call in found.calls)
        assert first == second != other
        assert len(first) == 8
        assert b"red" not in found.SerializeToString()
        of_red = await it.listed(ordering_key="red")
        assert [call.key_tag for call in of_red.calls] == [first, first]
        assert (await it.listed(ordering_key="green")).at_replicas == 0


async def test_keys_that_travel_as_a_column_are_told_apart() -> None:
    async with bench() as it:
        it.call("key 0")
        await it.until(1, states=[AT_REPLICA])  # the link is there: calls that wait for one leave one key at a time
        for number in range(1, 30):
            it.call(f"key {number % 3}")
        await it.until(30)
        assert any(batch.ordering_keys for batch in it.replica.runs)
        found = await it.listed(ordering_key="key 1")
        assert (found.at_replicas, len(found.calls)) == (10, 10)
        assert len({call.key_tag for call in found.calls}) == 1
        assert {call.partition for call in found.calls} == {partition_of("key 1")}


async def test_a_call_whose_caller_has_gone_is_listed_until_its_replica_answers() -> None:
    async with bench() as it:
        task = it.call("red")
        await it.until(1, states=[AT_REPLICA])
        task.cancel()
        (left,) = (await it.until(1, states=[LEFT])).calls
        assert (left.replica_id, left.partition) == ("r0", partition_of("red"))
        assert not (await it.listed(states=[AT_REPLICA])).calls
        assert not (await it.listed(states=[WAITING])).calls


async def test_the_oldest_are_listed_and_the_rest_is_counted() -> None:
    async with bench(max_ongoing=5) as it:
        for _ in range(12):
            it.call()
        await it.until(5, states=[AT_REPLICA])
        found = await it.until(12, limit=7)
        assert len(found.calls) == 7
        assert (found.waiting, found.at_replicas) == (7, 5)
        ages = [call.age.ToNanoseconds() for call in found.calls]
        assert ages == sorted(ages, reverse=True)
        assert len((await it.listed(limit=7, states=[WAITING])).calls) == 7


async def test_calls_are_filtered_by_endpoint_and_tenant() -> None:
    async with bench() as it:
        it.call(tenant="acme")
        it.call(tenant="zoo")
        it.call()
        await it.until(3)
        assert (await it.listed(tenant="acme", endpoint="echo")).at_replicas == 1
        assert (await it.listed(tenant="")).at_replicas == 1
        assert (await it.refusal(endpoint="nowhere")).reason is Reason.ENDPOINT_NOT_FOUND


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("limit", {"limit": 1_001}),
        ("limit", {"limit": -1}),
        ("states", {"states": [0]}),
        ("states", {"states": [77]}),
        ("with_ordering_keys", {"with_ordering_keys": True}),
        ("ordering_key", {"ordering_key": ""}),
    ],
)
async def test_what_cannot_be_answered_is_refused_by_the_name_of_its_field(field: str, fields: dict[str, Any]) -> None:
    async with bench() as it:
        failure = await it.refusal(**fields)
        assert failure.reason is Reason.BAD_REQUEST
        assert failure.metadata["field"] == field


async def test_keys_are_shown_where_the_settings_allow_it() -> None:
    async with bench(tap_payloads=True) as it:
        it.call("red")
        it.call()
        found = await it.until(2, with_ordering_keys=True)
        assert {call.ordering_key if call.HasField("ordering_key") else None for call in found.calls} == {"red", None}


async def test_many_calls_are_looked_at_in_pieces_while_others_are_served() -> None:
    async with bench(max_ongoing=5_000) as it:
        for _ in range(3_000):
            it.call(str(len(it.tasks)))
        async with asyncio.timeout(20):
            while (await it.until(3_000)).waiting:
                pass  # asked anew: they are still on their way to the replica
        answers = await asyncio.gather(*(it.listed(limit=1_000) for _ in range(16)))
        assert {(answer.at_replicas, len(answer.calls), answer.partial) for answer in answers} == {
            (3_000, 1_000, False)
        }
