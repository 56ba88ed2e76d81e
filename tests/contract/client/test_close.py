"""Leaving a mesh: nothing hangs, no future stays pending, no warning is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.errors import Executed
from tests.support.fakes.router import FakeRouter


@pytest_asyncio.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with FakeRouter(window_calls=4) as router:
        yield router
    assert not router.breaches


@pytest.mark.asyncio
async def test_a_mesh_that_was_never_used_closes(router: FakeRouter) -> None:
    async with slotmesh.connect(router.address) as mesh:
        mesh.endpoint("digits")
    async with slotmesh.connect(router.address):
        pass
    assert router.opened == 0


@pytest.mark.asyncio
async def test_leaving_waits_for_unanswered_calls_and_for_those_not_sent(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect(router.address)
    echo = mesh.endpoint("digits").echo
    calls = [echo(number) for number in range(10)]
    together = echo.map([10, 11])
    await router.until(lambda: router.calls() == 4)
    closing = asyncio.create_task(mesh.aclose())
    router.release()
    await closing
    assert all(call.done() for call in (*calls, together))
    assert [await call for call in calls] == [[number] for number in range(10)]
    assert await together == [[10], [11]]
    await router.until(lambda: not router.streams)
    assert router.half_closed == 1


@pytest.mark.asyncio
async def test_calls_made_just_before_leaving_are_made(router: FakeRouter) -> None:
    async with slotmesh.connect(router.address) as mesh:
        calls = [mesh.endpoint("digits").echo(number) for number in range(10)]
    assert [call.result() for call in calls] == [[number] for number in range(10)]


@pytest.mark.asyncio
async def test_after_the_grace_the_rest_fails_with_the_truth(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect(router.address, close_grace=0.05)
    echo = mesh.endpoint("digits").echo
    calls = [echo(number) for number in range(6)]
    together = echo.map([1, 2])
    await router.until(lambda: router.calls() == 4)
    await mesh.aclose()
    assert all(call.done() for call in (*calls, together))
    for number, call in enumerate(calls):
        error = call.exception()
        assert isinstance(error, slotmesh.CallCancelled)
        assert error.executed is (Executed.UNKNOWN if number < 4 else Executed.NO)
        assert "the mesh was closed" in str(error)
    assert isinstance(together.exception(), slotmesh.CallCancelled)


@pytest.mark.asyncio
async def test_outcomes_of_calls_that_are_taken_back_at_the_end_are_acknowledged(router: FakeRouter) -> None:
    """So that no replica keeps them."""
    router.held = True
    mesh = slotmesh.connect(router.address)
    call, together = mesh.endpoint("digits").echo(1), mesh.endpoint("digits").echo.map([2, 3])
    await router.until(lambda: router.calls() == 3)
    await mesh.aclose(0)
    assert isinstance(call.exception(), slotmesh.CallCancelled)
    assert isinstance(together.exception(), slotmesh.CallCancelled)
    await router.until(lambda: not router.streams)
    assert (router.acks, router.half_closed) == ([1], 1)


@pytest.mark.asyncio
async def test_leaving_by_an_exception_waits_for_nothing(router: FakeRouter) -> None:
    router.held = True
    mesh = slotmesh.connect(router.address)
    call = mesh.endpoint("digits").echo(1)
    await router.until(lambda: router.calls() == 1)
    with pytest.raises(KeyError):
        async with mesh:
            raise KeyError
    assert isinstance(call.exception(), slotmesh.CallCancelled)


@pytest.mark.asyncio
async def test_leaving_while_no_router_is_there_ends_with_the_grace() -> None:
    async with FakeRouter() as router:
        address = router.address
    mesh = slotmesh.connect(address, close_grace=0.05)
    call = mesh.endpoint("digits").echo(1)
    await mesh.aclose()
    error = call.exception()
    assert isinstance(error, slotmesh.CallCancelled)
    assert error.executed is Executed.NO


@pytest.mark.asyncio
async def test_a_closed_mesh_makes_no_calls_and_closes_again(router: FakeRouter) -> None:
    mesh = slotmesh.connect(router.address)
    digits = mesh.endpoint("digits")
    assert await digits.echo(1) == [1]
    await mesh.aclose()
    await mesh.aclose()
    with pytest.raises(RuntimeError, match="the mesh is closed"):
        digits.echo(2)
    with pytest.raises(RuntimeError, match="the mesh is closed"):
        digits.echo.map([1])
    with pytest.raises(RuntimeError, match="the mesh is closed"):
        mesh.endpoint("other")


@pytest.mark.asyncio
async def test_a_router_that_does_not_end_an_idle_stream_holds_nobody_up(router: FakeRouter) -> None:
    mesh = slotmesh.connect(router.address)
    assert await mesh.endpoint("digits").echo(1) == [1]
    router.streams[0].unanswered[999] = 0  # so that it never ends
    began = asyncio.get_running_loop().time()
    await mesh.aclose()
    assert asyncio.get_running_loop().time() - began < 5


@pytest.mark.asyncio
async def test_a_cancelled_call_that_its_router_goes_on_with_is_not_waited_for(router: FakeRouter) -> None:
    router.held = router.deaf_to_cancels = True
    mesh = slotmesh.connect(router.address, close_grace=3_600)
    call = mesh.endpoint("digits").echo(1)
    await router.until(lambda: router.calls() == 1)
    call.cancel()
    async with asyncio.timeout(10):
        await mesh.aclose()


async def _reserve(mesh: slotmesh.Mesh) -> None:
    async with mesh.endpoint("digits").reserve():
        pass


async def _read(mesh: slotmesh.Mesh) -> list[Any]:
    return [value async for value in mesh.endpoint("digits").echo.unary_stream(1)]


_WAITS: dict[str, Callable[[slotmesh.Mesh], Awaitable[object]]] = {
    "call": lambda mesh: mesh.endpoint("digits").echo(1),
    "unary": lambda mesh: mesh.endpoint("digits").echo.unary(1),
    "unary_stream": _read,
    "reserve": _reserve,
    "endpoints": lambda mesh: mesh.endpoints(),
}


@pytest.mark.parametrize("wait", _WAITS)
@pytest.mark.asyncio
async def test_leaving_while_it_is_found_out_why_no_router_is_reached_cancels_no_caller(wait: str) -> None:
    """The routers close connections in plain text, and answer no handshake of TLS."""
    is_asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(3) != b"PRI":
            is_asked.set()
            await reader.read()
        writer.close()

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0)) for _ in "ab"]
        mesh = slotmesh.connect([f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers])
        waiting = asyncio.ensure_future(_WAITS[wait](mesh))
        async with asyncio.timeout(10):
            await is_asked.wait()
            await mesh.aclose(0)
            with pytest.raises(slotmesh.CallCancelled, match="the mesh was closed") as caught:
                await waiting
        assert caught.value.executed is Executed.NO
        assert not mesh._routers._channels


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":7071", "localhost:x", "localhost:0"])
@pytest.mark.asyncio
async def test_an_address_without_host_or_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the address's own parser words it
        slotmesh.connect(address)


@pytest.mark.asyncio
async def test_times_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="connect_timeout"):
        slotmesh.connect("localhost:7071", connect_timeout=0)
    with pytest.raises(ValueError, match="close_grace"):
        slotmesh.connect("localhost:7071", close_grace=-1)


def test_a_mesh_needs_a_running_loop_for_its_endpoints() -> None:
    with pytest.raises(RuntimeError, match="no event loop runs here"):
        slotmesh.connect("localhost:7071").endpoint("digits")
