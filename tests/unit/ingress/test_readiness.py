"""Whether some router takes calls: one that stops does not speak for all, and a storm of probes is one question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.inference_front import RouterReadiness
from slotmesh.client.routers import Routers
from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.inference.grpc_inference_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)
from slotmesh.runtime.channels import PLAIN_TEXT
from tests.support.fakes.serving import FakeServer

pytestmark = pytest.mark.asyncio


class Router(FakeServer, GRPCInferenceServiceServicer):
    """Says whether it is ready."""

    register = staticmethod(add_GRPCInferenceServiceServicer_to_server)

    def __init__(self, *, is_ready: bool) -> None:
        super().__init__(0)
        self.is_ready = is_ready
        self.asked = 0

    async def ServerReady(self, _request: Any, _context: Any) -> pb.ServerReadyResponse:
        self.asked += 1
        return pb.ServerReadyResponse(ready=self.is_ready)


def router_that(*, is_ready: bool) -> Router:
    return Router(is_ready=is_ready)  # type: ignore[abstract]  # nobody asks for the others


@asynccontextmanager
async def asking(*routers: Router, more: tuple[str, ...] = ()) -> AsyncIterator[tuple[RouterReadiness, HttpCaller]]:
    async with AsyncExitStack() as stack:
        for router in routers:
            await stack.enter_async_context(router)
        own = HttpCaller(Routers((*(it.address for it in routers), *more), PLAIN_TEXT), 1.0)
        readiness = RouterReadiness()
        yield readiness, own
        readiness.close()
        await own.aclose(0)


async def test_one_that_takes_calls_is_enough() -> None:
    stopping, well = router_that(is_ready=False), router_that(is_ready=True)
    async with asking(stopping, well, more=("127.0.0.1:1",)) as (readiness, own):
        assert await readiness.is_one_ready(own)
    async with asking(router_that(is_ready=False), stopping, more=("127.0.0.1:1",)) as (readiness, own):
        assert not await readiness.is_one_ready(own)


async def test_a_storm_of_probes_is_one_question() -> None:
    router = router_that(is_ready=True)
    async with asking(router) as (readiness, own):
        assert all(await asyncio.gather(*(readiness.is_one_ready(own) for _ in range(200))))
        assert await readiness.is_one_ready(own)
        assert router.asked == 1
