"""A client that is closed after its calls were cancelled waits for none of them, wherever each call was."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

import slotmesh
from tests.support.fakes.router import FakeRouter
from tests.support.tiers import long

pytestmark = pytest.mark.asyncio

GRACE_S: Final = 3_600.0
"""Of the clients here: who waits for a cancelled call waits for ever."""
WITHIN_S: Final = 10.0

Made = list[asyncio.Future[Any]]
Make = Callable[[slotmesh.Mesh], Awaitable[Made]]


async def _calls(mesh: slotmesh.Mesh) -> Made:
    return [mesh.endpoint("digits").echo(number) for number in range(3)]


async def _map(mesh: slotmesh.Mesh) -> Made:
    return [mesh.endpoint("digits").echo.map(range(3))]


async def _send(mesh: slotmesh.Mesh) -> Made:
    return [await mesh.endpoint("digits").echo.send(1)]


async def _no_reply(mesh: slotmesh.Mesh) -> Made:
    return [mesh.endpoint("digits").echo.options(reply=False)(1)]


async def _lane(mesh: slotmesh.Mesh) -> Made:
    lanes = [mesh.endpoint("digits").ordered(key) for key in ("a", "b")]
    return [lane.echo(number) for number in range(2) for lane in lanes]


async def _stopping_lane(mesh: slotmesh.Mesh) -> Made:
    lane = mesh.endpoint("digits").ordered("key", after_failure="stop")
    return [lane.echo(number) for number in range(3)]


async def _unary(mesh: slotmesh.Mesh) -> Made:
    return [asyncio.ensure_future(mesh.endpoint("digits").echo.unary(1))]


async def _values(mesh: slotmesh.Mesh) -> Made:
    values = mesh.endpoint("digits").echo.stream(1)

    async def take() -> None:
        async with values:
            async for _ in values:
                pass

    taking = asyncio.ensure_future(take())
    await asyncio.sleep(0)  # a task that has not begun does not leave its block
    return [taking]


async def _slot(mesh: slotmesh.Mesh) -> Made:
    async def use() -> None:
        async with mesh.endpoint("digits").reserve() as slot:
            await slot.echo(1)

    return [asyncio.ensure_future(use())]


async def _direct(mesh: slotmesh.Mesh) -> Made:
    return [mesh.endpoint("digits").direct(1).echo(1)]


MAKES: Final[dict[str, Make]] = {
    "calls": _calls,
    "map": _map,
    "send": _send,
    "no reply": _no_reply,
    "lane": _lane,
    "stopping lane": _stopping_lane,
    "unary": _unary,
    "values": _values,
    "slot": _slot,
    "direct": _direct,
}


@asynccontextmanager
async def _there() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(window_calls=2) as router:
        router.held = True
        yield router


@asynccontextmanager
async def _mute() -> AsyncIterator[FakeRouter]:
    """Takes calls, and answers nothing."""
    async with FakeRouter(window_calls=2) as router:
        router.held = router.deaf_to_cancels = True
        yield router


@asynccontextmanager
async def _gone() -> AsyncIterator[FakeRouter]:
    """Its port refuses connections."""
    async with FakeRouter() as router:
        pass
    yield router


@asynccontextmanager
async def _not_answering() -> AsyncIterator[FakeRouter]:
    """Connections are accepted, and nothing is ever read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield FakeRouter(port=server.getsockname()[1])


ROUTERS: Final = {"there": _there, "mute": _mute, "gone": _gone, "not answering": _not_answering}


async def _cancel(made: Made) -> None:
    for future in made:
        future.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*made, return_exceptions=True)


@pytest.mark.parametrize("turns", [0, long(1), 4, long(20)], ids=lambda turns: f"after {turns} turns")
@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("state", ROUTERS)
async def test_a_client_whose_first_call_was_cancelled_closes(state: str, kind: str, turns: int) -> None:
    async with ROUTERS[state]() as router:
        mesh = slotmesh.connect(router.address, close_grace=GRACE_S)
        made = await MAKES[kind](mesh)
        for _ in range(turns):  # wherever the opening of the stream is by then
            await asyncio.sleep(0)
        await _cancel(made)
        async with asyncio.timeout(WITHIN_S):
            await mesh.aclose()


@pytest.mark.parametrize("kind", ["calls", "map", "send", "no reply", "lane", "stopping lane", "values"])
@pytest.mark.parametrize("state", ["there", "mute"])
async def test_a_call_that_was_sent_and_cancelled_holds_up_nothing(state: str, kind: str) -> None:
    async with ROUTERS[state]() as router:
        mesh = slotmesh.connect(router.address, close_grace=GRACE_S)
        made = await MAKES[kind](mesh)
        await router.until(lambda: router.calls() > 0)
        await _cancel(made)
        async with asyncio.timeout(WITHIN_S):
            await mesh.aclose()
        # The router was asked to take each back before the stream ended.
        await router.until(lambda: sum(len(ids) for frame in router.cancels for ids in frame) == router.calls())


@pytest.mark.parametrize("kind", ["calls", "map", "send", "lane", "stopping lane", "values"])
@pytest.mark.parametrize("state", ["there", "gone", "not answering", long("mute")])
async def test_closing_ends_when_the_last_call_is_cancelled_meanwhile(state: str, kind: str) -> None:
    async with ROUTERS[state]() as router:
        mesh = slotmesh.connect(router.address, close_grace=GRACE_S)
        made = await MAKES[kind](mesh)
        closing = asyncio.ensure_future(mesh.aclose())
        if state in ("there", "mute"):
            await router.until(lambda: router.calls() > 0)
        else:
            await asyncio.sleep(0)
        assert not closing.done()
        await _cancel(made)
        async with asyncio.timeout(WITHIN_S):
            await closing


async def test_one_cancelled_call_takes_no_grace_from_the_others() -> None:
    async with FakeRouter(window_calls=1) as router:
        router.held = True
        mesh = slotmesh.connect(router.address, close_grace=GRACE_S)
        calls = [mesh.endpoint("digits").echo(number) for number in range(4)]
        await router.until(lambda: router.calls() == 1)
        calls[1].cancel()
        calls[3].cancel()
        closing = asyncio.ensure_future(mesh.aclose())
        router.release()
        async with asyncio.timeout(WITHIN_S):
            await closing
        assert [await calls[0], await calls[2]] == [[0], [2]]


@pytest.mark.parametrize("kind", ["future", "values"])
@pytest.mark.parametrize("state", ROUTERS)
async def test_without_asyncio_too(state: str, kind: str) -> None:
    def program(address: str) -> None:
        mesh = slotmesh.connect_sync(address, close_grace=GRACE_S)
        method = mesh.endpoint("digits").echo
        if kind == "future":
            assert method.future(1).cancel()
        else:
            method.stream(1).close()
        mesh.close()

    async with ROUTERS[state]() as router:
        async with asyncio.timeout(WITHIN_S):
            await asyncio.to_thread(program, router.address)
