"""Callbacks of the synchronous client: they may make calls, and wait for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
import pytest_asyncio

import slotmesh
from tests.support.fakes.router import FakeRouter

pytestmark = pytest.mark.asyncio

ResultT = TypeVar("ResultT")

WITHIN_S = 10.0
"""What no wait here comes near."""


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter() as router:
        yield router
    assert not router.breaches


@pytest_asyncio.fixture
async def mesh(router: FakeRouter) -> AsyncIterator[slotmesh.SyncMesh]:
    mesh = slotmesh.connect_sync(router.address, close_grace=WITHIN_S)
    yield mesh
    await asyncio.to_thread(mesh.close)


@pytest_asyncio.fixture
async def digits(mesh: slotmesh.SyncMesh) -> slotmesh.SyncEndpoint:
    return await asyncio.to_thread(mesh.endpoint, "digits")


async def in_callback(future: Future[Any], what: Callable[[], ResultT]) -> ResultT:
    """Does it in the client's thread, once the future is done."""
    seen: Future[ResultT] = Future()

    def see(_: Future[Any]) -> None:
        try:
            seen.set_result(what())
        except BaseException as error:  # noqa: BLE001 - it is what the test asks about
            seen.set_exception(error)

    future.add_done_callback(see)
    return await asyncio.wrap_future(seen)


async def test_a_callback_cannot_wait(
    router: FakeRouter, mesh: slotmesh.SyncMesh, digits: slotmesh.SyncEndpoint
) -> None:
    def program() -> None:
        pending = digits.echo.future("pending")
        lane = digits.ordered("key")
        for wait in (
            pending.result,
            pending.exception,
            lambda: digits.echo(1),
            lambda: digits.echo.map([1]),
            lambda: digits.echo.unary(1),
            lambda: lane.__exit__(None, None, None),
            mesh.close,
        ):
            with pytest.raises(RuntimeError, match="the client's own thread"):
                wait()

    router.held = True
    first = digits.echo.future("first")
    await router.until(lambda: router.calls() == 1)
    seen = asyncio.create_task(in_callback(first, program))
    await asyncio.sleep(0)
    router.release()
    await seen
    await router.until(lambda: router.calls() == 2)
    assert await asyncio.to_thread(digits.echo, "later") == ["later"], "all of it goes on"
    assert router.rpcs == 0


async def test_a_callback_may_make_calls(mesh: slotmesh.SyncMesh, digits: slotmesh.SyncEndpoint) -> None:
    def program() -> Future[Any]:
        other = mesh.endpoint("other").options(timeout=9)
        lane = other.ordered("key")
        return lane.echo.future("from a callback")

    made = await in_callback(digits.echo.future(1), program)
    assert await asyncio.wrap_future(made) == ["from a callback"]


async def test_a_callback_that_fails_disturbs_nobody(
    digits: slotmesh.SyncEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    def program() -> None:
        future = digits.echo.future(1)
        future.add_done_callback(lambda _: 1 / 0)
        assert digits.echo(2) == [2]

    await asyncio.to_thread(program)
    assert "ZeroDivisionError" in caplog.text
