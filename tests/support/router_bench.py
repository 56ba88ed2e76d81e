"""A router between a scripted controller and scripted replicas, all over real gRPC on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.duplex import read_frame
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.fakes.controller import FakeController, fake_controller, table
from tests.fakes.replica import FakeReplica, fake_replica
from tests.support.wait import wait_until

Request = router_service_pb2.StreamCallsRequest
Response = router_service_pb2.StreamCallsResponse
Call = grpc.aio.StreamStreamCall[Request, Response]


@dataclass
class RouterBench:
    """A router, its scripted controller and two scripted replicas."""

    controller: FakeController
    replicas: list[FakeReplica]
    stub: Any
    address: str
    stop: Callable[[], Coroutine[None, None, None]]
    """Stops the router in order."""
    revision: int = 1
    calls: list[Call] = field(default_factory=list)

    async def open(self, endpoint: str = "echo", **fields: Any) -> Call:
        """An opened stream; its `opened` frame is read."""
        call: Call = self.stub.StreamCalls()
        self.calls.append(call)
        await call.write(Request(open=router_service_pb2.OpenStream(endpoint=endpoint, **fields)))
        opened = await next_frame(call)
        assert opened.WhichOneof("frame") == "opened"
        assert opened.opened.window.calls == 8192
        return call

    async def linked(self, *replicas: FakeReplica, **bounds: Any) -> None:
        """Returns when the router has this table and these links."""
        self.revision += 1
        named = {f"r{self.replicas.index(each)}": each.address for each in replicas}
        self.controller.push(table(self.revision, named, **bounds))
        await wait_until(
            lambda: any(
                report.revision == self.revision and list(report.linked_replica_ids) == sorted(named)
                for report in self.controller.reports
            ),
            what="the router reports the table and the links",
        )


@asynccontextmanager
async def router_bench() -> AsyncIterator[RouterBench]:
    """A router that is linked to two replicas."""
    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(fake_controller())
        replicas = [await stack.enter_async_context(fake_replica()) for _ in range(2)]
        settings = RouterSettings(port=0, metrics_port=-1, controller=controller.address)
        router = await stack.enter_async_context(AsyncExitStack())
        server = await router.enter_async_context(serve(settings))
        channel = await stack.enter_async_context(open_channel(server.address))
        stub = router_service_pb2_grpc.RouterServiceStub(channel)
        mesh = RouterBench(controller, replicas, stub, server.address, router.aclose)
        await mesh.linked(*replicas)
        yield mesh
        for call in mesh.calls:
            call.cancel()


async def next_frame(call: Call) -> Response:
    """The next frame; an ended stream is an error."""
    response = await read_frame(call)
    assert response is not None, "the stream ended"
    return response
