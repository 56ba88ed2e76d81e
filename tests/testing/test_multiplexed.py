"""`@slotmesh.multiplexed` in a replica: what is loaded, used and unloaded, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

import slotmesh
import slotmesh.testing
from tests.support.wait import wait_until


class Model:
    def __init__(self, model_id: str) -> None:
        self.model_id = model_id
        self.is_loaded = True


class Hub:
    """Loads models, and remembers what happened to them, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failing: set[str] = set()
        self.gates: dict[str, threading.Event] = {}
        """Loads of these models wait."""
        self.calls = threading.Semaphore(0)
        """Released as often as calls that wait may end."""
        self.waiting = 0

    def _loads(self, model_id: str) -> None:
        self.events.append(f"load {model_id}")
        if model_id in self.failing:
            self.failing.discard(model_id)
            raise LookupError(f"no {model_id}")

    def _unloads(self, model: Model) -> None:
        model.is_loaded = False
        self.events.append(f"unload {model.model_id}")


class OnLoop(Hub):
    @slotmesh.multiplexed(max_models=2, unload="drop")
    async def load(self, model_id: str) -> Model:
        self._loads(model_id)
        if gate := self.gates.get(model_id):
            await asyncio.to_thread(gate.wait, 10)
        return Model(model_id)

    async def drop(self, model: Model) -> None:
        self._unloads(model)

    async def use(self, model_id: str) -> str:
        return (await self.load(model_id)).model_id

    async def wait(self, model_id: str) -> bool:
        model = await self.load(model_id)
        self.waiting += 1
        await asyncio.to_thread(self.calls.acquire, timeout=10)
        return model.is_loaded

    async def both(self, model_id: str, other: str) -> list[str]:
        models = await asyncio.gather(self.load(model_id), self.load(other))
        await self.load(model_id)
        return [each.model_id for each in models if each.is_loaded]

    async def each(self, model_id: str) -> AsyncIterator[bool]:
        model = await self.load(model_id)
        for _ in range(2):
            yield model.is_loaded
            await asyncio.to_thread(self.calls.acquire, timeout=10)

    @slotmesh.batch(max_batch_size=2, batch_wait_timeout_s=10)
    async def batched(self, model_ids: list[str]) -> list[bool]:
        models = [await self.load(each) for each in model_ids]
        return [each.is_loaded for each in models]


class InThreads(Hub):
    @slotmesh.multiplexed(max_models=2, unload="drop")
    def load(self, model_id: str) -> Model:
        self._loads(model_id)
        if gate := self.gates.get(model_id):
            gate.wait(10)
        return Model(model_id)

    def drop(self, model: Model) -> None:
        self._unloads(model)

    def use(self, model_id: str) -> str:
        return self.load(model_id).model_id

    def wait(self, model_id: str) -> bool:
        model = self.load(model_id)
        self.waiting += 1
        self.calls.acquire(timeout=10)
        return model.is_loaded

    def both(self, model_id: str, other: str) -> list[str]:
        models = self.load(model_id), self.load(other)
        return [each.model_id for each in models if each.is_loaded]

    def each(self, model_id: str) -> Iterator[bool]:
        model = self.load(model_id)
        for _ in range(2):
            yield model.is_loaded
            self.calls.acquire(timeout=10)

    @slotmesh.batch(max_batch_size=2, batch_wait_timeout_s=10)
    def batched(self, model_ids: list[str]) -> list[bool]:
        models = [self.load(each) for each in model_ids]
        return [each.is_loaded for each in models]


@slotmesh.deployment(own_loop=True)
class OnOwnLoop(OnLoop):
    pass


pytestmark = [pytest.mark.asyncio, pytest.mark.parametrize("kind", [OnLoop, InThreads, OnOwnLoop])]


async def test_a_model_is_loaded_once_however_many_calls_need_it(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        gate = hub.instance.gates["a"] = threading.Event()
        calls = [asyncio.ensure_future(hub.use("a")) for _ in range(5)]
        await wait_until(lambda: hub.instance.events == ["load a"], what="the load has begun")
        gate.set()
        assert await asyncio.gather(*calls) == ["a"] * 5
        assert await hub.use("a") == "a"
        assert hub.instance.events == ["load a"]


async def test_a_failed_load_fails_its_waiters_and_is_tried_anew(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        hub.instance.failing.add("a")
        with pytest.raises(slotmesh.HandlerError, match="no a"):
            await hub.use("a")
        assert await hub.use("a") == "a"
        assert hub.instance.events == ["load a", "load a"]


async def test_a_model_in_use_is_not_unloaded(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        held = asyncio.ensure_future(hub.wait("a"))
        await wait_until(lambda: hub.instance.waiting, what="the call uses its model")
        for each in "bcd":
            await hub.use(each)
        hub.instance.calls.release()
        assert await held
        assert hub.instance.events == ["load a", "load b", "unload b", "load c", "unload c", "load d"]
        await hub.use("e")
        assert hub.instance.events[-2:] == ["unload a", "load e"], "the call has ended"


async def test_a_call_waits_while_all_models_are_in_use(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        held = [asyncio.ensure_future(hub.wait(each)) for each in "ab"]
        await wait_until(lambda: hub.instance.waiting == 2, what="both models are in use")
        late = asyncio.ensure_future(hub.use("c"))
        pool = type(hub.instance).__dict__.get("load", OnLoop.__dict__["load"]).pool(hub.instance)
        await wait_until(lambda: pool._waiting, what="the third one waits")
        assert hub.instance.events == ["load a", "load b"]
        hub.instance.calls.release(2)
        assert await asyncio.gather(*held) == [True, True]
        assert await late == "c"


async def test_a_call_may_use_several_models_but_no_more_than_there_are_places(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        assert await hub.both("a", "b") == ["a", "b"]
        held = asyncio.ensure_future(hub.wait("c"))
        await wait_until(lambda: hub.instance.waiting, what="one place is in use")
        assert await hub.both("c", "c") == ["c", "c"]
        hub.instance.calls.release()
        await held


async def test_values_and_batches_hold_their_models_until_they_end(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        async with hub.each.stream("a") as values:
            assert await anext(values)
            for each in "bcd":
                await hub.use(each)
            hub.instance.calls.release(2)
            assert await anext(values)
        assert [*await asyncio.gather(hub.batched("e"), hub.batched("f"))] == [True, True]


async def test_all_models_are_unloaded_at_the_end(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        await hub.use("a")
        await hub.use("b")
        instance = hub.instance
        state = hub._replica.app.replica.handler_state
        assert set(state.models) == {"a", "b"}
    assert sorted(instance.events[2:]) == ["unload a", "unload b"]
    assert state.models == ()


async def test_no_client_can_load_or_unload(kind: type[Hub]) -> None:
    async with slotmesh.testing.handler(kind) as hub:
        for method in ("load", "drop"):
            with pytest.raises(slotmesh.MethodNotFound):
                await hub.method(method)("a")
