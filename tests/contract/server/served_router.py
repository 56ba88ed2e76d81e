"""A server of the mesh on the loopback interface, with a servicer whose rpcs do what a test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from slotmesh.errors import Failure
from slotmesh.runtime.channels import open_channel
from slotmesh.server.server import GrpcServer
from slotmesh.status import from_rpc_error
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc

SERVICE = "slotmesh.v1.RouterService"
STREAM = f"/{SERVICE}/StreamCalls"
Context = grpc.aio.ServicerContext[Any, Any]
StatusCode = grpc.StatusCode
OLDER = tuple(map(int, grpc.__version__.split(".")[:2])) < (1, 85)
"""Whether this version of gRPC is older than its accept loop that `slotmesh.grpc_internals.accepting` replaces."""


class Router(router_service_pb2_grpc.RouterServiceServicer):
    """A servicer whose rpcs do what a test sets."""

    def __init__(self) -> None:
        self.unary: Callable[[Any, Context], Awaitable[Any]] = self._echo
        self.stream: Callable[[Context], Awaitable[None]] = self._answer_all
        self.streams_ended = 0

    async def Call(self, request: Any, context: Context) -> Any:
        return await self.unary(request, context)

    async def DescribeEndpoints(self, request: Any, context: Context) -> Any:
        raise AssertionError("not part of these tests")

    async def Broadcast(self, request: Any, context: Context) -> Any:  # type: ignore[override]  # it only fails
        raise AssertionError("not part of these tests")

    async def CallStreaming(self, request: Any, context: Context) -> AsyncIterator[Any]:
        yield router_service_pb2.CallStreamingResponse(payload=request.payload)
        await self.unary(request, context)

    async def StreamCalls(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # reader and writer
        try:
            await self.stream(context)
        finally:
            self.streams_ended += 1

    async def _echo(self, request: Any, context: Context) -> Any:
        return router_service_pb2.CallResponse(payload=request.payload)

    async def _answer_all(self, context: Context) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(router_service_pb2.StreamCallsResponse())


Setting = tuple[GrpcServer, Router, grpc.aio.Channel]


@asynccontextmanager
async def serving(prepare: Callable[[GrpcServer], None] | None = None, **options: Any) -> AsyncIterator[Setting]:
    """`prepare` is called before the start."""
    server, router = GrpcServer("router-under-test", **options), Router()
    server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, router)
    if prepare is not None:
        prepare(server)
    await server.start()
    try:
        async with open_channel(server.address) as channel:
            await channel.channel_ready()  # on a busy machine an attempt to connect takes longer than it may
            yield server, router, channel
    finally:
        await server.stop()


async def call(channel: grpc.aio.Channel, payload: bytes = b"x", timeout_s: float = 30.0) -> Any:
    stub = router_service_pb2_grpc.RouterServiceStub(channel)
    return await stub.Call(router_service_pb2.CallRequest(payload=payload), timeout=timeout_s)


async def failure(rpc: Awaitable[Any]) -> tuple[grpc.StatusCode, Failure]:
    """The status and the details that a client sees."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc
    return caught.value.code(), from_rpc_error(caught.value)
