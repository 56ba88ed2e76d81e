"""`async def` methods: what a handler may rely on, and what runners owe to one another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from replica_service.core.work import MAX_TURN_S
from replica_service.shell.executors.runners import STEP_S
from slotmesh.codec import MSGPACK
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import deployment
from slotmesh.handlers.context import context
from slotmesh.transport.pump import StreamPump, WokenPumps
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import RememberingOutbox, hosting

pytestmark = pytest.mark.asyncio


@deployment
class Handler:
    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock
        self.gate = asyncio.Event()
        self.running = self.most_running = 0
        self.seen: list[bytes] = []
        self.turns_of_loop = 0
        self.turns_seen: list[int] = []
        self.tasks: list[asyncio.Task[Any] | None] = []

    async def echo(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        return payload

    async def wait(self, payload: bytes) -> bytes:
        """Waits for the gate where the payload says so."""
        self.seen.append(payload)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if payload.startswith(b"wait"):
                await self.gate.wait()
        finally:
            self.running -= 1
        return payload

    async def tell_task(self, payload: bytes) -> bytes:
        before = asyncio.current_task()
        self.tasks.append(before)
        if payload == b"wait":
            async with asyncio.timeout(20.0):
                await self.gate.wait()
        assert asyncio.current_task() is before
        return payload

    async def time_out(self, payload: bytes) -> bytes:
        try:
            async with asyncio.timeout(0.001):
                await self.gate.wait()
        except TimeoutError:
            return b"timed out"
        return payload

    async def fail(self, payload: bytes) -> bytes:
        if payload.startswith(b"wait"):
            await asyncio.sleep(0)
        match payload.removeprefix(b"wait "):
            case b"value":
                raise ValueError("no good")
            case b"exit":
                raise SystemExit(3)
            case b"interrupt":
                raise KeyboardInterrupt
            case b"cancelled":
                raise asyncio.CancelledError("by whom?")
            case b"closed":
                raise GeneratorExit
            case _:
                pass
        return payload

    async def take_time(self, payload: bytes) -> bytes:
        assert self.clock is not None
        self.clock.advance(float(payload))
        self.turns_seen.append(self.turns_of_loop)
        return payload

    async def add(self, a: int, b: int = 10) -> int:
        return a + b

    async def metadata(self, payload: bytes) -> bytes:
        if payload == b"wait":
            await asyncio.sleep(0)
        return context().metadata.get("who", "nobody").encode()


async def test_a_run_that_never_waits_is_delivered_in_one_piece() -> None:
    async with hosting(Handler, clock=FakeClock()) as host:
        run = host.run("echo", [b"%d" % index for index in range(300)])
        outbox = await host.execute(run)
        assert host.results(run) == host.payloads(run)
        assert outbox.deliveries == [300]
        assert host.engine.counters.calls == 300


async def test_calls_that_wait_run_side_by_side() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        run = host.run("wait", [b"wait"] * 200)
        host.engine.submit([run])
        await wait_until(lambda: handler.running == 200)
        handler.gate.set()
        await host.answered(200)
        assert host.results(run) == [b"wait"] * 200


async def test_a_call_that_waits_holds_up_nobody() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        payloads = [b"0", b"wait 1", b"2", b"3", b"wait 4", b"wait 5", b"6"]
        run = host.run("wait", payloads)
        host.engine.submit([run])
        await host.answered(4)
        assert sorted(host.outbox.results_of.values()) == [b"0", b"2", b"3", b"6"]
        handler.gate.set()
        await host.answered(7)
        assert host.results(run) == payloads
        assert host.engine.scheduler.is_idle


async def test_never_more_calls_than_permits() -> None:
    async with hosting(Handler, max_ongoing=3, prefetch=10) as host:
        handler = host.handler
        host.engine.submit([host.run("wait", [b"wait"] * 13)])
        await wait_until(lambda: handler.running == 3)
        handler.gate.set()
        await host.answered(13)
        assert handler.most_running == 3


async def test_each_call_that_waits_has_a_task_of_its_own_from_beginning_to_end() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        run = host.run("tell_task", [b"wait", b"quick", b"wait", b"wait"])
        host.engine.submit([run])
        await host.answered(1)
        handler.gate.set()
        await host.answered(4)
        assert host.results(run) == host.payloads(run)
        waited = [task for task, payload in zip(handler.tasks, host.payloads(run), strict=True) if payload == b"wait"]
        assert len(set(waited)) == 3


async def test_timeouts_work_inside_of_handlers() -> None:
    async with hosting(Handler) as host:
        run = host.run("time_out", [b""] * 5)
        await host.execute(run)
        assert host.results(run) == [b"timed out"] * 5


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("waits", [b"", b"wait "])
async def test_whatever_one_call_raises_touches_no_other(key: str, waits: bytes) -> None:
    async with hosting(Handler) as host:
        raising = [waits + kind for kind in (b"exit", b"interrupt", b"cancelled", b"closed")]
        payloads = [b"1", waits + b"value", b"2", *raising, b"3"]
        run = host.run("fail", payloads, key=key)
        outbox = await host.execute(run)
        assert [result for result in host.results(run) if result] == [b"1", b"2", b"3"]
        messages = [outbox.failures_of[run.first + index].message for index in (1, 3, 4, 5, 6)]
        assert messages[:2] == ["ValueError: no good", "SystemExit: 3"]
        assert messages[2:] == ["KeyboardInterrupt", "CancelledError: by whom?", "GeneratorExit"]
        assert {failure.executed for failure in outbox.failures_of.values()} == {Executed.YES}
        assert host.engine.scheduler.is_idle
        assert host.engine.counters.calls == 8
        assert host.engine.counters.failures[Reason.HANDLER_ERROR] == 5


async def test_a_lane_runs_one_after_another_in_one_task_however_they_wait() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        payloads = [b"0", b"wait 1", b"2", b"wait 3", b"4"]
        runs = [host.run("wait", payloads, key="k"), host.run("echo", [b"5"], key="k"), host.run("echo", [b"other"])]
        host.engine.submit(runs)
        await host.answered(2)
        assert handler.seen == [b"0", b"wait 1", b"other"]
        handler.gate.set()
        await host.answered(7)
        assert handler.seen == [b"0", b"wait 1", b"other", b"2", b"wait 3", b"4", b"5"]
        assert handler.most_running == 1


async def test_a_task_that_a_call_of_a_lane_has_kept_executes_no_other() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        handler.gate.set()
        run = host.run("tell_task", [b"quick", b"wait", b"quick", b"wait"], key="k")
        await host.execute(run)
        assert len(set(handler.tasks)) == 4


async def test_lanes_that_wait_run_side_by_side() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        host.engine.submit([host.run("wait", [b"wait", b"x"], key=f"k{index}") for index in range(20)])
        await wait_until(lambda: handler.running == 20)
        handler.gate.set()
        await host.answered(40)


async def test_a_turn_of_some_length_lets_other_lanes_go_first() -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock, max_ongoing=1) as host:
        slow = host.run("take_time", [b"%.3f" % (MAX_TURN_S * 0.6)] * 5, key="slow")
        quick = host.run("echo", [b"q"], key="quick")
        await host.execute(slow, quick)
        assert host.outbox.order.index(quick.first) == 2


async def test_no_call_starts_after_its_deadline() -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock) as host:
        for key in ("", "k"):
            run = host.run("take_time", [b"0.015"] * 5, key=key, time_left_s=0.04)
            outbox = await host.execute(run)
            assert host.results(run) == [b"0.015"] * 3 + [None] * 2
            assert outbox.failures_of[run.first + 4].reason is Reason.DEADLINE_IN_QUEUE
            assert outbox.failures_of[run.first + 4].executed is Executed.NO
        assert host.engine.scheduler.is_idle


async def test_calls_of_a_turn_that_were_taken_back_are_answered_and_not_executed() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        run = host.run("wait", [b"wait 0", b"1", b"2", b"3"], key="k")
        host.engine.submit([run])
        await wait_until(lambda: handler.running == 1)
        host.engine.cancel(host.link, [(run.first, run.first + 2)])
        handler.gate.set()
        await host.answered(4)
        assert handler.seen == [b"wait 0", b"3"]
        assert [host.outbox.failures_of[run.first + index].reason for index in (1, 2)] == [Reason.CANCELLED] * 2


@pytest.mark.parametrize("key", ["", "k"])
async def test_busy_handlers_let_the_loop_go_on(key: str) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock) as host:
        handler = host.handler

        def tick() -> None:
            handler.turns_of_loop += 1
            asyncio.get_running_loop().call_soon(tick)

        tick()
        await host.execute(host.run("take_time", [b"%.4f" % (STEP_S / 2)] * 16, key=key))
        assert len(set(handler.turns_seen)) >= 8
        assert max(host.outbox.deliveries) <= 3


async def test_arguments_are_checked_call_by_call() -> None:
    async with hosting(Handler) as host:
        run = host.run("add", [b"\x91\x01", b"\x91\xa1x", b"\x92\x01\x02", b"\x81\xa1a\x05"], content_type=MSGPACK)
        outbox = await host.execute(run)
        assert host.results(run) == [b"\x0b", None, b"\x03", b"\x0f"]
        failure = outbox.failures_of[run.first + 1]
        assert failure.reason is Reason.BAD_ARGUMENTS
        assert failure.executed is Executed.NO
        assert failure.message.startswith("args[0]: expected int, got str")


async def test_a_handler_can_read_the_metadata_of_its_call() -> None:
    async with hosting(Handler) as host:
        runs = [
            host.run("metadata", [b""]),
            host.run("metadata", [b"wait", b""], metadata={"who": "ann"}),
            host.run("metadata", [b""], metadata={"who": "bob"}),
            host.run("metadata", [b""]),
        ]
        await host.execute(*runs)
        assert [host.results(run) for run in runs] == [[b"nobody"], [b"ann", b"ann"], [b"bob"], [b"nobody"]]


async def test_stopping_ends_calls_that_wait() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        host.engine.submit([host.run("wait", [b"wait"] * 3), host.run("wait", [b"wait"], key="k")])
        await wait_until(lambda: handler.running == 4)
        await host.engine.stop()
        assert handler.running == 0
        assert host.outbox.order == []


async def test_a_function_is_called_under_the_empty_name() -> None:
    async def shout(payload: bytes) -> bytes:
        return payload.upper()

    async with hosting(shout) as host:
        run = host.run("", [b"a"])
        await host.execute(run)
        assert host.results(run) == [b"A"]


class WritingOutbox(RememberingOutbox):
    """Has each result written to a stream."""

    def __init__(self, woken: WokenPumps) -> None:
        super().__init__()
        self.pending: list[int] = []
        self.written: list[list[int]] = []
        self.pump: StreamPump[list[int]] = StreamPump(self._write, self._next_frame, woken)

    def results(self, first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
        super().results(first, payloads, size, content_type)
        self.pending.append(first)
        self.pump.wake()

    def _next_frame(self) -> list[int] | None:
        frame, self.pending = self.pending, []
        return frame or None

    async def _write(self, frame: list[int]) -> None:
        self.written.append(frame)


async def test_outcomes_are_written_together_in_the_turn_in_which_the_calls_ran() -> None:
    async with hosting(Handler) as it:
        it.link.outbox = outbox = WritingOutbox(it.engine.outcomes.woken)
        pumping = outbox.pump.start()
        await asyncio.sleep(0)
        it.engine.submit([it.run("echo", [b"a"]), it.run("echo", [b"b"]), it.run("echo", [b"c"])])
        assert not outbox.written
        await asyncio.sleep(0)
        assert outbox.written == [[1, 2, 3]]
        outbox.pump.stop()
        await pumping
