"""A controller is killed while a replica is cut off from it; the next one remembers nothing. Each key has one owner."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

import slotmesh
from tests.e2e.test_order import assert_one_at_a_time, executions
from tests.support.faults import faulty_mesh
from tests.support.recorder import VARIABLE, read_records
from tests.support.wait import wait_until

pytestmark = pytest.mark.long

KEYS = tuple(f"key-{number}" for number in range(16))
MOVES = 3
"""A key changes its owner when a replica comes back, and perhaps once more for better shares."""
ASSIGNED_S = 8.0
"""By then a controller that knows nothing of the owners would have found others."""


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_replica_that_is_cut_off_from_the_next_controller_keeps_its_keys(tmp_path: Path) -> None:
    """Clients at two routers call all keys; one of the routers is cut off as well, and hears of the next one late."""
    file = tmp_path / "records"
    async with (
        faulty_mesh(
            "tests.e2e.handlers:Ledger", replicas=2, routers=2, proxied=True, env={VARIABLE: str(file)}
        ) as mesh,
        slotmesh.connect([mesh.addresses[0]]) as one,
        slotmesh.connect([mesh.addresses[1]]) as other,
    ):
        done = asyncio.Event()
        answered = dict.fromkeys([(at, key) for at in range(2) for key in KEYS], 0)

        async def keep_calling(client: slotmesh.Client, at: int, key: str) -> None:
            lane = client.endpoint("Ledger").ordered(key)
            while not done.is_set():
                await lane.add(key, f"{key}/{at}/{answered[at, key]}")
                answered[at, key] += 1

        async def wait_for_more() -> None:
            """Until everybody was answered ten more times: those who wait for a newer table, too."""
            before = answered.copy()
            await wait_until(
                lambda: all(answered[each] >= count + 10 for each, count in before.items()),
                timeout=40.0,
                what=f"more answers than {before}",
            )

        async with asyncio.TaskGroup() as callers:
            for at, client in enumerate((one, other)):
                for key in KEYS:
                    callers.create_task(keep_calling(client, at, key))
            await wait_for_more()
            cut_off = [mesh.controller_proxies[each.name] for each in (mesh.replicas[0], mesh.routers[1])]
            for proxy in cut_off:
                proxy.stall()
            await mesh.controller.kill()
            await mesh.start_again(mesh.controller)
            await asyncio.sleep(ASSIGNED_S)
            for proxy in reversed(cut_off):
                proxy.heal()
                await wait_for_more()
            await mesh.wait_linked(2)
            done.set()
    by_key = executions(read_records(file))
    for key in KEYS:
        history = by_key[key]
        assert len({*assert_one_at_a_time(history)}) == sum(answered[at, key] for at in range(2)) == len(history) // 2
        moves = sum(one.pid != other.pid for one, other in pairwise(history))
        assert moves <= MOVES, f"{key}: two owners take turns"
