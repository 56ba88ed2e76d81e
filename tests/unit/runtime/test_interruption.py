"""Blocks of tasks that are ended from outside."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from slotmesh.transport.duplex import Interruption
from tests.support.wait import within

pytestmark = pytest.mark.asyncio


class Block:
    """Waits for ever in a block, and then once more outside of it."""

    def __init__(self) -> None:
        self.interruption: Interruption[str] = Interruption()
        self.after_it = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def run(self) -> str | None:
        with self.interruption:
            await asyncio.Event().wait()
        self.after_it.set()
        await self.goes_on.wait()
        return self.interruption.why


async def until_it_waits() -> None:
    await asyncio.sleep(0)


async def test_the_block_is_left_where_it_waits_and_the_task_goes_on() -> None:
    block = Block()
    task = asyncio.create_task(block.run())
    await until_it_waits()
    block.interruption.end("first")
    block.interruption.end("second")
    await within(block.after_it.wait(), "the end of the block")
    assert not task.cancelling()
    block.goes_on.set()
    assert await task == "first"


async def test_before_the_block_it_is_the_first_wait_that_is_left() -> None:
    block = Block()
    block.interruption.end("early")
    task = asyncio.create_task(block.run())
    block.goes_on.set()
    assert await task == "early"


async def test_a_block_that_does_not_wait_is_not_left_for_what_was_said_before_it() -> None:
    interruption: Interruption[str] = Interruption()
    interruption.end("early")
    with interruption:
        pass
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_after_the_block_nothing_is_left() -> None:
    interruption: Interruption[str] = Interruption()
    with interruption:
        await asyncio.sleep(0)
    interruption.end("late")
    await asyncio.sleep(0)


@pytest.mark.parametrize("interrupted_first", [True, False])
async def test_a_task_that_is_cancelled_as_well_is_cancelled(interrupted_first: bool) -> None:
    block = Block()
    task = asyncio.create_task(block.run())
    await until_it_waits()
    if not interrupted_first:
        task.cancel()
    block.interruption.end("why")
    if interrupted_first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not block.after_it.is_set()


async def test_a_cancellation_alone_is_none_of_its_business() -> None:
    block = Block()
    task = asyncio.create_task(block.run())
    await until_it_waits()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert block.interruption.why is None


async def test_what_the_block_raises_on_its_way_out_is_raised() -> None:
    interruption: Interruption[str] = Interruption()

    async def fails() -> None:
        with interruption:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("on the way out")

    task = asyncio.create_task(fails())
    await until_it_waits()
    interruption.end("why")
    with pytest.raises(ValueError, match="on the way out"):
        await task
    assert not task.cancelling()


async def test_of_two_blocks_the_one_is_left_that_was_meant() -> None:
    outer: Interruption[str] = Interruption()
    inner: Interruption[str] = Interruption()
    left: list[str] = []
    inner_left = asyncio.Event()

    async def nested() -> None:
        with outer:
            with inner:
                await asyncio.Event().wait()
            left.append("inner")
            inner_left.set()
            with suppress(ValueError):
                await asyncio.Event().wait()
            left.append("never")
        left.append("outer")

    task = asyncio.create_task(nested())
    await until_it_waits()
    inner.end("inner")
    await within(inner_left.wait(), "the inner block to be left")
    await until_it_waits()
    outer.end("outer")
    await task
    assert left == ["inner", "outer"]
