"""`slotmesh.replica()`, and what `slotmesh.context()` has of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.testing import Backend


class Ranked:
    """Keeps what it sees in each place."""

    def __init__(self) -> None:
        self.at_start = slotmesh.replica()
        self.seen: list[slotmesh.ReplicaContext] = []

    async def everywhere(self) -> list[Any]:
        call = slotmesh.context()
        of_call = slotmesh.ReplicaContext(
            replica_id=call.replica_id,
            backend=call.backend,
            version=call.version,
            rank=call.rank,
            num_replicas=call.num_replicas,
            devices=call.devices,
        )

        async def look() -> slotmesh.ReplicaContext:
            await asyncio.sleep(0)
            return slotmesh.replica()

        places = [self.at_start, of_call, await asyncio.create_task(look()), await asyncio.to_thread(slotmesh.replica)]
        assert len({*places}) == 1, places
        return self.parts()

    def in_thread(self) -> list[Any]:
        assert slotmesh.replica().rank == slotmesh.context().rank
        return self.parts()

    def parts(self) -> list[Any]:
        here = slotmesh.replica()
        return [here.backend, here.version, here.rank, here.num_replicas, list(here.devices)]


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True])
async def test_every_place_of_a_handler_sees_its_replica(own_loop: bool) -> None:
    backend = Backend(Ranked, num_replicas=3, settings={"own_loop": own_loop, "version": "v7"})
    async with slotmesh.testing.mesh({"ranked": backend}) as mesh:
        endpoint = mesh.endpoint("ranked")
        seen: set[int] = set()
        while seen != {0, 1, 2}:
            results = await asyncio.gather(*(endpoint.everywhere() for _ in range(30)))
            for name, version, rank, number, devices in results:
                assert (name, version, number, devices) == ("ranked", "v7", 3, [])
                seen.add(rank)
        assert (await endpoint.in_thread())[3] == 3


def test_outside_of_a_handler_there_is_none_and_a_test_may_set_one() -> None:
    with pytest.raises(RuntimeError, match="outside of a handler"):
        slotmesh.replica()
    with slotmesh.testing.replica_context(rank=2, num_replicas=4, devices=("cuda=0",)) as here:
        assert slotmesh.replica() is here
        assert (here.rank, here.num_replicas, here.devices, here.version) == (2, 4, ("cuda=0",), "")
        found: list[int | None] = []
        thread = threading.Thread(target=lambda: found.append(_rank_or_none()))
        thread.start()
        thread.join(timeout=10)
        assert found == [None], "a thread has no context variables"
    with slotmesh.testing.call_context(rank=1, version="v2") as call:
        assert (slotmesh.context().rank, call.version, call.num_replicas) == (1, "v2", None)


def _rank_or_none() -> int | None:
    try:
        return slotmesh.replica().rank
    except RuntimeError:
        return None
