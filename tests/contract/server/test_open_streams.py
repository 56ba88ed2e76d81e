"""Streams that may not go on: without a first frame, or silent with nothing to do; the others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from slotmesh.runtime.channels import open_channel
from slotmesh.server.server import GrpcServer
from slotmesh.streams.limits import EdgeLimits
from slotmesh.transport.duplex import read_request
from slotmesh.transport.open_streams import StreamCut, stream_of
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.security.role_servers import error_info
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio
Request, Response = router_service_pb2.StreamCallsRequest, router_service_pb2.StreamCallsResponse


class Routing(router_service_pb2_grpc.RouterServiceServicer):
    """Streams that answer each frame, and are busy for as long as they are told."""

    def __init__(self) -> None:
        self.is_busy = False
        self.cancelled = 0

    async def StreamCalls(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        stream = stream_of(context)
        assert stream is not None
        stream.is_busy = lambda: self.is_busy
        try:
            while await read_request(context) is not None:
                await context.write(Response())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Streams:
    """A server, its clock, and a channel to it."""

    def __init__(self) -> None:
        self.routing, self.clock = Routing(), Clock()  # type: ignore[abstract]  # no other rpc is called
        self.server = GrpcServer("streams", limits=EdgeLimits(opening_timeout_s=10, stream_idle_timeout_s=100))
        self.server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, self.routing)
        self.open = self.server.edge.streams
        self.open._now, self.open.look_s = self.clock, 0.01

    async def __aenter__(self) -> Streams:
        await self.server.start()
        self.channel = open_channel(self.server.address)
        self.stub: Any = router_service_pb2_grpc.RouterServiceStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self.server.stop()

    async def looked_at(self) -> None:
        """Returns when all streams have been looked at."""
        seen = asyncio.Event()

        def look() -> None:
            seen.set()

        for each in self.open.open:
            each.lapsed = look
        for _ in range(2):
            seen.clear()
            async with asyncio.timeout(20.0):
                await seen.wait()


async def failure_of(call: Any) -> tuple[str, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(20.0):
            await call.read()
    info = error_info(caught.value)
    return caught.value.code().name, info.reason, info.metadata["executed"]


async def test_a_stream_without_a_first_frame_is_ended() -> None:
    async with Streams() as streams:
        silent, spoken = streams.stub.StreamCalls(), streams.stub.StreamCalls()
        await spoken.write(Request())
        await spoken.read()
        silent_read = asyncio.ensure_future(failure_of(silent))
        await wait_until(lambda: len(streams.open.open) == 2)
        await streams.looked_at()
        streams.clock.now = 11
        assert await silent_read == ("INVALID_ARGUMENT", "BAD_REQUEST", "no")
        await spoken.write(Request())
        assert await spoken.read() == Response()
        assert streams.open.cut[StreamCut.UNOPENED] == 1
        assert streams.routing.cancelled == 1


async def test_a_stream_that_is_silent_with_nothing_to_do_is_ended() -> None:
    async with Streams() as streams:
        stream = streams.stub.StreamCalls()
        await stream.write(Request())
        await stream.read()
        await streams.looked_at()
        streams.clock.now = 99
        await streams.looked_at()
        await stream.write(Request())
        await stream.read()
        await streams.looked_at()
        streams.clock.now = 198
        await streams.looked_at()
        assert not streams.open.cut
        streams.clock.now = 200
        assert await failure_of(stream) == ("UNAVAILABLE", "STREAM_SILENT", "no")
        assert streams.open.cut[StreamCut.SILENT] == 1


async def test_a_stream_that_is_busy_may_be_silent() -> None:
    async with Streams() as streams:
        streams.routing.is_busy = True
        stream = streams.stub.StreamCalls()
        await stream.write(Request())
        await stream.read()
        await streams.looked_at()
        streams.clock.now = 500
        await streams.looked_at()
        streams.routing.is_busy = False
        streams.clock.now = 550
        await streams.looked_at()
        assert not streams.open.cut, "its time begins when it is busy no more"
        streams.clock.now = 601
        assert (await failure_of(stream))[1] == "STREAM_SILENT"
