"""Replicas that come and go with the load, as processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import slotmesh
from benchmarks.processes import ProcessMesh, process_mesh
from slotmesh.cli.controller_view import READY_STATE, STARTING_STATE
from slotmesh.client.mesh import Mesh as Client
from slotmesh.spec.model import Autoscale, Backend, Endpoint, Mesh, TrafficPolicy

pytestmark = pytest.mark.long

NAP = "benchmarks.handler:Nap"
TIMEOUT_S = 60.0
STEP = Autoscale(min=1, max=20, target_ongoing=5.0, up_delay_s=1.0, down_delay_s=4.0, up_rate=100.0, down_rate=1.0)
FROM_ZERO = Autoscale(min=0, max=4, target_ongoing=5.0, idle_timeout_s=2.0, down_delay_s=1.0)


def spec(autoscale: Autoscale) -> Mesh:
    nap = Backend(name="v1", handler=NAP, max_ongoing=5, user_config={"seconds": 0.5}, autoscale=autoscale)
    return Mesh(backends=(nap,), endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0})),))


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await ask():
                return
            await asyncio.sleep(0.05)


async def running(mesh: ProcessMesh) -> int:
    """Replicas that run, and are not asked to end."""
    return sum(it.state in {STARTING_STATE, READY_STATE} for it in (await mesh.operator.members()).replicas)


async def caller(client: Client) -> None:
    """One call after another."""
    method = client.endpoint("e").options(timeout=TIMEOUT_S).method("echo")
    while True:
        await method(b"")


@pytest.mark.asyncio
async def test_a_load_step_settles_where_it_should_and_goes_back() -> None:
    async with process_mesh(spec(STEP)) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        assert await running(mesh) == 1
        numbers: list[int] = []

        async def has(number: int) -> bool:
            numbers.append(await running(mesh))
            return numbers[-1] == number and len(await mesh.replicas()) == number

        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(caller(client)) for _ in range(40)]
            await until(lambda: has(8))
            settled = asyncio.get_running_loop().time()

            async def goes_on() -> bool:
                numbers.append(await running(mesh))
                return asyncio.get_running_loop().time() > settled + 6.0

            await until(goes_on)
            # On a busy machine some of the callers wait for their own turn, and are no load for that time.
            assert 6 <= numbers[-1] <= 9
            for each in callers:
                each.cancel()
        assert max(numbers) <= 9
        await until(lambda: has(1))


@pytest.mark.asyncio
@pytest.mark.parametrize("lane", ["", "k"])
async def test_to_zero_and_back_by_the_first_call(lane: str) -> None:
    async with process_mesh(spec(FROM_ZERO)) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        endpoint = client.endpoint("e").options(timeout=TIMEOUT_S)
        method = (endpoint.ordered(lane) if lane else endpoint).method("echo")
        assert await running(mesh) == 0
        for _ in range(2):
            assert await method(b"call") == b"call"
            assert await running(mesh) == 1

            async def is_empty() -> bool:
                return not await running(mesh)

            await until(is_empty)
