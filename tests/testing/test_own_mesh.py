"""`slotmesh.mesh()` and `mesh_sync()` in handlers: calls between handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.client.handler_mesh import current_source, of_process
from slotmesh.testing import Backend
from tests.support.rank_handler import Rank
from tests.support.wait import wait_until

TIMEOUT_S = 20.0


class Front:
    """Calls `rank` from every kind of method."""

    def __init__(self) -> None:
        self.mesh: slotmesh.Mesh | None = None
        self.sync: slotmesh.SyncMesh | None = None
        self.asks_at_the_end = False
        self.drained: int | None = None

    async def score(self, number: int) -> int:
        self.mesh = slotmesh.mesh()
        assert slotmesh.mesh() is self.mesh
        return int(await self.mesh.endpoint("rank").score(number))

    def score_in_thread(self, number: int) -> int:
        self.sync = slotmesh.mesh_sync()
        assert slotmesh.mesh_sync() is self.sync
        return int(self.sync.endpoint("rank").score(number))

    @slotmesh.batch(max_batch_size=8)
    async def scores(self, numbers: list[int]) -> list[int]:
        return [int(each) for each in await slotmesh.mesh().endpoint("rank").score.map(numbers)]

    @slotmesh.batch(max_batch_size=8)
    def scores_in_thread(self, numbers: list[int]) -> list[int]:
        return [int(each) for each in slotmesh.mesh_sync().endpoint("rank").score.map(numbers)]

    async def each(self, number: int) -> AsyncIterator[int]:
        async for each in slotmesh.mesh().endpoint("rank").count.stream(number):
            yield await slotmesh.mesh().endpoint("rank").score(each)

    def each_in_thread(self, number: int) -> Iterator[int]:
        for each in slotmesh.mesh_sync().endpoint("rank").count.stream(number):
            yield slotmesh.mesh_sync().endpoint("rank").score(each)

    async def on_drain(self) -> None:
        if self.asks_at_the_end:
            self.drained = int(await slotmesh.mesh().endpoint("rank").score(7))


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True])
async def test_every_kind_of_method_calls_another_endpoint(own_loop: bool) -> None:
    front = Backend(Front, settings={"own_loop": own_loop})
    async with slotmesh.testing.mesh({"front": front, "rank": Rank}) as mesh:
        endpoint = mesh.endpoint("front")
        assert await endpoint.score(1) == 10
        assert await endpoint.score_in_thread(2) == 20
        assert await endpoint.scores.map(range(8)) == [*range(0, 80, 10)]
        assert await endpoint.scores_in_thread.map(range(8)) == [*range(0, 80, 10)]
        assert [each async for each in endpoint.each.stream(3)] == [0, 10, 20]
        assert [each async for each in endpoint.each_in_thread.stream(3)] == [0, 10, 20]
        (instance,) = mesh.instances("front")
        assert await endpoint.score.map(range(500)) == [*range(0, 5000, 10)]
        instance.asks_at_the_end = True
        await mesh.drain_replica(mesh.replica_ids("front")[0])
        assert instance.drained == 70, "its last calls are answered"
        with pytest.raises(RuntimeError, match="the mesh is closed"):
            instance.mesh.endpoint("another")
        with pytest.raises(RuntimeError, match="the mesh is closed"):
            instance.sync.endpoint("another")
        assert await endpoint.score(3) == 30, "that of another replica"


@pytest.mark.asyncio
async def test_routers_that_come_and_go_are_followed() -> None:
    async with slotmesh.testing.mesh({"front": Front, "rank": Rank}, routers=2) as mesh:
        front = mesh.endpoint("front")
        assert await front.score(1) == 10
        assert await front.score_in_thread(1) == 10
        (instance,) = mesh.instances("front")
        first, second = mesh.router_addresses
        assert set(instance.mesh._routers.given) == {first, second}
        await mesh.kill_router(first)
        assert await front.score(2) == 20
        assert await front.score_in_thread(2) == 20
        await wait_until(lambda: instance.mesh._routers.given == (second,), timeout=TIMEOUT_S, what="the routers left")
        assert await front.score(3) == 30


@pytest.mark.asyncio
async def test_it_is_there_in_constructors_and_hooks() -> None:
    told: list[Any] = []

    class Hooked:
        def __init__(self, number: int = 0) -> None:
            self.sync = slotmesh.mesh_sync()

        def check_health(self) -> None:
            assert slotmesh.mesh_sync() is self.sync

        def reconfigure(self, user_config: dict[str, int]) -> None:
            told.append(slotmesh.mesh_sync().endpoint("rank").score(user_config["number"]))

        def score(self, number: int) -> int:
            return int(self.sync.endpoint("rank").score(number))

    async with slotmesh.testing.mesh({"rank": Rank}) as mesh:
        await mesh.apply({"hooked": Hooked}, {"hooked": {"hooked": 1.0}})
        assert await mesh.endpoint("hooked").score(4) == 40
        await mesh.apply({"hooked": Backend(Hooked, {"number": 3})})
        await wait_until(lambda: told == [30], timeout=TIMEOUT_S, what="the new configuration")


@pytest.mark.asyncio
async def test_where_there_is_none_it_says_why() -> None:
    class Alone:
        async def ask(self) -> None:
            slotmesh.mesh()

        def ask_in_thread(self) -> None:
            slotmesh.mesh_sync()

        async def block(self) -> None:
            slotmesh.mesh_sync()

        def await_nothing(self) -> None:
            slotmesh.mesh()

        async def close(self) -> None:
            await slotmesh.mesh().aclose()

        def close_in_thread(self) -> None:
            slotmesh.mesh_sync().close()

        async def elsewhere(self) -> str:
            def run() -> str:
                async def ask() -> None:
                    slotmesh.mesh()

                try:
                    asyncio.run(ask())
                except RuntimeError as error:
                    return str(error)
                return ""

            return await asyncio.to_thread(run)

    for ask in (slotmesh.mesh, slotmesh.mesh_sync):
        with pytest.raises(RuntimeError, match=r"outside of a handler.*slotmesh\.connect"):
            ask()
    async with slotmesh.testing.handler(Alone) as alone:
        for asked in (alone.ask, alone.ask_in_thread):
            with pytest.raises(slotmesh.HandlerError, match="this replica has no controller"):
                await asked()
    async with slotmesh.testing.mesh({"alone": Alone}) as mesh:
        endpoint = mesh.endpoint("alone")
        with pytest.raises(slotmesh.HandlerError, match=r"would block: await those of slotmesh\.mesh\(\)"):
            await endpoint.block()
        with pytest.raises(slotmesh.HandlerError, match=r"use slotmesh\.mesh_sync\(\)"):
            await endpoint.await_nothing()
        assert "another event loop than the handler's own" in await endpoint.elsewhere()
        for method in (endpoint.close, endpoint.close_in_thread):
            with pytest.raises(slotmesh.HandlerError, match="it is not for a handler to close"):
                await method()


@pytest.mark.asyncio
async def test_threads_of_a_handler_have_the_mesh_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own; here tests have many replicas in one."""

    class Threaded:
        async def score(self, number: int) -> int:
            monkeypatch.setattr(of_process, "source", current_source.get())
            scores: list[int] = []
            thread = threading.Thread(target=lambda: scores.append(slotmesh.mesh_sync().endpoint("rank").score(number)))
            thread.start()
            await asyncio.to_thread(thread.join)
            return scores[0]

    async with slotmesh.testing.mesh({"threaded": Threaded, "rank": Rank}) as mesh:
        assert await mesh.endpoint("threaded").score(6) == 60


class StandIn:
    """What has `endpoint`, as a mesh."""

    def endpoint(self, name: str) -> Any:
        assert name == "rank"
        return self

    async def score(self, number: int) -> int:
        return number + 1


@pytest.mark.asyncio
async def test_a_test_may_set_another_mesh() -> None:
    stand_in: Any = StandIn()
    with slotmesh.testing.own_mesh(stand_in):
        assert slotmesh.mesh() is stand_in
        with pytest.raises(RuntimeError, match="given no mesh for threads"):
            slotmesh.mesh_sync()
        async with slotmesh.testing.mesh({"rank": Rank, "front": Front}) as mesh:
            assert await mesh.endpoint("front").score(5) == 50, "replicas of a mesh have their own"

    class Plain:
        async def score(self, number: int) -> int:
            return int(await slotmesh.mesh().endpoint("rank").score(number))

    with slotmesh.testing.own_mesh(stand_in):
        async with slotmesh.testing.handler(Plain) as plain:
            assert await plain.score(5) == 6
    with slotmesh.testing.own_mesh(), pytest.raises(RuntimeError, match="given no mesh for asyncio"):
        slotmesh.mesh()
