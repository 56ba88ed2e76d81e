"""Calls that somebody looks at, over real gRPC: what routers show, refuse, and let go of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest

from router_service.app import serve
from router_service.config import RouterSettings
from router_service.tap_servicer import MAX_TAPS
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc, tap_service_pb2_grpc
from slotmesh.v1 import tap_service_pb2 as pb
from tests.support.controllers import eventually
from tests.support.fakes.controller import fake_controller, table
from tests.support.fakes.replica import fake_replica

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def router(**settings: Any) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Stubs of a router with endpoint `echo`, for taps and for calls; and what stops it in order."""
    async with fake_controller() as controller, fake_replica() as replica, AsyncExitStack() as stack:
        told = RouterSettings(port=0, metrics_port=-1, controller=controller.address, **settings)
        served = await stack.enter_async_context(AsyncExitStack())
        server = await served.enter_async_context(serve(told))
        controller.push(table(1, {"r0": replica.address}))
        channel = await stack.enter_async_context(open_channel(server.address))
        yield (
            tap_service_pb2_grpc.TapServiceStub(channel),
            router_service_pb2_grpc.RouterServiceStub(channel),
            served.aclose,
        )


async def opened(stub: Any, **fields: Any) -> Any:
    """A tap that sees what ends from now on."""
    call = stub.TapCalls(pb.TapCallsRequest(endpoint="echo", **fields))
    await call.initial_metadata()
    return call


async def called(stub: Any, payload: bytes) -> None:
    options = call_pb2.CallOptions(method="say", content_type=OCTET_STREAM)
    await stub.Call(router_service_pb2.CallRequest(endpoint="echo", options=options, payload=payload), timeout=20)


async def refusal(stub: Any, **fields: Any) -> Reason:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.TapCalls(pb.TapCallsRequest(**fields)).read()
    return from_rpc_error(caught.value).reason


async def test_exactly_the_calls_that_were_made_are_shown() -> None:
    async with router() as (taps, calls, _):
        tap = await opened(taps)
        for number in range(5):
            await called(calls, b"x" * number)
        seen: list[pb.TappedCall] = []
        while len(seen) < 5:
            seen += (await tap.read()).calls
        assert [call.request_bytes for call in seen] == [0, 1, 2, 3, 4]
        assert {(call.method, call.replica_id, call.outcome) for call in seen} == {
            ("say", "r0", pb.TAPPED_OUTCOME_COMPLETED)
        }
        assert not any(call.HasField("payload") or call.HasField("result") for call in seen)
        assert all(call.HasField("run_time") and call.end_time.seconds for call in seen)


async def test_payloads_are_shown_where_the_settings_allow_it() -> None:
    async with router() as (taps, _, _):
        assert await refusal(taps, endpoint="echo", with_payloads=True) is Reason.BAD_REQUEST
    async with router(tap_payloads=True) as (taps, calls, _):
        tap = await opened(taps, with_payloads=True, max_payload_bytes=4)
        without = await opened(taps)
        await called(calls, b"secret payload")
        (shown,), (plain,) = (await tap.read()).calls, (await without.read()).calls
        assert (shown.payload, shown.request_bytes) == (b"secr", 14)
        assert len(shown.result) <= 4
        assert shown.HasField("result")
        assert shown.content_type == OCTET_STREAM
        assert not plain.HasField("payload")


async def test_who_leaves_makes_room_for_others() -> None:
    async with router() as (taps, calls, _):
        open_ = [await opened(taps) for _ in range(MAX_TAPS)]
        assert await refusal(taps, endpoint="echo") is Reason.QUEUE_FULL
        open_.pop().cancel()
        await eventually(lambda: shows_a_call(taps, calls), what="there is room for another tap")


async def shows_a_call(taps: Any, calls: Any) -> bool:
    tap = taps.TapCalls(pb.TapCallsRequest(endpoint="echo"))
    await tap.initial_metadata()
    await called(calls, b"x")
    try:
        return len((await tap.read()).calls) == 1
    except grpc.aio.AioRpcError:
        return False


async def test_nobody_taps_what_there_is_not() -> None:
    async with router() as (taps, _, _):
        await opened(taps)
        assert await refusal(taps, endpoint="no-such") is Reason.ENDPOINT_NOT_FOUND
        assert await refusal(taps) is Reason.BAD_REQUEST


async def test_a_router_that_stops_ends_its_taps_in_order() -> None:
    async with router() as (taps, _, stop):
        tap = await opened(taps)
        await stop()
        while (response := await tap.read()) is not grpc.aio.EOF:
            assert not response.calls
        assert (await tap.code()).name == "OK"
