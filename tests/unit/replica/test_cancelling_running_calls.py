"""Calls that are taken back while they run: cancelled like any coroutine, without harm to others."""

from __future__ import annotations

import asyncio

import pytest

from slotmesh.errors import Executed, Reason
from slotmesh.handlers import deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting, open_link

pytestmark = pytest.mark.asyncio


@deployment
class Handler:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began: list[bytes] = []
        self.cancelled: list[bytes] = []

    async def wait(self, payload: bytes) -> bytes:
        self.began.append(payload)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise
        async with asyncio.timeout(20.0), asyncio.TaskGroup() as tasks:  # both look at how often the task was cancelled
            tasks.create_task(asyncio.sleep(0))
        return payload

    async def insist(self, payload: bytes) -> bytes:
        self.began.append(payload)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(payload)
        return payload

    async def insist_once(self, payload: bytes) -> bytes:
        await self.insist(payload)
        return await self.wait(payload)

    async def cancel_itself(self, payload: bytes) -> bytes:
        """Where the payload is `now`, and nothing comes of it while it runs; the others wait."""
        if payload.startswith(b"now"):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if payload == b"now fail":
                raise ValueError(payload)
            return payload
        await asyncio.sleep(0)
        async with asyncio.timeout(20.0), asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(0))
        return payload


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_call_that_waits_is_cancelled_and_its_permit_is_free(key: str) -> None:
    async with hosting(Handler, max_ongoing=4) as host:
        first = host.run("wait", [b"0"], key=key)
        host.engine.submit([first])
        await wait_until(lambda: host.handler.began == [b"0"])
        host.engine.cancel(host.link, [(first.first, first.first)])
        await host.answered(1)
        failure = host.outbox.failures_of[first.first]
        assert (failure.reason, failure.executed) == (Reason.CANCELLED, Executed.UNKNOWN)
        assert host.handler.cancelled == [b"0"]
        assert host.engine.scheduler.is_idle


async def test_the_others_of_the_run_go_on() -> None:
    async with hosting(Handler, max_ongoing=8) as host:
        run = host.run("wait", [b"%d" % index for index in range(6)])
        host.engine.submit([run])
        await wait_until(lambda: len(host.handler.began) == 6)
        host.engine.cancel(host.link, [(run.first + 1, run.first + 2), (run.first + 4, run.first + 4), (99, 200)])
        await host.answered(3)
        assert sorted(host.handler.cancelled) == [b"1", b"2", b"4"]
        host.handler.gate.set()
        await host.answered(6)
        assert host.results(run) == [b"0", None, None, b"3", None, b"5"]


async def test_a_lane_goes_on_with_the_next_call_in_good_order() -> None:
    async with hosting(Handler) as host:
        run = host.run("wait", [b"0", b"1", b"2"], key="k")
        host.engine.submit([run])
        await wait_until(lambda: host.handler.began == [b"0"])
        host.engine.cancel(host.link, [(run.first, run.first)])
        await wait_until(lambda: host.handler.began == [b"0", b"1"])
        host.handler.gate.set()
        await host.answered(3)
        assert host.results(run) == [None, b"1", b"2"]


async def test_a_handler_that_goes_on_all_the_same_is_answered_once() -> None:
    async with hosting(Handler) as host:
        run = host.run("insist", [b"0", b"1"], key="k")
        host.engine.submit([run])
        await wait_until(lambda: host.handler.began == [b"0"])
        host.engine.cancel(host.link, [(run.first, run.first)])
        await wait_until(lambda: host.handler.began == [b"0", b"1"])
        assert host.results(run) == [b"0", None]
        host.handler.gate.set()
        await host.answered(2)
        assert host.results(run) == [b"0", b"1"]


@pytest.mark.parametrize("key", ["", "k"])
async def test_one_that_went_on_is_cancelled_once_more_at_the_end_of_the_grace(key: str) -> None:
    async with hosting(Handler) as host:
        run = host.run("insist_once", [b"0"], key=key)
        host.engine.submit([run])
        await wait_until(lambda: host.handler.began == [b"0"])
        host.engine.cancel(host.link, [(run.first, run.first)])
        host.engine.cancel(host.link, [(run.first, run.first)])  # that is one and the same
        await wait_until(lambda: host.handler.began == [b"0", b"0"])
        assert host.handler.cancelled == [b"0"]
        host.engine.cut_off()
        await host.answered(1)
        assert host.handler.cancelled == [b"0", b"0"]


@pytest.mark.parametrize("keys", [("", ""), ("k", "k"), ("a", "b")])
@pytest.mark.parametrize("own_loop", [False, True])
async def test_a_handler_that_cancels_its_own_task_hits_no_other_call(keys: tuple[str, str], own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        payloads = [b"now", b"1", b"now fail", b"2", b"now", b"now", b"3"]
        runs = [host.run("cancel_itself", payloads, key=key) for key in keys]
        await host.execute(*runs)
        for run in runs:
            assert host.results(run) == [None if payload == b"now fail" else payload for payload in payloads]
            assert host.outbox.failures_of[run.first + 2].message.startswith("ValueError")
        await wait_until(lambda: host.engine.scheduler.is_idle)


async def test_another_routers_calls_are_left_alone() -> None:
    async with hosting(Handler) as host:
        mine = host.run("wait", [b"mine"])
        host.engine.submit([mine])
        other, _ = open_link(host.engine)
        await wait_until(lambda: host.handler.began == [b"mine"])
        host.engine.cancel(other, [(mine.first, mine.first)])
        host.handler.gate.set()
        await host.answered(1)
        assert host.results(mine) == [b"mine"]
