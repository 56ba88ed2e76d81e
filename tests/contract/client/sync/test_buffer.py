"""Threads that make calls faster than the mesh takes them: they wait for room, or their futures fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from tests.contract.client.test_buffer import BOUND, WINDOW, WITHIN_S
from tests.support.fakes.router import FakeRouter
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    """Answers nothing before it is released."""
    async with FakeRouter(window_calls=WINDOW) as router:
        router.held = True
        yield router
        router.release()
    assert not router.breaches


@pytest_asyncio.fixture
async def blocking(router: FakeRouter) -> AsyncIterator[slotmesh.SyncMesh]:
    mesh = slotmesh.connect_sync(router.address, close_grace=WITHIN_S, max_buffered_calls=BOUND)
    yield mesh
    router.release()
    await asyncio.to_thread(mesh.close)


def sync_endpoint(mesh: slotmesh.SyncMesh) -> slotmesh.SyncEndpoint:
    return mesh.endpoint("digits").options(content_type=OCTET_STREAM)


async def filled(endpoint: slotmesh.SyncEndpoint, router: FakeRouter) -> list[Future[bytes]]:
    """The calls of which as many wait as may."""
    futures = [endpoint.echo.future(b"x") for _ in range(WINDOW)]
    await router.until(lambda: router.calls() == WINDOW)
    return futures + [endpoint.echo.future(b"x") for _ in range(BOUND)]


async def test_a_future_of_a_thread_past_the_bound_fails(router: FakeRouter, blocking: slotmesh.SyncMesh) -> None:
    endpoint = sync_endpoint(blocking)
    futures = await filled(endpoint, router)
    failed = [endpoint.echo.future(b"x") for _ in range(3)]
    assert [type(future.exception(WITHIN_S)) for future in failed] == [slotmesh.ClientBufferFull] * 3
    with pytest.raises(slotmesh.ClientBufferFull):
        await asyncio.to_thread(next, endpoint.echo.stream(b"x"))
    router.release()
    assert [await asyncio.wrap_future(each) for each in futures] == [b"x"] * len(futures)
    assert await asyncio.to_thread(endpoint.echo, b"again") == b"again"


@pytest.mark.parametrize("way", ["call", "send", "map", "generator"])
async def test_a_thread_waits_for_room(router: FakeRouter, blocking: slotmesh.SyncMesh, way: str) -> None:
    endpoint, items = sync_endpoint(blocking), [b"%d" % number for number in range(10 * BOUND)]
    held = await filled(endpoint, router)
    started = threading.Event()

    def work() -> list[bytes]:
        started.set()
        match way:
            case "call":
                return [endpoint.echo(item) for item in items[:10]]
            case "send":
                return [each.result() for each in [endpoint.echo.send(item) for item in items]]
            case "map":
                return endpoint.echo.map(items)
            case _:
                return endpoint.echo.map(iter(items))

    working = asyncio.ensure_future(asyncio.to_thread(work))
    await asyncio.to_thread(started.wait)
    share = endpoint.echo._method.share
    await wait_until(lambda: share.waiters, what="the thread waits")
    assert not working.done()
    router.release()
    assert await working == (items[:10] if way == "call" else items)
    assert [await asyncio.wrap_future(each) for each in held] == [b"x"] * len(held)
    await wait_until(lambda: not share.calls, what="nothing is counted that does not wait")


async def test_a_lane_of_a_thread_stops_behind_a_call_for_which_there_is_no_room(
    router: FakeRouter, blocking: slotmesh.SyncMesh
) -> None:
    endpoint = sync_endpoint(blocking)
    futures = await filled(endpoint, router)
    lane = endpoint.ordered("key", after_failure="stop")
    refused = lane.echo.future(b"first")
    assert isinstance(refused.exception(WITHIN_S), slotmesh.ClientBufferFull)
    router.release()
    assert [await asyncio.wrap_future(each) for each in futures] == [b"x"] * len(futures)
    with pytest.raises(slotmesh.PredecessorFailed):
        await asyncio.to_thread(lane.echo, b"second")


async def test_a_thread_waits_no_longer_than_its_call_may_take(router: FakeRouter, blocking: slotmesh.SyncMesh) -> None:
    endpoint = sync_endpoint(blocking)
    await filled(endpoint, router)
    timed = endpoint.options(timeout=0.05)
    with pytest.raises(slotmesh.ClientBufferFull):
        await asyncio.to_thread(timed.echo, b"x")
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(endpoint.echo.map, [b"x"] * 10 * BOUND, timeout=0.05)


async def test_closing_ends_the_wait_of_threads(router: FakeRouter) -> None:
    mesh = slotmesh.connect_sync(router.address, close_grace=0, max_buffered_calls=BOUND)
    endpoint = sync_endpoint(mesh)
    held = await filled(endpoint, router)
    waiting = [asyncio.ensure_future(asyncio.to_thread(endpoint.echo, b"x")) for _ in range(4)]
    share = endpoint.echo._method.share
    await wait_until(lambda: len(share.waiters) == 4, what="the threads wait")
    async with asyncio.timeout(WITHIN_S):
        await asyncio.to_thread(mesh.close)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(end, (RuntimeError, slotmesh.CallCancelled)) for end in ends), ends
    assert all(each.done() for each in held)
