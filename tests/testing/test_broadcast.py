"""`endpoint.broadcast`: one call on every replica."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.testing import Backend
from tests.support.wait import within

pytestmark = pytest.mark.asyncio


class Cached:
    """Counts what it executes."""

    def __init__(self) -> None:
        self.drops = 0
        self.go_on = asyncio.Event()

    async def drop(self, tag: str) -> list[Any]:
        self.drops += 1
        return [slotmesh.context().replica_id, tag, self.drops]

    def drop_in_thread(self) -> int | None:
        return slotmesh.context().rank

    async def picky(self, rank: int) -> int:
        if slotmesh.context().rank == rank:
            raise ValueError("not here")
        return rank

    async def wait(self) -> str:
        await self.go_on.wait()
        return slotmesh.context().replica_id

    @slotmesh.batch(max_batch_size=4)
    async def each(self, items: list[int]) -> list[int]:
        return [item + 1 for item in items]


class Caches(slotmesh.Interface[slotmesh.ClientT]):
    @slotmesh.method
    def drop_in_thread(self) -> int:
        raise NotImplementedError


async def test_each_replica_executes_the_call_once_and_gives_its_own_result() -> None:
    async with slotmesh.testing.mesh({"cached": Backend(Cached, num_replicas=5)}) as mesh:
        endpoint = mesh.endpoint("cached")
        result = await endpoint.broadcast.drop("a")
        ids = mesh.replica_ids("cached")
        assert dict(result) == {name: [name, "a", 1] for name in ids}
        assert result.ok == dict(result)
        assert not result.failed
        result.raise_for_failures()
        assert set(result.backends.values()) == {"cached"}
        assert {it[2] for it in (await endpoint.broadcast.drop(tag="b")).ok.values()} == {2}
        assert sorted((await endpoint.broadcast.drop_in_thread()).ok.values()) == [0, 1, 2, 3, 4]
        assert sorted((await Caches(endpoint.broadcast).drop_in_thread()).ok.values()) == [0, 1, 2, 3, 4]
        assert set((await endpoint.broadcast.each(1)).ok.values()) == {2}
        assert set((await endpoint.options(reply=False).broadcast.each(2)).ok.values()) == {3}


async def test_failures_are_part_of_the_result() -> None:
    async with slotmesh.testing.mesh({"cached": Backend(Cached, num_replicas=3)}) as mesh:
        result = await mesh.endpoint("cached").broadcast.picky(1)
        (failed,) = result.failed.values()
        assert isinstance(failed, slotmesh.HandlerError)
        assert failed.executed is slotmesh.Executed.YES
        assert list(result.ok.values()) == [1, 1]
        with pytest.raises(ExceptionGroup, match="1 of 3 replicas failed"):
            result.raise_for_failures()
        missing = await mesh.endpoint("cached").broadcast.nothing()
        assert {type(it) for it in missing.values()} == {slotmesh.MethodNotFound}


async def test_what_is_refused_as_a_whole_is_raised() -> None:
    async with slotmesh.testing.mesh({"cached": Backend(Cached)}) as mesh:
        with pytest.raises(slotmesh.EndpointNotFound):
            await mesh.endpoint("other").broadcast.drop("a")
        with pytest.raises(slotmesh.BackendNotFound):
            await mesh.endpoint("cached").broadcast.only("other").drop("a")
        assert len(await mesh.endpoint("cached").broadcast.only("cached").drop("a")) == 1


async def test_calls_that_run_when_the_deadline_passes_fail_and_those_that_have_ended_do_not() -> None:
    async with slotmesh.testing.mesh({"cached": Backend(Cached, num_replicas=3)}) as mesh:
        broadcast = mesh.endpoint("cached").options(timeout=2.0).broadcast
        handlers = mesh.instances("cached")
        handlers[0].go_on.set()
        result = await within(broadcast.wait(), "the deadline")
        assert len(result.ok) == 1
        assert {type(it) for it in result.failed.values()} == {slotmesh.DeadlineRunning}
