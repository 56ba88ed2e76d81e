"""The scripted router tells a half-close from a stream that its client breaks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from slotmesh.conformance.record import ClientRecord
from slotmesh.conformance.scripted_servicer import Request, ScriptedRouter
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.support.wait import wait_until


async def half_close(_channel: grpc.aio.Channel, call: Any) -> None:
    await call.done_writing()


async def cancel(_channel: grpc.aio.Channel, call: Any) -> None:
    call.cancel()


async def disconnect(channel: grpc.aio.Channel, _call: Any) -> None:
    await channel.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(("end", "is_half_close"), [(half_close, True), (cancel, False), (disconnect, False)])
async def test_only_a_half_close_counts_as_one(
    end: Callable[[grpc.aio.Channel, Any], Awaitable[None]], is_half_close: bool
) -> None:
    router = ScriptedRouter("A", ClientRecord())
    await router.start()
    async with grpc.aio.insecure_channel(router.address) as channel:
        call: Any = router_service_pb2_grpc.RouterServiceStub(channel).StreamCalls()
        await call.write(Request(open=router_service_pb2.OpenStream(endpoint="E")))
        await wait_until(lambda: router.streams and router.streams[0].opening, what="the stream")
        stream = router.streams[0]
        await end(channel, call)
        await wait_until(lambda: stream.half_closed or stream.broken, what="its end")
        assert (stream.half_closed, stream.broken) == (is_half_close, not is_half_close)
    await router.kill()
