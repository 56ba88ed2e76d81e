"""A real router between replicas that are fakes, and a caller of its SlotService."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.contract.router.slots.slot_caller import SlotCaller, client_of
from tests.support.router_bench import RouterBench, router_bench


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        yield bench


@pytest_asyncio.fixture
async def client(mesh: RouterBench) -> AsyncIterator[SlotCaller]:
    async with client_of(mesh.address) as client:
        yield client
