"""A SlotService on the loopback interface, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.client.slots import lease, reservations
from slotmesh.codec import OCTET_STREAM
from tests.support.fakes.counting import count
from tests.support.fakes.slot_service import FakeSlots


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a client tries to give a slot back, which is then held by its lease."""
    for module in (lease, reservations):
        monkeypatch.setattr(module, "RELEASE_S", 60.0)


@pytest_asyncio.fixture
async def slots() -> AsyncIterator[FakeSlots]:
    async with FakeSlots() as slots:
        slots.yields = count
        yield slots


@pytest_asyncio.fixture
async def mesh(slots: FakeSlots) -> AsyncIterator[slotmesh.Mesh]:
    """A client all of whose slots are free again when it has gone."""
    async with slotmesh.connect(slots.address) as mesh:
        yield mesh
    await slots.until_free()


@pytest_asyncio.fixture
async def decode(mesh: slotmesh.Mesh) -> slotmesh.Endpoint:
    return mesh.endpoint("decode").options(content_type=OCTET_STREAM)
