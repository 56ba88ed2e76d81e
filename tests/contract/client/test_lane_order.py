"""Calls of a lane are made in the order in which the application made them, whichever of them waited for room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import SlotmeshError
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio
BOUND: Final = 16


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(window_calls=4) as router:
        router.held = True
        yield router
        router.release()


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.Mesh]:
    async with slotmesh.connect(router.address, close_grace=10.0, max_buffered_calls=BOUND) as mesh:
        yield mesh
        router.release()


def payloads_of(router: FakeRouter) -> list[bytes]:
    return [payload for each in router.batches for payload in each.payloads]


async def fill(lane: Any) -> list[asyncio.Future[bytes]]:
    """As many calls as there is room for."""
    made: list[asyncio.Future[bytes]] = []
    while True:
        future = lane.echo(b"fill")
        if future.done():
            future.exception()
            return made
        made.append(future)


@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("in_front", ["send", "map"])
async def test_a_call_in_the_turn_in_which_a_send_is_woken_does_not_pass_it(
    mesh: slotmesh.Mesh, router: FakeRouter, in_front: str, count: int
) -> None:
    lane = mesh.endpoint("digits").options(content_type=OCTET_STREAM).ordered("k")
    filling = await fill(lane)
    others: list[Any] = []
    if in_front == "map":
        others.append(lane.echo.map([b"map"] * 4))
    sends = [asyncio.create_task(lane.echo.send(b"%d" % number)) for number in range(count)]
    late: list[Any] = []
    refused = 0

    async def intrude() -> None:
        """Makes a call of the lane in each turn of the loop, and another one by `send`."""
        nonlocal refused
        while not all(each.done() for each in sends):
            future = lane.echo(b"late")
            if future.done() and future.exception() is not None:
                refused += 1
            else:
                late.append(future)
            await asyncio.sleep(0)

    await asyncio.sleep(0)
    intruding = asyncio.create_task(intrude())
    router.release()
    await asyncio.wait_for(asyncio.gather(*sends), 30)
    await intruding
    await asyncio.gather(*filling, *others, *late, *[each.result() for each in sends], return_exceptions=True)
    seen = [payload for payload in payloads_of(router) if payload != b"fill"]
    expected = [b"map"] * (4 * len(others)) + [b"%d" % number for number in range(count)]
    assert seen[: len(expected)] == expected
    assert refused


async def test_a_send_that_is_cancelled_lets_the_next_one_go_on_in_order(
    mesh: slotmesh.Mesh, router: FakeRouter
) -> None:
    lane = mesh.endpoint("digits").options(content_type=OCTET_STREAM).ordered("k")
    filling = await fill(lane)
    mapped = lane.echo.map([b"map"] * 4)
    sends = [asyncio.create_task(lane.echo.send(b"%d" % number)) for number in range(6)]
    await asyncio.sleep(0)
    for each in (sends[0], sends[3]):
        each.cancel()
    await asyncio.sleep(0)
    router.release()
    kept = [each for each in sends if each not in (sends[0], sends[3])]
    futures = await asyncio.wait_for(asyncio.gather(*kept), 30)
    await asyncio.gather(mapped, *filling, *futures)
    seen = [payload for payload in payloads_of(router) if payload != b"fill"]
    assert seen == [b"map"] * 4 + [b"1", b"2", b"4", b"5"]


async def test_a_send_that_is_too_large_fails_in_its_turn(mesh: slotmesh.Mesh, router: FakeRouter) -> None:
    lane = mesh.endpoint("digits").options(content_type=OCTET_STREAM).ordered("k")
    filling = await fill(lane)
    first = asyncio.create_task(lane.echo.send(b"1"))
    await asyncio.sleep(0)
    large = asyncio.create_task(lane.echo.send(bytes(100_000_000)))
    await asyncio.sleep(0)
    assert not large.done()
    router.release()
    futures = await asyncio.wait_for(asyncio.gather(first, large), 30)
    with pytest.raises(SlotmeshError):
        await futures[1]
    await asyncio.gather(*filling, futures[0])
