"""Rpcs that are asked for ahead: how many, in which order, and what becomes of them when the server stops."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from slotmesh.grpc_internals.accepting import MOST_AHEAD, AcceptAhead
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Core:
    """Where rpcs come from."""

    def __init__(self) -> None:
        self.asked: deque[asyncio.Future[int]] = deque()
        self.refused: list[int] = []
        self.ahead = AcceptAhead(self._request, self.refused.append)

    async def _request(self) -> int:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    def come(self, *rpcs: int) -> None:
        """As far as they are asked for."""
        for each in rpcs:
            self.asked.popleft().set_result(each)


async def settled(core: Core, asked: int) -> None:
    await wait_until(lambda: len(core.asked) == asked, what=f"{asked} are asked for")


async def test_some_are_asked_for_ahead_and_no_more() -> None:
    core = Core()
    first = core.ahead.next()
    await settled(core, MOST_AHEAD)
    core.come(1, 2, 3)
    assert await first == 1
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(core.asked) == MOST_AHEAD - 3, "for those that nobody has taken no others are asked"
    assert await core.ahead.next() == 2
    await settled(core, MOST_AHEAD - 1)
    assert await core.ahead.next() == 3
    await settled(core, MOST_AHEAD)
    waiting = core.ahead.next()
    assert not waiting.done()
    core.come(4)
    assert await waiting == 4


async def test_all_that_comes_at_once_is_taken_in_its_order() -> None:
    core = Core()
    taken = []
    waiting = core.ahead.next()
    for start in range(0, 40, MOST_AHEAD):
        await settled(core, MOST_AHEAD)
        core.come(*range(start, start + MOST_AHEAD))
        for _ in range(MOST_AHEAD):
            taken.append(await waiting)
            waiting = core.ahead.next()
    assert taken == [*range(len(taken))]


async def test_who_waits_hears_of_the_end() -> None:
    core = Core()
    waiting = core.ahead.next()
    await settled(core, MOST_AHEAD)
    for each in core.asked:
        each.set_exception(OSError("over"))
    with pytest.raises(OSError, match="over"):
        await waiting


async def test_after_the_end_nothing_is_lost_without_a_word() -> None:
    """What had come is refused, and what comes; one more is asked for only where somebody asks."""
    core = Core()
    waiting = core.ahead.next()
    await settled(core, MOST_AHEAD)
    core.come(1, 2, 3)
    assert await waiting == 1
    await asyncio.sleep(0)
    core.ahead.close()
    assert core.refused == [2, 3]
    core.come(4)
    await wait_until(lambda: core.refused == [2, 3, 4])
    asked = len(core.asked)
    core.ahead.next()
    await asyncio.sleep(0)
    assert len(core.asked) == asked


async def test_who_waits_hears_of_the_end_also_if_all_that_was_asked_for_comes_before_it() -> None:
    """Otherwise a server that many rpcs reach as it stops would wait for one more, for ever."""
    core = Core()
    waiting = core.ahead.next()
    await settled(core, MOST_AHEAD)
    core.ahead.close()
    core.come(*range(MOST_AHEAD))
    await wait_until(lambda: core.refused == [*range(MOST_AHEAD)] and core.asked, what="one more is asked for")
    for each in core.asked:
        each.set_exception(OSError("over"))
    with pytest.raises(OSError, match="over"):
        await waiting


async def test_who_has_gone_takes_nothing() -> None:
    core = Core()
    gone = core.ahead.next()
    await settled(core, MOST_AHEAD)
    gone.cancel()
    core.come(1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert await core.ahead.next() == 1
