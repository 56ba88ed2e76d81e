"""Calls that wait for a place of a model: a free place wakes those that can use it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slotmesh.handlers.model_holding import call_uses
from slotmesh.handlers.model_places import FoundPlace, ModelUses
from slotmesh.handlers.model_pools import ModelPool
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Pool(ModelPool):
    """Counts the requests for places, and notes the loads."""

    def __init__(self, most: int) -> None:
        self.takes = 0
        self.loaded_ids: list[str] = []
        super().__init__("load", self._load_model, None, most, is_async=True)

    async def _load_model(self, model_id: str) -> str:
        self.loaded_ids.append(model_id)
        return model_id

    def _take(self, model_id: str, uses: ModelUses, **said: Any) -> FoundPlace | Any:
        self.takes += 1
        return super()._take(model_id, uses, **said)


async def use(pool: Pool, model_id: str, until: asyncio.Event | None = None) -> Any:
    with call_uses():
        model = await pool.get(model_id)
        if until is not None:
            await until.wait()
        return model


async def start(pool: Pool, *models: str, until: asyncio.Event | None = None) -> list[asyncio.Task[Any]]:
    """Calls that have requested their models."""
    before = pool.takes
    tasks = [asyncio.create_task(use(pool, each, until)) for each in models]
    await wait_until(lambda: pool.takes == before + len(models), what="all have requested their models")
    return tasks


async def test_a_free_place_wakes_the_calls_of_one_model_in_order_of_arrival() -> None:
    pool, over = Pool(1), asyncio.Event()
    (first,) = await start(pool, "held", until=over)
    names = [f"m{number}" for number in range(200)]
    calls = await start(pool, *names, "m0")
    over.set()
    async with asyncio.timeout(20):
        assert await asyncio.gather(first, *calls) == ["held", *names, "m0"]
    assert pool.loaded_ids == ["held", *names]
    assert pool.takes < 3 * len(names), "each place wakes all calls"


async def test_a_cancelled_call_leaves_its_place_to_the_next() -> None:
    pool, over = Pool(1), asyncio.Event()
    (first,) = await start(pool, "held", until=over)
    gone, woken, last = await start(pool, "a", "b", "c")
    gone.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait([gone])
        assert list(pool._waiting) == ["b", "c"]
        over.set()
        await first
        assert list(pool._waiting) == ["c"]
        woken.cancel()
        assert await last == "c"


async def test_a_call_whose_model_another_one_has_loaded_leaves_the_place_to_the_next() -> None:
    pool, over = Pool(2), asyncio.Event()
    calls = await start(pool, "x", "y", until=over)
    waiting = await start(pool, "a", "a", "b")
    over.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*calls, *waiting)
    assert pool.loaded_ids == ["x", "y", "a", "b"]
    assert not pool._waiting


async def test_calls_that_wait_at_the_end_of_the_replica_fail() -> None:
    pool, over = Pool(1), asyncio.Event()
    (first,) = await start(pool, "held", until=over)
    waiting = await start(pool, "a", "b")
    async with asyncio.timeout(20):
        closing = asyncio.create_task(pool.close())
        failed = await asyncio.gather(*waiting, return_exceptions=True)
        over.set()
        await asyncio.gather(first, closing)
    assert [str(each) for each in failed] == ["load: the replica ends, and loads no more models"] * 2
