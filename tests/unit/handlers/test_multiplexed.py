"""`@slotmesh.multiplexed` without a replica: what it accepts, and what it is to code outside of calls."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import slotmesh
from slotmesh.calls.handler_figures import MAX_MODELS
from slotmesh.handlers import describe
from slotmesh.handlers.multiplexed import multiplexed_of
from tests.support.wait import wait_until


class Own:
    """A model that unloads itself."""

    def __init__(self, log: list[str], model_id: str) -> None:
        self.log = log
        self.model_id = model_id

    def unload(self) -> None:
        self.log.append(self.model_id)
        if self.model_id == "bad":
            raise OSError("busy")


class OwnAsync(Own):
    async def unload(self) -> None:  # type: ignore[override]
        super().unload()


@dataclass
class Handler:
    log: list[str]

    @slotmesh.multiplexed(max_models=1)
    async def load(self, model_id: str) -> Own:
        """Loads."""
        return OwnAsync(self.log, model_id) if model_id.startswith("async") else Own(self.log, model_id)

    @slotmesh.multiplexed(max_models=1)
    def load_here(self, model_id: str) -> Own:
        return Own(self.log, model_id)

    def use(self) -> None: ...


@pytest.mark.asyncio
async def test_a_model_s_own_unload_is_called_on_the_loop_or_in_a_thread() -> None:
    handler = Handler([])
    for each in ("one", "async", "bad", "last"):
        assert (await handler.load(each)).model_id == each
    assert handler.log == ["one", "async", "bad"]


@pytest.mark.asyncio
async def test_a_cancelled_call_does_not_cancel_the_load() -> None:
    gate = asyncio.Event()

    class Slow:
        loads = 0

        @slotmesh.multiplexed(max_models=1)
        async def load(self, model_id: str) -> str:
            self.loads += 1
            await gate.wait()
            return model_id

    slow = Slow()
    first, second = asyncio.ensure_future(slow.load("a")), asyncio.ensure_future(slow.load("a"))
    await wait_until(lambda: slow.loads, what="the load has begun")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.set()
    assert await second == "a"
    assert await slow.load("a") == "a"
    assert slow.loads == 1


@pytest.mark.asyncio
async def test_the_failure_of_a_load_whose_call_was_cancelled_is_no_error_of_the_loop() -> None:
    gate = asyncio.Event()
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    class Failing:
        loads = 0

        @slotmesh.multiplexed(max_models=1)
        async def load(self, model_id: str) -> str:
            self.loads += 1
            await gate.wait()
            raise OSError(model_id)

    failing = Failing()
    calls = [asyncio.ensure_future(failing.load("a")) for _ in range(2)]
    await wait_until(lambda: failing.loads, what="the load has begun")
    calls[0].cancel()
    gate.set()
    cancelled, failed = await asyncio.gather(*calls, return_exceptions=True)
    assert (type(cancelled), type(failed)) == (asyncio.CancelledError, OSError)
    del calls, cancelled, failed
    await asyncio.sleep(0)  # the loop lets go of them, too
    gc.collect()
    assert not reported


@pytest.mark.asyncio
async def test_a_def_method_is_refused_on_the_loop() -> None:
    handler = Handler([])
    with pytest.raises(RuntimeError, match=r"load_here is `def`, and would block the event loop"):
        handler.load_here("a")
    assert (await asyncio.to_thread(handler.load_here, "a")).model_id == "a"


def test_instances_have_models_of_their_own_and_stay_equal() -> None:
    one, other = Handler([]), Handler([])
    assert one.load_here("a") is one.load_here("a")
    assert one.load_here("a") is not other.load_here("a")
    assert one == other
    assert Handler.load.__doc__ == "Loads."


@pytest.mark.parametrize(
    ("model_id", "error", "words"),
    [
        ("", ValueError, "is empty; a call names it by its option model_id"),
        ("x" * 1025, ValueError, "has at most 1024 bytes"),
        (7, TypeError, "is a str, got int"),
    ],
)
def test_ids_are_bounded_text(model_id: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Handler([]).load_here(model_id)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, r"max_models is 1 … 1024, got 0"),
        ({"max_models": MAX_MODELS + 1}, ValueError, "got 1025"),
        ({"max_models": True}, TypeError, "an integer"),
        ({"max_models": 2.0}, TypeError, "an integer"),
        ({"max_models": 2, "unload": len}, TypeError, "the name of a method"),
        ({"max_num_models_per_replica": 3}, TypeError, "it is called max_models here"),
        ({"max_models": 2, "unlod": "x"}, TypeError, "did you mean unload"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        slotmesh.multiplexed(**arguments)


def test_what_is_no_method_that_returns_is_refused() -> None:
    def yields(self: Any, model_id: str) -> Iterator[str]:
        yield model_id

    for wrong in (yields, 7):
        with pytest.raises(TypeError, match="decorates a method that returns a model"):
            slotmesh.multiplexed(max_models=1)(wrong)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="takes max_models"):
        slotmesh.multiplexed(lambda _self, _id: None)


def test_a_method_that_cannot_be_called_with_an_id_is_refused() -> None:
    def without(self: Any) -> None: ...
    def more(self: Any, model_id: str, size: int) -> None: ...
    def named(self: Any, *, model_id: str) -> None: ...
    def fits(self: Any, model_id: str, size: int = 3, **rest: int) -> None: ...

    for wrong in (without, more, named):
        with pytest.raises(TypeError, match=f"{wrong.__name__} must take the id of a model and nothing else"):
            slotmesh.multiplexed(max_models=1)(wrong)
    slotmesh.multiplexed(max_models=1)(fits)


def test_an_unload_that_does_not_fit_is_refused_when_the_handler_is_constructed() -> None:
    class Missing:
        @slotmesh.multiplexed(max_models=1, unload="drop")
        def load(self, model_id: str) -> str:
            return model_id

    class Async(Missing):
        async def drop(self, model: str) -> None: ...

    class Alone(Missing):
        def drop(self) -> None: ...

    class Fitting(Missing):
        drop = staticmethod(print)

    fitting = Fitting()
    multiplexed_of(Fitting)[0].pool(fitting)
    for kind, words in (
        (Missing, "must name a method"),
        (Async, "must be `def`, too"),
        (Alone, "must name a method that takes the model and nothing else"),
    ):
        (found,) = multiplexed_of(kind)
        with pytest.raises(TypeError, match=words):
            found.pool(kind())


def test_neither_load_nor_unload_is_a_method_of_clients() -> None:
    class Served:
        @slotmesh.multiplexed(max_models=1, unload="drop")
        def load(self, model_id: str) -> str:
            return model_id

        def drop(self, model: str) -> None: ...

        def use(self) -> None: ...

    assert [*describe(Served).methods] == ["use"]
    assert [*describe(Handler).methods] == ["use"]
