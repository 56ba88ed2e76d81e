"""Keyed calls while replicas are added and drained: in order, one at a time, none lost, none failed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import slotmesh
from slotmesh.cli.operator import Operator
from slotmesh.spec.model import Mesh
from tests.e2e.test_order import assert_one_at_a_time, executions
from tests.support.mesh import MeshRun, started_mesh
from tests.support.recorder import VARIABLE, read_records
from tests.support.wait import wait_until

pytestmark = pytest.mark.long

CLIENTS = 2
KEYS = tuple(f"key-{number}" for number in range(32))
BURST = 10
PACE_S = 0.05
"""Between two rounds of a client: replicas start beside them."""
FIRST_SIZE = 2
SIZES = (4, 2, 5, 1, 3)
"""Replicas that should run, one after the other."""


class Load:
    """Clients that send bursts of calls of all keys until they are told to stop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._done = asyncio.Event()
        self.rounds = [0] * CLIENTS

    def stop(self) -> None:
        self._done.set()

    async def goes_on(self, rounds: int) -> None:
        """Returns when every client has had so many more rounds of calls answered."""
        wanted = [now + rounds for now in self.rounds]
        await wait_until(
            lambda: all(now >= then for now, then in zip(self.rounds, wanted, strict=True)), what="calls go on"
        )

    async def run(self) -> None:
        await asyncio.gather(*map(self._one_client, range(CLIENTS)))

    async def _one_client(self, client: int) -> None:
        async with slotmesh.connect(self._address) as mesh:
            ledger = mesh.endpoint("Ledger")
            while not self._done.is_set():
                first = self.rounds[client] * BURST
                calls = [f"{client}/{number}" for number in range(first, first + BURST)]
                lanes = [(ledger.ordered(key), key) for key in KEYS]
                replies = await asyncio.gather(*[lane.add(key, call) for lane, key in lanes for call in calls])
                assert replies == calls * len(KEYS)
                self.rounds[client] += 1
                await asyncio.sleep(PACE_S)


async def scale(mesh: MeshRun, operator: Operator, size: int) -> None:
    """Has the backend run so many replicas; returns when they are ready, and all others are gone."""
    backend = (await operator.snapshot()).backends[0]
    await operator.apply(Mesh(backends=(replace(backend, num_replicas=size),)))
    await mesh.wait_for_replicas(size)


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_order_holds_while_replicas_are_added_and_drained(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with started_mesh("tests.e2e.handlers:Ledger", replicas=FIRST_SIZE, env={VARIABLE: str(file)}) as mesh:
        load = Load(mesh.router_address)
        async with asyncio.TaskGroup() as tasks, Operator.at(mesh.controller_address) as operator:
            tasks.create_task(load.run())
            for size in SIZES:
                await scale(mesh, operator, size)
                await load.goes_on(rounds=3)
            load.stop()
    history = executions(read_records(file))
    assert set(history) == set(KEYS)
    pids: set[int] = set()
    for key, records in history.items():
        calls = assert_one_at_a_time(records)
        pids.update(record.pid for record in records)
        for client in range(CLIENTS):
            own = [int(call.partition("/")[2]) for call in calls if call.startswith(f"{client}/")]
            assert own == list(range(load.rounds[client] * BURST)), f"{key}: calls of client {client}"
    moved = sum(len({record.pid for record in records}) > 1 for records in history.values())
    assert moved > len(KEYS) / 2, "most keys were at several replicas"
    assert len(pids) > FIRST_SIZE, "replicas that joined later had keys"
