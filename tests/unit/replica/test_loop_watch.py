"""A loop that is blocked is found, with the method that does it, and nothing else is."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from replica_service.shell.handler.binding import bind_methods
from replica_service.shell.handler.handler_loop import OwnLoop
from replica_service.shell.handler.loop_watch import LOG_GAP_S, WARNS_FOR_S, BlockReports, LoopWatch
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.telemetry import ReplicaCounters
from slotmesh.handlers import batch, describe
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

AFTER_S = 0.1


def checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def wrapper(*args: Any) -> Any:
        return await method(*args)

    return wrapper


class Handler:
    def __init__(self) -> None:
        self.gate = threading.Event()

    def __call__(self, payload: bytes) -> bytes:
        return payload

    async def block(self, payload: bytes) -> bytes:
        self.gate.wait(10)
        return payload

    @checked
    async def wrapped(self, payload: bytes) -> bytes:
        return await self.block(payload)

    @batch
    async def many(self, items: list[bytes]) -> list[bytes]:
        self.gate.wait(10)
        return items

    async def compute(self, payload: bytes) -> bytes:
        until = time.monotonic() + 10
        while time.monotonic() < until and not self.gate.is_set():
            self.gate.is_set()  # whichever line it is at, the stack shows the gate
        return payload

    async def rest(self, payload: bytes) -> bytes:
        await asyncio.sleep(3 * AFTER_S)
        return payload


class Watched:
    """A handler on a loop of its own, under watch."""

    def __init__(self) -> None:
        self.loop = OwnLoop()
        self.handler = Handler()
        self.methods = bind_methods(self.handler, describe(Handler))
        self.counters = ReplicaCounters()
        self.reports = BlockReports(self.counters, time.monotonic, own_loop=True)
        self.watch = LoopWatch(self.loop, self.methods.values(), self.reports, AFTER_S)

    def start(self, method: str, argument: Any = b"") -> asyncio.Future[Any]:
        function: HandlerMethod = self.methods[method]
        return asyncio.ensure_future(self.loop.run(lambda: function.function(argument)))

    async def blocked(self) -> str:
        await wait_until(lambda: self.counters.blocks)
        return self.reports.warning


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    it = Watched()
    try:
        yield it
    finally:
        it.handler.gate.set()
        it.watch.close()
        await it.loop.close()


@pytest.mark.parametrize(("method", "argument"), [("block", b""), ("wrapped", b""), ("many", [b""]), ("compute", b"")])
async def test_the_method_that_blocks_is_told_with_its_stack(method: str, argument: Any) -> None:
    async with watched() as it:
        running = it.start(method, argument)
        line, _, stack = (await it.blocked()).partition("\n")
        assert line.startswith(f"{method} blocks the event loop since ")
        assert line.endswith("; the handler's other calls wait")
        assert "self.gate." in stack
        assert "handler_loop" not in stack
        it.handler.gate.set()
        await running
        await wait_until(lambda: it.counters.blocked_s)
        assert it.reports.warning.startswith(f"{method} blocked the event loop for ")
        assert it.counters.blocked_s >= AFTER_S
        assert it.counters.blocks == 1


async def test_what_is_beside_all_methods_is_told_as_such() -> None:
    async with watched() as it:

        async def leave_behind() -> None:
            asyncio.get_running_loop().call_later(0.001, it.handler.gate.wait, 10)

        await it.loop.run(leave_behind)
        line, _, stack = (await it.blocked()).partition("\n")
        assert line.startswith("code outside of the handler's methods blocks")
        assert "wait" in stack


async def test_a_loop_that_waits_or_has_nothing_to_do_is_not_blocked() -> None:
    async with watched() as it:
        await it.start("rest")
        assert not it.counters.blocks
        assert it.reports.warning == ""


async def test_a_loop_that_has_nothing_to_do_is_not_blocked_however_long_it_is_not_run() -> None:
    """Its thread waits for work, and what it is asked for does not reach it."""
    loop, counters = OwnLoop(), ReplicaCounters()
    deaf: Any = SimpleNamespace(
        loop=SimpleNamespace(call_soon_threadsafe=lambda _: None, is_closed=lambda: False), thread=loop.thread
    )
    watch = LoopWatch(deaf, [], BlockReports(counters, time.monotonic, own_loop=True), AFTER_S)
    until = time.monotonic() + 5 * AFTER_S
    await wait_until(lambda: counters.blocks or time.monotonic() > until)
    assert not counters.blocks
    watch.close()
    await loop.close()


async def test_a_loop_that_has_ended_is_watched_no_more() -> None:
    async with watched() as it:
        await it.loop.close()
        await wait_until(lambda: not any(each.name == "loop-watch" for each in threading.enumerate()))


async def test_the_log_has_each_method_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    counters = ReplicaCounters()
    reports = BlockReports(counters, lambda: now, own_loop=False)

    def said() -> list[str]:
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return said

    with caplog.at_level(logging.WARNING):
        for number in range(5):
            reports.began("block", "stack of it\n", 0.5)
            reports.ended(0.7)
            assert len(said()) == (0 if number else 2)
        reports.began("another", "stack\n", 0.5)
        assert "by=another" in said()[0]
        now += LOG_GAP_S
        reports.began("block", "stack of it\n", 0.5)
        assert "left_out_before=4" in said()[0]
        reports.ended(2.0)
    assert counters.blocks == 7
    assert counters.blocked_s == pytest.approx(5 * 0.7 + 2.0)
    assert reports.warning.startswith("block blocked the event loop for 2.0 s at ")
    assert reports.warning.endswith("; 7 times so far\nstack of it\n")
    now += WARNS_FOR_S
    assert reports.warning == ""
