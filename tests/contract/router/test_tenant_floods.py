"""One tenant of a client floods, by each way that calls come: another one has its turn, and no call of it is refused.

All calls are made through one client, as a web front makes them; who is served when is read from the handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import slotmesh
from router_service.core.queueing.backend_queues import FEW_CALLS
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.testing import Backend
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1.controller_service_pb2_grpc import ControllerServiceStub
from tests.support.fakes.router import FakeRouter
from tests.support.gated_handler import Gated
from tests.support.ingresses import ServedMesh, served_mesh

pytestmark = pytest.mark.asyncio

SLOTS = 4
FLOOD = 400
OTHERS = 5
TIMEOUT_S = 60


@dataclass
class Scene:
    served: ServedMesh
    handler: Gated

    async def queued(self, calls: int) -> None:
        """Returns when so many calls wait at the router."""
        async with open_channel(self.served.mesh.controller_address) as channel:
            controller = ControllerServiceStub(channel)
            while True:
                said = await controller.GetSnapshot(pb.GetSnapshotRequest())
                if sum(load.queued for router in said.routers for load in router.router.loads) == calls:
                    return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with served_mesh({"gated": Backend(Gated, max_ongoing=SLOTS)}) as served:
        yield Scene(served, served.mesh.instances("gated")[0])


async def by_stream(served: ServedMesh, tenant: str) -> bytes:
    return bytes(await served.mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant)(tenant.encode()))


async def by_unary(served: ServedMesh, tenant: str) -> bytes:
    view = served.mesh.endpoint("gated").options(content_type=OCTET_STREAM, tenant=tenant)
    return bytes(await view.method("__call__").unary(tenant.encode()))


async def by_http(served: ServedMesh, tenant: str) -> bytes:
    headers = {"content-type": OCTET_STREAM, "X-Slotmesh-Tenant": tenant}
    answer = await served.ask("POST", "/gated", tenant.encode(), headers)
    assert answer.status == 200, answer.body
    return answer.body


WAYS: list[Callable[[ServedMesh, str], Awaitable[bytes]]] = [by_stream, by_unary, by_http]


@pytest.mark.parametrize("way", WAYS)
async def test_a_tenant_has_its_turn_beside_the_flood_of_another(
    way: Callable[[ServedMesh, str], Awaitable[bytes]],
) -> None:
    async with scene() as made, asyncio.timeout(TIMEOUT_S):
        flood = [asyncio.ensure_future(way(made.served, "flood")) for _ in range(FLOOD)]
        await made.queued(FLOOD - SLOTS)
        others = [asyncio.ensure_future(way(made.served, "other")) for _ in range(OTHERS)]
        await made.queued(FLOOD - SLOTS + OTHERS)
        made.handler.gate.set()
        assert set(await asyncio.gather(*others)) == {b"other"}
        assert set(await asyncio.gather(*flood)) == {b"flood"}
        places = [at for at, payload in enumerate(made.handler.seen) if payload == b"other"]
        assert len(places) == OTHERS
        assert max(places) < SLOTS + FEW_CALLS + OTHERS, "behind what ran already, and few calls that were first"


async def test_a_flood_leaves_room_in_the_clients_window() -> None:
    async with FakeRouter(window_calls=100, window_bytes=10_000) as router:
        router.held = True
        async with slotmesh.connect(router.address, close_grace=0) as mesh, asyncio.timeout(TIMEOUT_S):
            endpoint = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
            flood: Any = endpoint.options(tenant="flood").echo.map([b"f"] * 1_000)
            await router.until(lambda: router.calls() == 50)
            others = [endpoint.options(tenant="other").echo(b"o%d" % number) for number in range(10)]
            large = endpoint.options(tenant="large").echo(b"x" * 4_000)
            await router.until(lambda: router.calls() == 61)
            assert [each.options.tenant for each in router.batches][:1] == ["flood"]
            assert {each.options.tenant for each in router.batches[1:]} == {"other", "large"}
            router.release()
            assert await asyncio.gather(*others) == [b"o%d" % number for number in range(10)]
            assert await large == b"x" * 4_000
            assert await flood == [b"f"] * 1_000
        assert not router.breaches
