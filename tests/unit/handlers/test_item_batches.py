"""Batch methods that are called in their own process: single items become batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

import slotmesh
from slotmesh.handlers import batch, whole_batches
from slotmesh.testing import batch_contexts, call_context, make_context
from tests.support.foreign_code import KINDS, raised_by
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


async def together(*calls: Awaitable[Any], keeps_failures: bool = False) -> list[Any]:
    """What they come to."""
    return list(await asyncio.gather(*calls, return_exceptions=keeps_failures))


class Model:
    """Remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, number: int) -> int:
        return int(await self.double(number))

    @batch(max_batch_size=4, batch_wait_timeout_s=0.0)
    async def double(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        await self.go_on.wait()
        return [2 * number for number in numbers]

    @batch(max_batch_size=2, batch_wait_timeout_s=60.0)
    async def patient(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        return numbers

    @batch(max_batch_size=10, batch_size_fn=len)
    async def weigh(self, texts: list[str]) -> list[int]:
        self.batches.append(texts)
        return [len(text) for text in texts]

    @batch
    async def half(self, numbers: list[int]) -> list[float | Exception]:
        return [number / 2 if number % 2 == 0 else ValueError(f"{number} is odd") for number in numbers]

    @batch
    async def short(self, numbers: list[int]) -> list[int]:
        return numbers[1:]

    @batch
    async def add(self, numbers: list[int], others: Sequence[int] = ()) -> list[int]:
        self.batches.append((numbers, others))
        return [number + other for number, other in zip(numbers, others or [0] * len(numbers), strict=True)]

    @batch
    async def users(self, items: list[int]) -> list[str]:
        return [call.metadata["user"] for call, _ in zip(slotmesh.contexts(), items, strict=True)]


async def test_a_method_that_awaits_a_batch_method_with_one_item_gets_one_result() -> None:
    model = Model()
    assert await asyncio.gather(*(model(number) for number in range(6))) == [0, 2, 4, 6, 8, 10]
    assert model.batches == [[0, 1, 2, 3], [4, 5]]


async def test_a_list_is_a_batch_as_ever() -> None:
    model = Model()
    assert await model.double([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert model.batches == [[1, 2, 3, 4, 5]]
    with pytest.raises(TypeError, match=r"Model\.add: either all arguments are lists"):
        await model.add([1], 2)  # type: ignore[call-overload]


async def test_batches_fill_while_others_run() -> None:
    model = Model()
    model.go_on.clear()
    first = asyncio.ensure_future(model(0))
    await wait_until(lambda: model.batches)
    more = [asyncio.ensure_future(model(number)) for number in range(1, 4)]
    await asyncio.sleep(0)
    state = model.double.batch_state()
    assert (state.is_alive, state.waiting, [each.calls for each in state.running]) == (True, 3, [1])
    model.go_on.set()
    assert await together(first, *more) == [0, 2, 4, 6]
    assert model.batches == [[0], [1, 2, 3]]
    assert not model.double.batch_state().is_alive, "nothing is kept of a gathering that is over"


async def test_a_full_batch_does_not_wait() -> None:
    model = Model()
    assert await together(model.patient(1), model.patient(2)) == [1, 2]


async def test_settings_may_be_turned_while_items_wait() -> None:
    model = Model()
    waiting = asyncio.ensure_future(model.patient(1))
    await asyncio.sleep(0)
    model.patient.set_max_batch_size(1)
    try:
        assert await waiting == 1
    finally:
        model.patient.set_max_batch_size(2)


async def test_an_item_that_was_given_up_is_in_no_batch() -> None:
    model = Model()
    model.go_on.clear()
    first = asyncio.ensure_future(model(0))
    await wait_until(lambda: model.batches)
    given_up, kept = asyncio.ensure_future(model(1)), asyncio.ensure_future(model(2))
    await asyncio.sleep(0)
    given_up.cancel()
    model.go_on.set()
    assert await together(first, kept) == [0, 4]
    assert model.batches == [[0], [2]]


async def test_items_are_weighed() -> None:
    model = Model()
    texts = ["x" * 6, "y" * 4, "z" * 5]
    assert await asyncio.gather(*map(model.weigh, texts)) == [6, 4, 5]
    assert model.batches == [texts[:2], texts[2:]]
    with pytest.raises(ValueError, match="weighs 11"):
        await model.weigh("x" * 11)


async def test_one_item_may_fail_or_all_of_a_batch() -> None:
    model = Model()
    two, three = await together(model.half(2), model.half(3), keeps_failures=True)
    assert two == 1.0
    assert isinstance(three, ValueError)
    with pytest.raises(ValueError, match="5 is odd"):
        await model.half(5)
    for failed in await together(model.short(1), model.short(2), keeps_failures=True):
        assert isinstance(failed, TypeError)
        assert "1 results for 2 items" in str(failed)


async def test_items_that_give_other_parameters_are_other_batches() -> None:
    model = Model()
    named = model.add(2, others=20)  # type: ignore[call-overload]  # types of items are known by position
    calls = [model.add(1, 10), named, model.add(3), model.add(4), model.add(5, 50)]
    assert await asyncio.gather(*calls) == [11, 22, 3, 4, 55]
    assert model.batches == [([1], [10]), ([2], [20]), ([3, 4], ()), ([5], [50])]


async def test_instances_do_not_share_batches() -> None:
    one, other = Model(), Model()
    await asyncio.gather(one(1), other(2), one(3))
    assert (one.batches, other.batches) == ([[1, 3]], [[2]])


async def test_each_item_has_the_context_of_its_call() -> None:
    model = Model()

    async def ask(user: str) -> str:
        with call_context(metadata={"user": user}):
            return str(await model.users(1))

    assert await together(ask("ada"), ask("bob")) == ["ada", "bob"]
    with batch_contexts(make_context(metadata={"user": "eve"})):
        assert await model.users([1]) == ["eve"]


async def test_replicas_call_the_function_itself() -> None:
    model = Model()
    whole = whole_batches(model.double)
    assert await whole([1]) == [2]
    with pytest.raises(TypeError):
        await whole(1)


async def test_clients_and_the_handler_itself_may_call_it() -> None:
    async with slotmesh.testing.handler(Model) as model:
        assert await together(*(model(number) for number in (1, 2, 3))) == [2, 4, 6]
        assert await model.double.map([1, 2]) == [2, 4]
        assert model.instance.batches[0] == [1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("returns_it", [False, True])
async def test_whatever_a_batch_raises_is_an_error_of_its_items(kind: str, returns_it: bool) -> None:
    """It ends neither the loop, nor a batch of another method, and no item waits for ever."""

    class Fails:
        @batch(max_batch_size=3, batch_wait_timeout_s=0.0)
        async def act(self, numbers: list[int]) -> list[Any]:
            if returns_it:
                return [raised_by(kind) if number == 1 else number for number in numbers]
            KINDS[kind]()
            return numbers

    model, fails = Model(), Fails()
    async with asyncio.timeout(20.0):
        *outcomes, other = await together(
            *(fails.act(number) for number in range(3)), model.double(4), keeps_failures=True
        )
    assert other == 8
    failed = outcomes[1:2] if returns_it else outcomes
    assert [each for each in outcomes if each not in failed] == ([0, 2] if returns_it else [])
    for error in failed:
        assert isinstance(error, Exception)
        assert kind in f"{type(error).__name__}: {error.__cause__!r}" or kind == "Unreadable"
