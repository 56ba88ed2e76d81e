"""Where handlers run: what they raise comes back, and ends no loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from replica_service.shell.handler.handler_loop import CLOSE_S, HandlerLoop, OwnLoop, SharedLoop
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=[SharedLoop, OwnLoop])
async def handler_loop(request: pytest.FixtureRequest) -> AsyncIterator[HandlerLoop]:
    loop: HandlerLoop = request.param()
    yield loop
    await loop.close()


async def test_what_is_called_runs_on_the_loop_and_its_thread(handler_loop: HandlerLoop) -> None:
    async def where() -> tuple[asyncio.AbstractEventLoop, int | None]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), threading.get_ident()

    assert await handler_loop.run(where) == (handler_loop.loop, handler_loop.thread.ident)
    assert handler_loop.is_own == (handler_loop.loop is not asyncio.get_running_loop())


@pytest.mark.parametrize("error", [ValueError("bad"), KeyError(1)])
async def test_what_a_handler_raises_is_raised_here(handler_loop: HandlerLoop, error: Exception) -> None:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)):
        await handler_loop.run(fail_later)
    with pytest.raises(type(error)):
        await handler_loop.construct(fail)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_a_handler_does_not_end_the_process(handler_loop: HandlerLoop, error: BaseException) -> None:
    def end() -> None:
        raise error

    async def end_later() -> None:
        end()

    with pytest.raises(RuntimeError, match="tried to end the process"):
        await handler_loop.run(end_later)
    with pytest.raises(RuntimeError, match="tried to end the process"):
        await handler_loop.construct(end)


async def test_a_constructor_that_raises_a_cancellation_has_failed(handler_loop: HandlerLoop) -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="the constructor was cancelled"):
        await handler_loop.construct(cancelled)


async def test_the_service_goes_on_while_a_constructor_takes_its_time(handler_loop: HandlerLoop) -> None:
    gate = threading.Event()
    constructing = asyncio.ensure_future(handler_loop.construct(lambda: gate.wait(10)))
    await asyncio.sleep(0)
    gate.set()
    assert await constructing


async def test_cancelling_reaches_what_runs(handler_loop: HandlerLoop) -> None:
    seen: list[str] = []

    async def wait() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    waiting = asyncio.ensure_future(handler_loop.run(wait))
    await wait_until(lambda: seen)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await wait_until(lambda: seen == ["begun", "cancelled"])


async def test_a_constructor_finds_the_running_loop_of_its_own() -> None:
    own = OwnLoop()
    assert await own.construct(asyncio.get_running_loop) is own.loop
    await own.close()
    assert own.loop.is_closed()


async def test_a_task_that_ends_the_process_ends_nothing() -> None:
    own = OwnLoop()

    async def leave_behind(work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def end() -> None:
        raise SystemExit

    async def seven() -> int:
        return 7

    await own.run(lambda: leave_behind(end))
    assert await own.run(seven) == 7
    await own.close()


async def test_closing_cancels_what_is_left() -> None:
    own = OwnLoop()
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def leave_behind() -> asyncio.Task[None]:
        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        return task

    task = await own.run(leave_behind)
    await own.close()
    assert cancelled.is_set()
    assert task.done()
    await own.close()  # once is enough


async def test_a_loop_that_is_blocked_is_left_behind() -> None:
    own, gate = OwnLoop(), threading.Event()

    async def block() -> None:
        gate.wait(30)

    blocked = asyncio.ensure_future(own.run(block))
    await asyncio.sleep(0)
    began = time.monotonic()
    await own.close()
    assert CLOSE_S <= time.monotonic() - began < CLOSE_S + 2.0
    gate.set()
    await wait_until(own.loop.is_closed)
    blocked.cancel()
