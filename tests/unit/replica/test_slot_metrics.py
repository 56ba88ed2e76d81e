"""The slots of a replica, as a scrape sees them."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from replica_service.convert.slots import Granted
from replica_service.shell.links.direct_slots import DirectSlots, ReservationTerms
from replica_service.shell.metrics import observe
from slotmesh.telemetry.setup import setup_metrics
from tests.contract.slot_handlers import Handler
from tests.unit.replica.hosting import hosting


@pytest.mark.asyncio
async def test_reserved_slots_and_what_became_of_them() -> None:
    metrics = setup_metrics("replica", "127.0.0.1", 0)
    try:
        async with hosting(Handler) as host:
            observe(metrics, host.engine, "b")
            direct = DirectSlots(host.engine, host.clock)
            granted = await direct.reserve(ReservationTerms("e", 10.0), None)
            assert isinstance(granted, Granted)
            assert 'slotmesh_replica_slots_reserved{slotmesh_backend="b"} 1.0' in await scrape(metrics.address)
            direct.release(granted.slot.secret)
            told = await scrape(metrics.address)
    finally:
        metrics.shutdown()
    for line in (
        'slotmesh_replica_slots_reserved{slotmesh_backend="b"} 0.0',
        'slotmesh_replica_reservations_total{slotmesh_backend="b",slotmesh_outcome="granted"} 1.0',
        'slotmesh_replica_slots_total{slotmesh_backend="b",slotmesh_outcome="released"} 1.0',
        'slotmesh_replica_slots_total{slotmesh_backend="b",slotmesh_outcome="expired"} 0.0',
    ):
        assert line in told, told


async def scrape(address: str | None) -> str:
    def read() -> bytes:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            content: bytes = answer.read()
            return content

    return (await asyncio.to_thread(read)).decode()
