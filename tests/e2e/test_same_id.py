"""A second process with a living replica's id: refused while the first one is alive, and accepted once it has died."""

from __future__ import annotations

import asyncio

import pytest

import slotmesh
from tests.support.faults import faulty_mesh
from tests.support.wait import wait_until


@pytest.mark.asyncio
@pytest.mark.timeout(90)
async def test_keys_stay_at_the_first_process_until_it_has_died() -> None:
    async with (
        faulty_mesh("tests.e2e.handlers:Whoami", replicas=1, routers=1, proxied=True) as mesh,
        slotmesh.connect(mesh.addresses[0]) as client,
    ):
        (first,) = mesh.replicas
        lane = client.endpoint("Whoami").ordered("key")
        assert await lane.pid() == first.pid
        twin = first.twin()
        starting = asyncio.create_task(twin.start())
        try:
            await wait_until(
                lambda: "the controller refuses this replica" in twin.log_text, timeout=20.0, what="the refusal"
            )
            assert "another process with the id" in twin.log_text
            assert await asyncio.gather(*(lane.pid() for _ in range(50))) == [first.pid] * 50
            assert not starting.done()

            await first.kill()
            await starting
            mesh.replica_proxies[0].target = twin.address
            assert await lane.pid() == twin.pid
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await twin.stop()
