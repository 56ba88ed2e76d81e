"""Routers and whole meshes that are asked to stop while clients have calls: which calls go on, what waits for what."""

from __future__ import annotations

import os
import signal

import pytest

import slotmesh
from tests.support.mesh import MeshRun, started_mesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

SPELLER = "tests.e2e.yielding_handlers:Speller"
SLOTS = 8
"""Calls that one `Speller` executes at once."""
VALUES = 1_000
"""More than a handler is ahead of its caller: MAX_VALUES_AHEAD, here and at the router."""
PATIENT = {"SLOTMESH_GRACEFUL_TIMEOUT": "180s"}
"""What an end takes that waits for somebody."""
AT_ONCE_S = 40.0
"""What an end takes at most, on a busy machine, that waits for nobody."""


def process_of(mesh: MeshRun, *words: str) -> int:
    (found,) = [pid for pid, line in mesh.processes().items() if all(word in line.split() for word in words)]
    return found


def terminate(mesh: MeshRun, *modules: str) -> None:
    """SIGTERM to all processes of these modules, one right after the other."""
    pids = [pid for pid, line in mesh.processes().items() if set(modules) & set(line.split())]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)


async def test_iterations_end_at_the_router_that_stops_and_new_calls_go_elsewhere() -> None:
    async with (
        started_mesh(SPELLER, routers=2, env=PATIENT) as mesh,
        slotmesh.connect(mesh.router_addresses[0]) as client,
    ):
        speller = client.endpoint("Speller")
        last, *iterations = [speller.count.stream(VALUES) for _ in range(SLOTS)]
        for values in (last, *iterations):
            assert await anext(values) == 0
        waiting = speller.count.stream(3)  # there is no slot for these two
        moving = speller.echo("sent before")
        router = process_of(mesh, "router_service", "--router-id=router-1")
        os.kill(router, signal.SIGTERM)
        for values in iterations:
            assert [value async for value in values] == list(range(1, VALUES))
        assert await moving == "sent before"
        assert [value async for value in waiting] == [0, 1, 2]
        assert await speller.echo("new") == "new"
        assert router in mesh.processes()
        assert [value async for value in last] == list(range(1, VALUES))
        await wait_until(lambda: router not in mesh.processes(), timeout=AT_ONCE_S, what="the router has ended")


@pytest.mark.long
@pytest.mark.parametrize("is_closed", [True, False], ids=["client closed", "client open"])
async def test_controller_and_router_that_stop_together_wait_for_nobody(is_closed: bool) -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", replicas=2, env=PATIENT) as mesh:
        async with slotmesh.connect(mesh.router_address) as client:
            gallery = client.endpoint("Gallery")
            assert await gallery.double.map(range(200)) == [2 * number for number in range(200)]
            if not is_closed:
                terminate(mesh, "controller_service", "router_service")
                await wait_until(lambda: len(mesh.processes()) <= 1, timeout=AT_ONCE_S, what="all have ended")
        if is_closed:
            terminate(mesh, "controller_service", "router_service")
        await wait_until(lambda: not mesh.processes(), timeout=AT_ONCE_S, what="all have ended")
        assert "acknowledged" not in mesh.log_text()
