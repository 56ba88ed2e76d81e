"""Large pieces of work take turns, step by step, and the event loop goes round between two steps of any."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from slotmesh.runtime.loop_slices import StepQueue


@pytest.mark.asyncio
async def test_one_step_is_taken_between_two_looks_of_the_loop() -> None:
    turns = StepQueue()
    looks = 0
    seen: list[tuple[int, str]] = []

    def look() -> None:
        nonlocal looks
        looks += 1
        if not all(each.done() for each in work):
            asyncio.get_running_loop().call_soon(look)

    def steps(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            yield
            seen.append((looks, name))
        return name

    work = [asyncio.ensure_future(turns.take(steps(name))) for name in "abc"]
    asyncio.get_running_loop().call_soon(look)
    assert await asyncio.gather(*work) == ["a", "b", "c"]
    assert [name for _, name in seen] == list("abcabcabc")
    times = [at for at, _ in seen]
    assert len(set(times)) == len(times), "no two steps in one round"


@pytest.mark.asyncio
async def test_some_may_have_their_turns_together() -> None:
    turns = StepQueue(in_a_turn=4)
    waiting = [asyncio.ensure_future(turns.next()) for _ in range(10)]
    done = []
    for _ in range(6):
        await asyncio.sleep(0)
        done.append(sum(each.done() for each in waiting))
    assert {*done} <= {0, 4, 8, 10}, "four at a time, in their order"
    assert done[-1] == 10
    more = asyncio.ensure_future(turns.next())
    await asyncio.wait_for(more, 5)


@pytest.mark.asyncio
async def test_who_gives_up_holds_up_nobody() -> None:
    turns = StepQueue()
    waiting = [asyncio.ensure_future(turns.next()) for _ in range(3)]
    await asyncio.sleep(0)
    for each in waiting[:2]:
        each.cancel()
    async with asyncio.timeout(20.0):
        await waiting[2]
        await turns.next()


@pytest.mark.asyncio
async def test_work_of_one_step_does_not_wait() -> None:
    def nothing() -> Generator[None, None, int]:
        return 7
        yield

    taking = StepQueue().take(nothing())
    with pytest.raises(StopIteration) as end:
        taking.send(None)
    assert end.value.value == 7
