"""Executors stop where a router's link is no longer fresh, and what they give back starts when it is again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from replica_service.core.events import StampEchoed
from replica_service.core.runs import FRESH_S
from slotmesh.handlers import batch, deployment
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio


@deployment(max_ongoing=4)
class Handler:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.thread_gate = threading.Event()
        self.seen: list[bytes] = []

    async def wait(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        await self.gate.wait()
        return payload

    def wait_in_thread(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        self.thread_gate.wait(10)
        return payload

    @batch(max_batch_size=2)
    async def pair(self, items: list[bytes]) -> list[bytes]:
        self.seen += items
        return items

    def open(self) -> None:
        self.gate.set()
        self.thread_gate.set()


def falls_silent(host: Hosting, clock: Any) -> None:
    """As if the process had been stopped: what was handed to executors has not started yet."""
    host.link.fresh_until = clock.now()


@pytest.mark.parametrize("method", ["wait", "wait_in_thread"])
async def test_a_turn_stops_between_calls(method: str) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock=clock) as host:
        host.engine.submit([host.run(method, [b"1", b"2", b"3"], key="k")])
        await wait_until(lambda: host.handler.seen)
        falls_silent(host, clock)
        host.handler.open()
        await host.answered(1)
        await wait_until(lambda: host.link.parked)
        assert host.handler.seen == [b"1"]
        assert host.engine.scheduler.in_use == 0
        host.engine.post(StampEchoed(host.link, clock.now() - FRESH_S))
        assert host.link.parked, "the stamp was too old"
        host.engine.post(StampEchoed(host.link, clock.now()))
        await host.answered(3)
        assert host.handler.seen == [b"1", b"2", b"3"]


@pytest.mark.parametrize("method", ["wait", "wait_in_thread", "pair"])
async def test_what_executors_have_not_started_comes_back(method: str) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock=clock) as host:
        host.handler.open()
        falls_silent(host, clock)
        host.engine.submit([host.run(method, [b"1", b"2", b"3", b"4"])])
        clock.advance(1.0)
        await wait_until(lambda: host.link.parked)
        assert not host.handler.seen
        host.engine.post(StampEchoed(host.link, clock.now()))
        await host.answered(4)
        assert sorted(host.handler.seen) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("method", ["wait", "pair"])
async def test_work_that_was_handed_over_before_the_link_fell_silent_comes_back(method: str) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock=clock) as host:
        host.handler.open()
        host.engine.submit([host.run(method, [b"1", b"2"]), host.run(method, [b"3", b"4"], key="k")])
        falls_silent(host, clock)
        await wait_until(lambda: host.link.parked)
        assert not host.handler.seen
        assert host.engine.scheduler.in_use == 0
        host.engine.post(StampEchoed(host.link, clock.now()))
        await host.answered(4)
        assert sorted(host.handler.seen) == [b"1", b"2", b"3", b"4"]


async def test_a_link_that_ends_takes_along_what_executors_have_not_started() -> None:
    async with hosting(Handler) as host:
        host.engine.submit([host.run("wait", [b"1", b"2"]), host.run("pair", [b"3", b"4"])])
        host.engine.close(host.link)
        await asyncio.wait_for(host.engine.idle(), 5)
        assert not host.handler.seen
