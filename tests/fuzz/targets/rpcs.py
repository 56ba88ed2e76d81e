"""Each rpc of each service, with requests by its descriptor, at services that run. A new one is a target by itself.

Owner: the process that fuzzes. A service is begun anew from time to time: what requests leave in it is bounded by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor

from slotmesh.calls.slot_tokens import SECRET_BYTES, format_token
from slotmesh.inference import grpc_inference_service_pb2
from slotmesh.internal.v1 import membership_service_pb2, replica_service_pb2
from slotmesh.v1 import (
    controller_service_pb2,
    direct_service_pb2,
    http_route_service_pb2,
    info_service_pb2,
    router_service_pb2,
    slot_service_pb2,
    tap_service_pb2,
)
from tests.fuzz.messages import Words, message_from
from tests.fuzz.rpcs import recorded_handlers, send
from tests.fuzz.source import Source
from tests.support.controllers import running_controller
from tests.support.replicas import running_replica
from tests.support.router_bench import router_bench

REQUESTS_OF_ONE_LIFE: Final = 2_000
MAX_FRAMES: Final = 5

Bench = Callable[[], AbstractAsyncContextManager[Words]]
"""A service that runs; what it gives are the words that mean something to it."""
METHODS: Final = ("", "__call__", "numbers", "array", "rest", "items", "rows", "stream", "_private")
CONTENT: Final = ("application/msgpack", "application/json", "application/octet-stream", "application/x-protobuf")


@asynccontextmanager
async def router() -> AsyncIterator[Words]:
    async with router_bench() as bench:
        await bench.linked(bench.replicas[0])
        names = ("echo", "b", "", *bench.links)
        yield {
            "": names,
            "endpoint": ("echo", "echo", "none"),
            "model_name": ("echo", "echo", "none"),
            "datatype": ("FP32", "INT8", "BYTES", "BF16", "BOOL"),
            "method": METHODS,
            "content_type": CONTENT,
        }


@asynccontextmanager
async def replica() -> AsyncIterator[Words]:
    async with running_replica("tests.fuzz.handlers:Fuzzed") as running:
        identity = running.app.identity
        token = format_token(identity.replica_id, identity.incarnation, bytes(SECRET_BYTES))
        yield {
            "": ("r", "s-1", "k"),
            "replica_id": (identity.replica_id,),
            "incarnation": (identity.incarnation,),
            "router_id": ("router-1", "router-2"),
            "method": METHODS,
            "content_type": CONTENT,
            "token": (token, "", "x"),
        }


@asynccontextmanager
async def controller() -> AsyncIterator[Words]:
    async with running_controller() as controlled:
        await controlled.apply("backends: {b: {handler: 'a.b:C', num_replicas: 1}}\nendpoints: {e: {traffic: {b: 1}}}")
        yield {
            "": ("b", "e", "backend/b", "endpoint/e", "r-1", "0" * 32, "a.b:C"),
            "address": ("127.0.0.1:1", "x", ""),
        }


BENCHES: Final[Mapping[Any, Bench]] = {
    router_service_pb2: router,
    slot_service_pb2: router,
    tap_service_pb2: router,
    grpc_inference_service_pb2: router,
    info_service_pb2: router,
    replica_service_pb2: replica,
    direct_service_pb2: replica,
    controller_service_pb2: controller,
    membership_service_pb2: controller,
    http_route_service_pb2: controller,
}


@contextmanager
def rpc(method: MethodDescriptor, bench: Bench) -> Iterator[Callable[[bytes], object]]:
    """The service, and the rpc that gets requests; the service lives while the block lasts."""
    name = f"{method.containing_service.full_name}/{method.name}"
    with asyncio.Runner() as runner, _Life(runner, bench) as life:
        failed: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(lambda _loop, context: failed.append(context))

        def run(data: bytes) -> None:
            life.begin()
            source = Source(data)
            frames = list(_frames(method, source, life.words))
            runner.run(_sent(life.handlers[name], frames))
            if failed:
                context = failed.pop()
                raise AssertionError(context["message"]) from context.get("exception")

        yield run


class _Life:
    """A service, begun anew after so many requests."""

    def __init__(self, runner: asyncio.Runner, bench: Bench) -> None:
        self._runner = runner
        self._bench = bench
        self._stack = AsyncExitStack()
        self._requests = REQUESTS_OF_ONE_LIFE
        self.words: Words = {}
        self.handlers: dict[str, Any] = {}

    def begin(self) -> None:
        self._requests += 1
        if self._requests > REQUESTS_OF_ONE_LIFE:
            self._requests = 0
            self._runner.run(self._start())

    async def _start(self) -> None:
        await self._stack.aclose()
        with recorded_handlers() as self.handlers:
            self.words = await self._stack.enter_async_context(self._bench())

    def __enter__(self) -> _Life:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())


async def _sent(handler: Any, frames: list[bytes]) -> None:
    await send(handler, frames)


def _frames(method: MethodDescriptor, source: Source, words: Words) -> Iterator[bytes]:
    """One request, or frames of which the first mostly opens the stream; some are any bytes."""
    for at in range(1 + source.below(MAX_FRAMES) if method.client_streaming else 1):
        kind = source.below(8)
        if kind == 0:
            yield source.payload()
            continue
        message = message_from(method.input_type, source, words)
        if method.client_streaming and at == 0 and kind > 1:
            message = message_from(method.input_type, _Opening(source), words)
        yield message.SerializeToString()


class _Opening(Source):
    """Makes the first choices for a frame: one field, which is the first."""

    def __init__(self, source: Source) -> None:
        super().__init__(b"\x01\x00" + source.take(64))


def methods() -> Iterator[tuple[MethodDescriptor, Bench]]:
    """All rpcs of all services."""
    for module, bench in BENCHES.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield method, bench


TARGETS: Final = {
    f"rpcs-{method.containing_service.name}-{method.name}": partial(rpc, method, bench) for method, bench in methods()
}
