"""Calls of one ordering key: strictly in order, one at a time, none lost, none twice, each reply at its own call."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

import slotmesh
from tests.support.mesh import started_mesh
from tests.support.recorder import VARIABLE, Event, Record, read_records
from tests.support.tiers import long

CLIENTS = 4
KEYS = tuple(f"key-{number}" for number in range(16))
BURST = 25


def executions(records: list[Record]) -> dict[str, list[Record]]:
    """Starts and ends of executions, by ordering key, in the order in which they happened."""
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.event in {Event.STARTED, Event.FINISHED}:
            by_key[record.key].append(record)
    return by_key


def assert_one_at_a_time(history: list[Record]) -> list[str]:
    """Each start is followed by its own end; returns the calls in the order of execution."""
    starts, ends = history[::2], history[1::2]
    assert [record.event for record in starts] == [Event.STARTED] * len(starts)
    assert [record.event for record in ends] == [Event.FINISHED] * len(starts)
    assert [record.call for record in starts] == [record.call for record in ends], "two executions at a time"
    return [str(record.call) for record in starts]


async def one_client(address: str, client: int, per_key: int) -> None:
    """Sends its share of each key's calls and checks that each reply is that of its own call."""
    async with slotmesh.connect(address) as mesh:
        ledger = mesh.endpoint("Ledger")

        async def one_key(key: str) -> None:
            lane = ledger.ordered(key)
            for start in range(0, per_key, BURST):
                calls = [f"{client}/{number}" for number in range(start, min(start + BURST, per_key))]
                replies = await asyncio.gather(*[lane.add(key, call) for call in calls])
                assert replies == calls

        await asyncio.gather(*(one_key(key) for key in KEYS))


@pytest.mark.asyncio
@pytest.mark.timeout(120)
@pytest.mark.parametrize("count", [2_560, long(40_000)])
async def test_calls_of_16_keys_from_4_clients_over_4_replicas(count: int, tmp_path: Path) -> None:
    per_key = count // CLIENTS // len(KEYS)
    file = tmp_path / "records"
    async with started_mesh("tests.e2e.handlers:Ledger", replicas=4, env={VARIABLE: str(file)}) as mesh:
        await asyncio.gather(*(one_client(mesh.router_address, client, per_key) for client in range(CLIENTS)))
    history = executions(read_records(file))
    assert set(history) == set(KEYS)
    assert len({record.pid for records in history.values() for record in records}) == 4, "all replicas had keys"
    for key, records in history.items():
        calls = assert_one_at_a_time(records)
        assert len({record.pid for record in records}) == 1, f"{key} was at two replicas"
        for client in range(CLIENTS):
            own = [int(call.partition("/")[2]) for call in calls if call.startswith(f"{client}/")]
            assert own == list(range(per_key)), f"{key}: calls of client {client} are lost, doubled or out of order"
