"""A SlotService on the loopback interface, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from tests.support.fakes.counting import count
from tests.support.fakes.slot_service import FakeSlots


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
