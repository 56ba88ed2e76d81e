"""Lanes that stop: calls that are taken back while they run, and those that fail in another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from math import inf
from typing import Any

import pytest

import slotmesh
from replica_service.core.runs import ReplicaRun
from replica_service.core.session_records import Record
from slotmesh.errors import Executed, Reason
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, RememberingOutbox, hosting, open_link

pytestmark = pytest.mark.asyncio


@slotmesh.deployment(max_ongoing=4)
class Handler:
    """Waits until a test goes on; says what has started."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.gate = threading.Event()
        self.clock = FakeClock()

    async def waiting(self, payload: bytes) -> bytes:
        self.started.append(payload)
        await self._opened()
        return payload

    async def stubborn(self, payload: bytes) -> bytes:
        """Goes on when it is cancelled."""
        self.started.append(payload)
        while not self.gate.is_set():
            try:
                await self._opened()
            except asyncio.CancelledError:
                continue
        return payload

    def threaded(self, payload: bytes) -> bytes:
        self.started.append(payload)
        self.gate.wait(10)
        return payload

    @slotmesh.batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    async def batched(self, payloads: list[bytes]) -> list[bytes]:
        self.started += payloads
        await self._opened()
        return payloads

    @slotmesh.batch(max_batch_size=1, batch_wait_timeout_s=0.0)
    def batched_in_thread(self, payloads: list[bytes]) -> list[bytes]:
        self.started += payloads
        self.gate.wait(10)
        return payloads

    async def yielding(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        self.started.append(payload)
        await self._opened()
        yield payload

    def yielding_in_thread(self, payload: bytes) -> Iterator[bytes]:
        self.started.append(payload)
        self.gate.wait(10)
        yield payload

    async def quick(self, payload: bytes) -> Any:
        self.started.append(payload)
        match payload:
            case b"raises":
                raise ValueError("no")
            case b"odd":
                return object()
            case b"large":
                return bytes(100)
            case _:
                return payload

    async def takes_long(self, payload: bytes) -> bytes:
        return self.takes_long_in_thread(payload)

    def takes_long_in_thread(self, payload: bytes) -> bytes:
        """Longer than its deadline."""
        self.started.append(payload)
        self.clock.advance(2.0)
        return payload

    async def _opened(self) -> None:
        while not self.gate.is_set():  # noqa: ASYNC110 - tests open it on another loop
            await asyncio.sleep(0.001)


METHODS = (
    "waiting",
    "stubborn",
    "threaded",
    "batched",
    "batched_in_thread",
    "yielding",
    "yielding_in_thread",
)
both_loops = pytest.mark.parametrize("own_loop", [False, True], ids=["shared", "own"])


def of_session(run: ReplicaRun, first_id: int = 1, *, epoch: int = 1, recovers: bool = False) -> ReplicaRun:
    count = len(run.payloads)
    run.record = Record("s", epoch, range(first_id, first_id + count), count, attempt=0, recovers=recovers)
    return run


def stopping(host: Hosting, method: str, payloads: list[bytes], first_id: int = 1) -> ReplicaRun:
    """Calls of a lane that stops."""
    streaming = method.startswith("yielding")
    return of_session(host.run(method, payloads, key="k", stop_generation=1, streaming=streaming), first_id)


async def started(host: Hosting, *payloads: bytes) -> None:
    await wait_until(lambda: host.handler.started == list(payloads))


def reason_of(host: Hosting, run: ReplicaRun, index: int) -> Reason | None:
    failure = host.outbox.failures_of.get(run.first + index)
    return None if failure is None else failure.reason


@both_loops
@pytest.mark.parametrize("method", METHODS)
async def test_nothing_starts_behind_a_call_that_is_taken_back_while_it_runs(method: str, *, own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        run = stopping(host, method, [b"1", b"2", b"3"])
        later = stopping(host, method, [b"4"], 4)
        host.engine.submit([run, later])
        await started(host, b"1")
        host.engine.cancel(host.link, [(run.first, run.first)], tells_stopped=True)
        assert host.outbox.stopped_at == [(run.first, run.first)], "it is said at once"
        host.handler.gate.set()
        await host.answered(4)
        assert host.handler.started == [b"1"]
        assert {reason_of(host, run, 1), reason_of(host, run, 2), reason_of(host, later, 0)} == {
            Reason.PREDECESSOR_FAILED
        }


@both_loops
@pytest.mark.parametrize("method", METHODS)
async def test_what_is_taken_back_with_it_never_starts(method: str, *, own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        run = stopping(host, method, [b"1", b"2", b"3"])
        host.engine.submit([run])
        await started(host, b"1")
        host.engine.cancel(host.link, [(run.first, run.first + 2)])
        host.handler.gate.set()
        await host.answered(3)
        assert host.handler.started == [b"1"]
        assert not host.outbox.stopped_at, "nobody has asked"
        assert all(host.outbox.failures_of[run.first + at].executed is Executed.NO for at in (1, 2))


@both_loops
@pytest.mark.parametrize("method", ["stubborn", "threaded"])
async def test_a_call_that_had_ended_well_stops_nothing(method: str, *, own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        host.handler.gate.set()
        run = stopping(host, method, [b"1"])
        await host.execute(run)
        host.handler.gate.clear()
        rest = stopping(host, method, [b"2", b"3"], 2)
        host.engine.submit([rest])
        await started(host, b"1", b"2")
        host.engine.cancel(host.link, [(run.first, run.first)], tells_stopped=True)
        host.handler.gate.set()
        await host.answered(3)
        assert not host.outbox.stopped_at
        assert not host.outbox.failures_of


@both_loops
async def test_calls_that_go_on_are_not_held_up(*, own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        run = of_session(host.run("stubborn", [b"1", b"2"], key="k"))
        host.engine.submit([run])
        await started(host, b"1")
        host.engine.cancel(host.link, [(run.first, run.first)], tells_stopped=True)
        host.handler.gate.set()
        await host.answered(2)
        assert host.handler.started == [b"1", b"2"]
        assert not host.outbox.stopped_at


@both_loops
@pytest.mark.parametrize("method", ["stubborn", "threaded", "batched"])
async def test_a_call_that_another_router_has_joined_stops_its_lane_when_that_one_takes_it_back(
    method: str, *, own_loop: bool
) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        run = stopping(host, method, [b"0", b"1"])
        host.engine.submit([run])
        await started(host, b"0")
        link, _ = open_link(host.engine)
        link.outbox = RememberingOutbox()
        host.engine.reconcile([("s", 2, [(1, 1)])])
        recovery = of_session(ReplicaRun(link, 7, [b""], run.options, "e", 0.0), epoch=2, recovers=True)
        again = of_session(ReplicaRun(link, 8, [b"1"], run.options, "e", 0.0, inf), 2, epoch=2)
        host.engine.submit([recovery, again])
        host.engine.cancel(link, [(7, 7)], tells_stopped=True)
        assert link.outbox.stopped_at == [(7, 7)]
        host.handler.gate.set()
        await wait_until(lambda: len(link.outbox.order) == 2)
        assert link.outbox.failures_of[8].reason is Reason.PREDECESSOR_FAILED
        assert host.handler.started == [b"0"]


@both_loops
@pytest.mark.parametrize("failing", [b"raises", b"odd", b"large"])
async def test_nothing_starts_behind_a_call_that_fails_quickly(failing: bytes, *, own_loop: bool) -> None:
    async with hosting(Handler, own_loop=own_loop) as host:
        run = stopping(host, "quick", [b"0", failing, *[b"%d" % at for at in range(2, 50)]])
        run.max_result_bytes = 10
        await host.execute(run)
        assert host.handler.started == [b"0", failing]


@both_loops
@pytest.mark.parametrize("method", ["takes_long", "takes_long_in_thread"])
async def test_a_call_that_ends_after_its_deadline_has_failed_where_its_lane_stops(
    method: str, *, own_loop: bool
) -> None:
    async with hosting(Handler, own_loop=own_loop, clock=(clock := FakeClock())) as host:
        host.handler.clock = clock
        late = of_session(host.run(method, [b"1"], key="k", stop_generation=1, time_left_s=1.0))
        rest = stopping(host, method, [b"2"], 2)
        await host.execute(late, rest)
        other = of_session(host.run(method, [b"3"], key="j", time_left_s=1.0), 3)
        await host.execute(other)
        assert host.handler.started == [b"1", b"3"]
        failure = host.outbox.failures_of[late.first]
        assert (failure.reason, failure.executed) == (Reason.DEADLINE_RUNNING, Executed.YES)
        assert host.results(other) == [b"3"], "where nothing stops it is as good as ever"


async def test_a_call_of_no_session_is_taken_back_as_ever() -> None:
    async with hosting(Handler) as host:
        run = host.run("threaded", [b"1"], key="k")
        host.engine.submit([run])
        await started(host, b"1")
        host.engine.cancel(host.link, [(run.first, run.first)], tells_stopped=True)
        host.handler.gate.set()
        await host.answered(1)
        assert not host.outbox.stopped_at
