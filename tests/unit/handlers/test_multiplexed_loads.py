"""Loads of `@slotmesh.multiplexed` that need models themselves, and what is left of models and of their uses."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

import slotmesh
from slotmesh.handlers.kinds import MethodKind
from slotmesh.handlers.model_holding import call_uses, holding
from tests.support.wait import wait_until

WITHIN_S = 5.0


class Model:
    """Without an `unload`: it is freed with its last reference."""


@pytest.mark.asyncio
async def test_a_load_that_needs_its_own_model_fails() -> None:
    class Handler:
        @slotmesh.multiplexed(max_models=2)
        async def load(self, model_id: str) -> str:
            return await self.load(model_id)

    with pytest.raises(RuntimeError, match="the load of model 'a' needs model 'a'"):
        await asyncio.wait_for(Handler().load("a"), WITHIN_S)


def test_a_load_in_a_thread_that_needs_its_own_model_fails() -> None:
    class Handler:
        @slotmesh.multiplexed(max_models=2)
        def load(self, model_id: str) -> str:
            return self.load(model_id)

    failures: list[BaseException] = []

    def call() -> None:
        try:
            Handler().load("a")
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(timeout=WITHIN_S)
    assert "the load of model 'a' needs model 'a'" in str(failures[0])


@pytest.mark.asyncio
async def test_a_load_that_needs_more_models_than_fit_fails() -> None:
    class Handler:
        @slotmesh.multiplexed(max_models=1)
        async def load(self, model_id: str) -> str:
            return model_id if model_id == "base" else f"{model_id} of {await self.load('base')}"

    handler = Handler()
    with pytest.raises(RuntimeError, match="no place for model 'base'"):
        await asyncio.wait_for(handler.load("a"), WITHIN_S)
    assert await handler.load("base") == "base"


@pytest.mark.asyncio
async def test_calls_that_get_models_of_two_methods_in_opposite_orders_do_not_wait_for_each_other() -> None:
    class Handler:
        def __init__(self) -> None:
            self.both = asyncio.Barrier(2)

        @slotmesh.multiplexed(max_models=1)
        async def base(self, model_id: str) -> str:
            return model_id

        @slotmesh.multiplexed(max_models=1)
        async def adapter(self, model_id: str) -> str:
            return model_id

        async def call(self, *, base_first: bool) -> str:
            one, other = (self.base, self.adapter) if base_first else (self.adapter, self.base)
            await one("mine")
            await self.both.wait()
            return await other(f"of {base_first}")

    call = holding(Handler().call, MethodKind.ASYNC)
    calls = call(base_first=True), call(base_first=False)
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WITHIN_S)
    (got,) = [it for it in results if isinstance(it, str)]
    (failed,) = [it for it in results if isinstance(it, RuntimeError)]
    assert got.startswith("of ")
    assert "each loaded model is used by a call that waits for one of " in str(failed)
    assert "Handler.adapter or " in str(failed)
    assert str(failed).endswith("Handler.base; let all calls get these in one order, or raise max_models")


class Waiters:
    """A place for one model, and calls that each hold theirs until the test ends them."""

    def __init__(self) -> None:
        self.may_end = {name: threading.Event() for name in "abc"}
        self.have = {name: threading.Event() for name in "abc"}

    @slotmesh.multiplexed(max_models=1)
    async def load(self, model_id: str) -> str:
        return model_id

    @slotmesh.multiplexed(max_models=1)
    def load_here(self, model_id: str) -> str:
        return model_id

    async def call(self, model_id: str) -> str:
        model = await self.load(model_id)
        self.have[model_id].set()
        await asyncio.to_thread(self.may_end[model_id].wait, WITHIN_S)
        return model

    def call_here(self, model_id: str) -> str:
        model = self.load_here(model_id)
        self.have[model_id].set()
        self.may_end[model_id].wait(WITHIN_S)
        return model


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_that_has_waited_for_its_model_does_not_count_as_waiting_any_more(*, is_async: bool) -> None:
    handler = Waiters()
    in_task = holding(handler.call, MethodKind.ASYNC)
    in_thread = holding(handler.call_here, MethodKind.DEF)
    pool = vars(Waiters)["load" if is_async else "load_here"].pool(handler)

    def begin(model_id: str) -> asyncio.Future[str]:
        return asyncio.ensure_future(in_task(model_id) if is_async else asyncio.to_thread(in_thread, model_id))

    calls = [begin("a")]
    await wait_until(handler.have["a"].is_set)
    for first, second in ("ab", "bc"):
        calls.append(begin(second))
        await wait_until(lambda: pool._waiting or calls[-1].done(), what="the next one waits")
        handler.may_end[first].set()
        await wait_until(handler.have[second].is_set, what="its model")
    handler.may_end["c"].set()
    assert await asyncio.wait_for(asyncio.gather(*calls), WITHIN_S) == ["a", "b", "c"]


@pytest.mark.asyncio
async def test_a_task_that_waits_for_a_model_when_its_call_ends_holds_none() -> None:
    class Handler:
        @slotmesh.multiplexed(max_models=1)
        async def load(self, model_id: str) -> str:
            return model_id

        async def hold(self, is_over: asyncio.Event) -> None:
            await self.load("a")
            await is_over.wait()

        async def leave(self) -> asyncio.Task[str]:
            task = asyncio.create_task(self.load("b"))
            await asyncio.sleep(0)
            return task

        async def last(self) -> str:
            return await self.load("c")

    handler, is_over = Handler(), asyncio.Event()
    hold, leave, last = (holding(it, MethodKind.ASYNC) for it in (handler.hold, handler.leave, handler.last))
    holder = asyncio.create_task(hold(is_over))
    await asyncio.sleep(0)
    left = await leave()
    is_over.set()
    await holder
    assert await asyncio.wait_for(left, WITHIN_S) == "b"
    assert await asyncio.wait_for(last(), WITHIN_S) == "c"


def test_a_thread_that_waits_for_a_model_when_its_call_ends_holds_none() -> None:
    class Handler:
        @slotmesh.multiplexed(max_models=1)
        def load(self, model_id: str) -> str:
            return model_id

    handler = Handler()
    with ThreadPoolExecutor(1) as threads:
        with call_uses():
            handler.load("a")
            with call_uses() as uses:
                left = threads.submit(copy_context().run, handler.load, "b")
                while not uses.awaited:
                    threading.Event().wait(0.001)
        assert left.result(WITHIN_S) == "b"
        with call_uses():
            assert threads.submit(copy_context().run, handler.load, "c").result(WITHIN_S) == "c"


@pytest.mark.asyncio
async def test_a_load_holds_the_models_that_it_needs_to_its_end() -> None:
    unloaded: list[str] = []

    class Handler:
        @slotmesh.multiplexed(max_models=2, unload="unload")
        async def load(self, model_id: str) -> str:
            if model_id == "a":
                await self.load("base")
                with pytest.raises(RuntimeError, match="no place"):
                    await self.load("third")
            return model_id

        def unload(self, model: str) -> None:
            unloaded.append(model)

    handler = Handler()
    assert await asyncio.wait_for(handler.load("a"), WITHIN_S) == "a"
    assert not unloaded
    await handler.load("third")
    assert len(unloaded) == 1


@pytest.mark.asyncio
async def test_a_model_without_unload_is_freed_before_the_next_one_is_loaded() -> None:
    alive: list[int] = []
    made: list[weakref.ref[Model]] = []

    class Handler:
        @slotmesh.multiplexed(max_models=1)
        async def load(self, model_id: str) -> Model:
            gc.collect()
            alive.append(sum(each() is not None for each in made))
            model = Model()
            made.append(weakref.ref(model))
            return model

        @slotmesh.multiplexed(max_models=1)
        def load_here(self, model_id: str) -> Model:
            gc.collect()
            alive.append(sum(each() is not None for each in made))
            model = Model()
            made.append(weakref.ref(model))
            return model

    handler = Handler()
    for each in ("a", "b"):
        await handler.load(each)
    assert alive == [0, 0]
    made.clear()
    with ThreadPoolExecutor(1) as pool:
        for each in ("a", "b"):
            pool.submit(handler.load_here, each).result()
    assert alive == [0, 0, 0, 0]


@pytest.mark.asyncio
async def test_an_abandoned_generator_that_fails_holds_no_model() -> None:
    class Handler:
        @slotmesh.multiplexed(max_models=1)
        async def load(self, model_id: str) -> str:
            return model_id

        @slotmesh.multiplexed(max_models=1)
        def load_here(self, model_id: str) -> str:
            return model_id

        async def stream(self) -> AsyncIterator[str]:
            try:
                yield await self.load("a")
            finally:
                raise OSError("clean-up")

        def stream_here(self) -> Iterator[str]:
            try:
                yield self.load_here("a")
            finally:
                raise OSError("clean-up")

    handler = Handler()
    stream = holding(handler.stream, MethodKind.ASYNC_GENERATOR)()
    assert await anext(stream) == "a"
    with pytest.raises(OSError, match="clean-up"):
        await stream.aclose()
    assert await asyncio.wait_for(handler.load("b"), WITHIN_S) == "b"

    def use() -> str:
        values = holding(handler.stream_here, MethodKind.GENERATOR)()
        assert next(values) == "a"
        with pytest.raises(OSError, match="clean-up"):
            values.close()
        return handler.load_here("b")

    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(use()), daemon=True)
    thread.start()
    thread.join(timeout=WITHIN_S)
    assert found == ["b"]


@pytest.mark.asyncio
async def test_a_generator_that_is_cancelled_between_two_values_may_yield_more() -> None:
    unloaded: list[str] = []

    class Handler:
        @slotmesh.multiplexed(max_models=1, unload="unload")
        async def load(self, model_id: str) -> str:
            return model_id

        def unload(self, model: str) -> None:
            unloaded.append(model)

        async def stream(self) -> AsyncIterator[str]:
            try:
                yield await self.load("a")
            except asyncio.CancelledError:
                yield "cancelled"
            except ValueError:
                yield "raised"

    handler = Handler()
    stream = holding(handler.stream, MethodKind.ASYNC_GENERATOR)()
    assert await anext(stream) == "a"
    assert await stream.athrow(asyncio.CancelledError()) == "cancelled"
    assert await anext(stream, "ended") == "ended"
    await asyncio.wait_for(handler.load("b"), WITHIN_S)
    assert unloaded == ["a"]

    raising = holding(handler.stream, MethodKind.ASYNC_GENERATOR)()
    assert await anext(raising) == "a"
    assert await raising.athrow(ValueError()) == "raised"
    await raising.aclose()

    failing = holding(handler.stream, MethodKind.ASYNC_GENERATOR)()
    assert await anext(failing) == "a"
    with pytest.raises(KeyError):
        await failing.athrow(KeyError())
    await asyncio.wait_for(handler.load("b"), WITHIN_S)


@pytest.mark.asyncio
async def test_a_class_that_extends_the_load_of_its_base_has_both() -> None:
    class Base:
        @slotmesh.multiplexed(max_models=2)
        async def load(self, model_id: str) -> str:
            return model_id

    class Child(Base):
        @slotmesh.multiplexed(max_models=2)
        async def load(self, model_id: str) -> str:
            return f"child of {await super().load(model_id)}"

    assert await asyncio.wait_for(Child().load("a"), WITHIN_S) == "child of a"
