"""A router that has just started: calls that come before its first routing table wait for it, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio

import slotmesh
from router_service.app import serve
from router_service.config import RouterSettings
from router_service.shell import dispatcher
from slotmesh.calls.slot_tokens import SECRET_BYTES, format_token
from slotmesh.errors import Executed, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc
from tests.support.fakes.controller import FakeController, fake_controller, table
from tests.support.fakes.replica import FakeReplica, fake_replica
from tests.support.wait import wait_until

CALL = router_service_pb2.CallRequest(endpoint="echo", payload=b"x")
STREAMING = router_service_pb2.CallStreamingRequest(endpoint="echo", payload=b"x")
TOKEN = format_token("gone", "0" * 32, bytes(SECRET_BYTES))
RESERVE = slot_service_pb2.ReserveSlotRequest(endpoint="echo")


@dataclass
class Started:
    """A router without a table."""

    controller: FakeController
    replica: FakeReplica
    address: str
    calls: Any
    slots: Any

    def push(self) -> None:
        self.controller.push(table(1, {"r0": self.replica.address}))


@pytest_asyncio.fixture
async def started() -> AsyncIterator[Started]:
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(fake_controller())
        replica = await stack.enter_async_context(fake_replica())
        settings = RouterSettings(port=0, metrics_port=-1, controller=controller.address)
        server = await stack.enter_async_context(serve(settings))
        await wait_until(lambda: bool(controller.hellos))
        channel = await stack.enter_async_context(open_channel(server.address))
        yield Started(
            controller,
            replica,
            server.address,
            router_service_pb2_grpc.RouterServiceStub(channel),
            slot_service_pb2_grpc.SlotServiceStub(channel),
        )


@pytest.mark.asyncio
async def test_whoever_comes_before_the_table_waits_for_it(started: Started) -> None:
    async with slotmesh.connect(started.address) as mesh:
        echo = mesh.endpoint("echo").options(content_type="application/octet-stream")
        unary = [asyncio.ensure_future(started.calls.Call(CALL)) for _ in range(2)]
        reserved = asyncio.ensure_future(started.slots.ReserveSlot(RESERVE))
        streamed = echo.echo(b"x")
        done, _ = await asyncio.wait([*unary, reserved, streamed], timeout=0.2)
        assert not done
        started.push()
        assert [response.payload for response in await asyncio.gather(*unary)] == [b"x", b"x"]
        assert await streamed == b"x"
        assert (await reserved).slot.token


@pytest.mark.asyncio
async def test_nothing_is_said_of_endpoints_and_replicas_before_they_are_known(started: Started) -> None:
    async def first_of(stream: Any) -> None:
        async for _ in stream:
            break

    nowhere = router_service_pb2.CallStreamingRequest(endpoint="nowhere")
    streaming = slot_service_pb2.DispatchStreamingRequest(token=TOKEN)
    rpcs = {
        Reason.ENDPOINT_NOT_FOUND: [first_of(started.calls.CallStreaming(nowhere))],
        Reason.STALE_TABLE: [
            started.slots.RenewSlot(slot_service_pb2.RenewSlotRequest(token=TOKEN)),
            started.slots.Dispatch(slot_service_pb2.DispatchRequest(token=TOKEN)),
            first_of(started.slots.DispatchStreaming(streaming)),
        ],
    }
    waiting = {reason: [asyncio.ensure_future(each) for each in those] for reason, those in rpcs.items()}
    done, _ = await asyncio.wait([each for those in waiting.values() for each in those], timeout=0.2)
    assert not done
    started.push()
    for reason, those in waiting.items():
        for each in those:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await each
            assert from_rpc_error(caught.value).reason is reason


@pytest.mark.asyncio
async def test_a_slot_that_is_newer_than_the_table_waits_for_a_newer_one(started: Started) -> None:
    """Another router, which knew its replica, has given it."""
    token = format_token("r0", "life", bytes(SECRET_BYTES))
    started.controller.push(table(1, {}))
    await wait_until(lambda: bool(started.controller.reports) and started.controller.reports[-1].revision == 1)
    rpcs = [
        started.slots.Dispatch(slot_service_pb2.DispatchRequest(token=token)),
        started.slots.RenewSlot(slot_service_pb2.RenewSlotRequest(token=token)),
        started.slots.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=token)),
    ]
    waiting = [asyncio.ensure_future(each) for each in rpcs]
    done, _ = await asyncio.wait(waiting, timeout=0.1)
    assert not done
    started.controller.push(table(2, {"r0": started.replica.address}))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert sorted(started.replica.slots.kinds) == ["dispatch", "release", "renew"]
    reasons = [from_rpc_error(each).reason for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    assert reasons == [Reason.SLOT_UNKNOWN] * 2, "by the word of the replica"


@pytest.mark.asyncio
async def test_where_no_table_comes_callers_hear_why(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "FIRST_TABLE_WAIT_S", 0.05)
    for rpc, request in ((started.calls.Call, CALL), (started.slots.ReserveSlot, RESERVE)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc(request)
        failure = from_rpc_error(caught.value)
        assert (failure.reason, failure.executed) == (Reason.BACKEND_UNAVAILABLE, Executed.NO)
        assert "no routing table yet" in failure.message
    with pytest.raises(grpc.aio.AioRpcError):
        async for _ in started.calls.CallStreaming(STREAMING):
            pass
