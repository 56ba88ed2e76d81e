"""Handlers of the greeter's proto that show what a test asks for, and meshes with them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

import slotmesh
import slotmesh.testing
from examples.own_proto import greeter_pb2
from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse
from examples.own_proto.greeter_pb2_grpc import GreeterStub
from slotmesh.testing import RunningMesh

SERVICE = "examples.greeter.v1.Greeter"


class AsyncGreeter:
    """All four kinds, as `async def`."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.took: list[str] = []
        self.begun: list[str] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.contexts: list[slotmesh.CallContext] = []

    async def Greet(self, request: GreetRequest) -> GreetResponse:
        self.begun.append("Greet")
        self.contexts.append(slotmesh.context())
        if request.name == "wait":
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
        return GreetResponse.FromString(request.SerializeToString())

    async def GreetInLanguages(self, request: GreetRequest, context: Any) -> AsyncIterator[GreetResponse]:
        context.set_trailing_metadata((("count", "3"), ("raw-bin", b"\x00\xff")))
        await context.send_initial_metadata((("first", "yes"),))
        for hello in ("Hallo", "Hello", "Bonjour"):
            yield GreetResponse(text=f"{hello}, {request.name}!")
        if request.name == "fail":
            await context.abort(grpc.StatusCode.DATA_LOSS, "no more languages", (("left", "all"),))
        while request.name == "endless":
            try:
                yield GreetResponse(text="x" * 1024)
            finally:
                self.took.append("")

    async def GreetAll(self, requests: AsyncIterator[GreetRequest], context: Any) -> GreetResponse:
        self.begun.append("GreetAll")
        async for request in requests:
            self.took.append(request.name)
            self.began.set()
            if request.name == "stop":
                context.set_code("FAILED_PRECONDITION")
                context.set_details("stopped")
                break
            await self.may_take.wait()
        return GreetResponse(text=" ".join(self.took)[:100])

    async def Chat(self, requests: AsyncIterator[GreetRequest]) -> AsyncIterator[GreetResponse]:
        self.begun.append("Chat")
        try:
            async for request in requests:
                self.began.set()
                if request.name == "fail":
                    slotmesh.abort("RESOURCE_EXHAUSTED", "no more names", {"limit": "1"})
                if request.name == "raise":
                    raise ValueError("of the handler's own")
                await self.may_take.wait()
                self.took.append(request.name)
                yield GreetResponse.FromString(request.SerializeToString())
        finally:
            self.ended.set()


class PlainGreeter:
    """The same as `def`, in threads."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ended = threading.Event()
        self.why: list[BaseException] = []

    def Greet(self, request: GreetRequest, context: Any) -> GreetResponse:
        context.set_trailing_metadata((("who", request.name),))
        return GreetResponse(text=request.name.upper())

    def GreetInLanguages(self, request: GreetRequest, context: Any) -> list[GreetResponse]:
        del context
        return [GreetResponse(text=hello + request.name) for hello in ("Hallo ", "Hello ")]

    def GreetAll(self, requests: Iterator[GreetRequest], context: Any) -> GreetResponse:
        del context
        return GreetResponse(text=" ".join(self._taken(requests)))

    def Chat(self, requests: Iterator[GreetRequest], context: Any) -> Iterator[GreetResponse]:
        del context
        for name in self._taken(requests):
            yield GreetResponse(text=name.upper())

    def _taken(self, requests: Iterator[GreetRequest]) -> Iterator[str]:
        try:
            for request in requests:
                self.began.set()
                yield request.name
        except BaseException as error:
            self.why.append(error)
            raise
        finally:
            self.ended.set()


@asynccontextmanager
async def greeting(handler: Any = AsyncGreeter, **options: Any) -> AsyncIterator[tuple[RunningMesh, Any]]:
    """A mesh whose endpoint `greeter` answers the service, and a client of its router."""
    async with slotmesh.testing.mesh({"greeter": handler}, grpc_services={"greeter": [greeter_pb2]}, **options) as mesh:
        async with opened(mesh.router_addresses[0]) as channel:
            stub: Any = GreeterStub(channel)
            yield mesh, stub


def opened(address: str) -> Any:
    """A channel, for calls with bytes as well: its stubs know of messages only."""
    return grpc.aio.insecure_channel(address)


def request(name: str) -> GreetRequest:
    return GreetRequest(name=name)


async def requests(*names: str, then: Callable[[], Awaitable[object]] | None = None) -> AsyncIterator[GreetRequest]:
    """What a client sends; `then` comes before the half-close."""
    for name in names:
        yield request(name)
    if then is not None:
        await then()


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    """How the rpc fails."""
    try:
        async with asyncio.timeout(10):
            if hasattr(call, "__aiter__"):
                async for _ in call:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it has not failed")
