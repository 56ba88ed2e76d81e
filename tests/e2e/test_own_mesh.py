"""Handlers in processes of their own call each other, whichever routers there are."""

from __future__ import annotations

import asyncio

import pytest

import slotmesh
from benchmarks.processes import process_mesh
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy

pytestmark = pytest.mark.long

SPEC = Mesh(
    backends=(
        Backend(name="front", handler="tests.e2e.calling_handlers:Front", max_ongoing=8),
        Backend(name="rank", handler="tests.e2e.calling_handlers:Rank"),
    ),
    endpoints=tuple(Endpoint(name=name, traffic=TrafficPolicy(weights={name: 1.0})) for name in ("front", "rank")),
)
TIMEOUT_S = 30.0


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_routers_are_followed_until_none_is_left_of_the_first_ones() -> None:
    async with process_mesh(SPEC) as mesh:
        for _ in range(2):
            await mesh.add_router()
            await mesh.wait_ready()
            async with slotmesh.connect(mesh.routers[-1].address) as client:
                front = client.endpoint("front").options(timeout=TIMEOUT_S)
                for method in ("score", "score_in_thread", "score_in_a_thread_of_its_own"):
                    call = front.method(method)
                    assert await asyncio.gather(*map(call, range(20))) == [*range(0, 200, 10)]
                await mesh.remove_router(mesh.routers[0])
                assert await front.score(5) == 50
                assert await front.score_in_thread(6) == 60
