"""Slots of the client against a mesh: reserved, renewed, used, given back, and nothing held when all is over."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

import slotmesh
from tests.support.mesh import started_mesh
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.long]

HANDLER = "tests.e2e.yielding_handlers:Speller"
PERMITS = 8
"""Of its replica."""


async def until_free(speller: slotmesh.Endpoint) -> None:
    """All permits can be had, and nothing but they is ongoing."""
    async with asyncio.timeout(20):
        async with slots_of(speller, PERMITS) as slots:
            assert max(slot.ongoing for slot in slots) == PERMITS


class slots_of:  # noqa: N801 - a function, but for its form
    """So many slots of one endpoint."""

    def __init__(self, endpoint: slotmesh.Endpoint, count: int) -> None:
        self._reservations = [endpoint.reserve(timeout=15) for _ in range(count)]

    async def __aenter__(self) -> list[slotmesh.Slot]:
        return list(await asyncio.gather(*(each.__aenter__() for each in self._reservations)))

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(each.__aexit__(None, None, None) for each in self._reservations))


@pytest.mark.timeout(120)
async def test_slots_of_a_mesh() -> None:
    async with started_mesh(HANDLER, routers=2) as run, slotmesh.connect(run.router_addresses) as mesh:
        speller = mesh.endpoint("Speller")
        async with speller.reserve() as slot:
            assert (slot.replica_id, slot.ongoing) == (next(iter(await run.replica_pids())), 1)
            assert await slot.echo("a") == "a"
            with pytest.raises(slotmesh.SlotUsed):
                await slot.echo("a")
        async with speller.reserve() as slot:
            assert [value async for value in slot.count.stream(2_000)] == [*range(2_000)]
        async with speller.reserve(ttl=0.6) as slot:
            expired = asyncio.get_running_loop().time() + 1.2
            await wait_until(lambda: asyncio.get_running_loop().time() > expired, what="twice the lease is over")
            assert await slot.echo("renewed") == "renewed"
        async with speller.reserve() as slot, slotmesh.connect(slot.replica_address) as direct:
            assert slot.replica_address not in run.router_addresses
            async with direct.endpoint("Speller").reserve() as other:
                assert (other.replica_id, other.ongoing) == (slot.replica_id, 2)
                assert await other.echo("straight") == "straight"
        with pytest.raises(slotmesh.HandlerError, match="enough"):
            async with speller.reserve() as slot:
                await slot.fail_after(3)
        with pytest.raises(slotmesh.MethodNotFound):
            async with speller.reserve() as slot:
                await slot.nothing()
        with pytest.raises(slotmesh.ReplicaGone):
            async with speller.reserve(replica_id="nobody"):
                raise AssertionError
        with pytest.raises(slotmesh.EndpointNotFound):
            async with mesh.endpoint("Nobody").reserve():
                raise AssertionError
        async with mesh.reserve_all("Speller", "Speller") as (one, other):
            assert [await one.echo("1"), await other.echo("2")] == ["1", "2"]
        await until_free(speller)
        async with slots_of(speller, PERMITS):
            with pytest.raises(slotmesh.NoSlot):
                async with speller.reserve(timeout=0.2):
                    raise AssertionError
            with pytest.raises(slotmesh.NoSlot):
                async with mesh.reserve_all("Speller", "Speller", timeout=0.3):
                    raise AssertionError
        async with speller.reserve() as slot:
            values = slot.count.stream(10**9)
            assert [await anext(values) for _ in range(3)] == [0, 1, 2]
            await values.aclose()
        await until_free(speller)
        await asyncio.to_thread(use_from_a_thread, run.router_address)
        await until_free(speller)


def use_from_a_thread(address: str) -> None:
    with slotmesh.connect_sync(address) as mesh:
        with mesh.endpoint("Speller").reserve() as slot:
            assert slot.echo("a") == "a"
        with mesh.reserve_all("Speller", "Speller") as (one, other):
            assert list(one.count.stream(3)) == [0, 1, 2]
            assert other.release().ongoing == 0


@pytest.mark.timeout(120)
async def test_many_that_leave_at_any_time() -> None:
    """A reply that is lost on its way leaves a lease behind, and that ends."""
    draws = random.Random(7)
    async with started_mesh(HANDLER) as run, slotmesh.connect(run.router_address) as mesh:
        speller = mesh.endpoint("Speller")

        async def program() -> None:
            async with speller.reserve(ttl=2) as slot:
                match draws.randrange(4):
                    case 0:
                        await slot.echo("a")
                    case 1:
                        async for _ in slot.count.stream(100):
                            pass
                    case 2:
                        async for _ in slot.count.stream(10**9):
                            break
                    case _:
                        pass
            async with mesh.reserve_all("Speller", "Speller", ttl=2) as (one, _):
                await one.echo("a")

        async def cut_off() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(draws.random()):
                    await program()

        await asyncio.gather(*(cut_off() for _ in range(300)))
        await until_free(speller)
