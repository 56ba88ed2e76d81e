"""Streams that are looked at: in steps, again and again, and whatever becomes of a single look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from slotmesh.errors import Failure, Reason
from slotmesh.transport.open_streams import CANCEL_AGAIN_S, STEP_STREAMS, UNKNOWN_S, OpenStreams, StreamCut

pytestmark = pytest.mark.asyncio
GONE = Failure(reason=Reason.UNAUTHENTICATED, message="gone")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Held:
    """Streams without a transport, which are looked at when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.streams = OpenStreams(opening_timeout_s=60.0, idle_timeout_s=0.0, look_s=3600.0, now=self.clock)
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, lapsed: Callable[[], Failure | None], *, deaf_to: int = 0) -> asyncio.Task[None]:
        """A stream whose task swallows so many cancellations."""
        is_open, heard = asyncio.Event(), 0

        async def serve() -> None:
            nonlocal heard
            with self.streams.held(lapsed, reads=False):
                is_open.set()
                while True:
                    try:
                        await asyncio.Event().wait()
                    except asyncio.CancelledError:
                        heard += 1
                        if heard > deaf_to:
                            raise

        task = asyncio.ensure_future(serve())
        self.tasks.append(task)
        await is_open.wait()
        return task

    async def look(self) -> None:
        """A whole look, and what follows from it."""
        self.streams._look()
        await turns(5)

    async def aclose(self) -> None:
        while left := [task for task in self.tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.sleep(0)


@pytest_asyncio.fixture
async def held() -> AsyncIterator[Held]:
    streams = Held()
    yield streams
    await streams.aclose()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_many_streams_are_looked_at_in_steps(held: Held) -> None:
    looked = 0

    def lapsed() -> None:
        nonlocal looked
        looked += 1

    count = 3 * STEP_STREAMS + 1
    await asyncio.gather(*(held.open(lapsed) for _ in range(count)))
    held.streams._look()
    assert 0 < looked <= STEP_STREAMS, "the loop has other things to do"
    before = looked
    await turns(1)
    assert before < looked <= before + STEP_STREAMS
    await turns(count)
    assert looked == count


async def test_who_has_left_between_two_steps_is_not_looked_at(held: Held) -> None:
    looked = 0

    def lapsed() -> None:
        nonlocal looked
        looked += 1

    count = 3 * STEP_STREAMS
    await asyncio.gather(*(held.open(lapsed) for _ in range(count)))
    held.streams._look()
    for task in held.tasks:
        task.cancel()
    await turns(count)
    assert not held.streams.open
    assert looked <= 2 * STEP_STREAMS, "they leave while the second step is taken"


async def test_a_task_that_swallows_its_cancellation_is_cancelled_again(held: Held) -> None:
    deaf = await held.open(lambda: GONE, deaf_to=2)
    for _ in range(3):
        assert not deaf.done()
        await held.look()
        held.clock.now += CANCEL_AGAIN_S
    assert deaf.cancelled()
    assert held.streams.cut[StreamCut.CREDENTIAL] == 1


async def test_clean_up_is_given_its_time(held: Held) -> None:
    slow = await held.open(lambda: GONE, deaf_to=1)
    await held.look()
    held.clock.now += CANCEL_AGAIN_S / 2
    await held.look()
    assert not slow.done()


async def test_a_look_that_fails_ends_neither_the_others_nor_this_one_at_once(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    fails = True

    def broken() -> None:
        if fails:
            raise ZeroDivisionError

    ill, recovers, gone = await held.open(broken), await held.open(broken), await held.open(lambda: GONE)
    await held.look()
    assert gone.cancelled()
    assert not ill.done()
    fails = False
    await held.look()
    held.clock.now += UNKNOWN_S
    fails = True
    await held.look()
    assert not any(each.done() for each in (ill, recovers)), "it was known in between"
    held.clock.now += UNKNOWN_S - 1
    await held.look()
    assert not ill.done()
    held.clock.now += 1
    await held.look()
    assert ill.cancelled()
    assert held.streams.cut == {StreamCut.CREDENTIAL: 1, StreamCut.UNKNOWN: 2}
    assert len([record for record in caplog.records if "could not be found out" in record.message]) == 1
