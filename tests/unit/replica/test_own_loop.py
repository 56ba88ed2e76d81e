"""Methods that run on a loop of the handler's own: everything as on the engine's loop, and nobody waits for them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from replica_service.core.commands import StartCalls, Work
from replica_service.core.records import Record
from replica_service.core.verdicts import CANCELLED, CUT_OFF, TAKEN_BACK
from replica_service.shell.executors.own_loop import OwnLoopExecutor
from replica_service.shell.executors.runners import STEP_S
from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting

pytestmark = pytest.mark.asyncio


@deployment(max_ongoing=64)
class Handler:
    """What its calls did is written down on the handler's thread, and read on the test's."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.ended: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()
        """What `block` waits for, with the whole loop."""
        self.is_open = False
        """What `wait` waits for."""

    async def echo(self, payload: bytes) -> bytes:
        self.threads.add(threading.get_ident())
        self.started.append(payload)
        return payload

    async def pause(self, payload: bytes) -> bytes:
        self.started.append(payload)
        await asyncio.sleep(0.001)
        self.ended.append(payload)
        return payload

    async def wait(self, payload: bytes) -> bytes:
        self.started.append(payload)
        try:
            await wait_until(lambda: self.is_open, timeout=10)
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise
        return payload

    async def block(self, payload: bytes) -> bytes:
        self.started.append(payload)
        self.gate.wait(10)
        return payload

    def thread(self, payload: bytes) -> bytes:
        return payload

    @batch(max_batch_size=4)
    async def many(self, items: list[bytes]) -> list[bytes]:
        await asyncio.sleep(0)
        self.threads.add(threading.get_ident())
        return items

    async def count(self, to: int) -> AsyncIterator[int]:
        self.threads.add(threading.get_ident())
        for number in range(to):
            yield number
            await asyncio.sleep(0)

    async def endless(self, first: int) -> AsyncIterator[int]:
        try:
            while True:
                yield first
                first += 1
        finally:
            await asyncio.sleep(0.001)
            self.ended.append(b"endless")

    async def careful(self) -> AsyncIterator[int]:
        try:
            self.started.append(b"careful")
            self.gate.wait(10)
            yield 1
        finally:
            await asyncio.sleep(0.001)
            self.ended.append(b"careful")

    async def end(self, how: str) -> None:
        raise SystemExit(how)

    async def lock(self, name: str) -> object:
        return threading.Lock() if name == "lock" else name


async def passed(seconds: float) -> None:
    """Returns when this time is over: it is what the test is about."""
    until = time.monotonic() + seconds
    await wait_until(lambda: time.monotonic() >= until)


def keys(payloads: list[bytes]) -> dict[bytes, list[bytes]]:
    """Payloads `KEY/NUMBER` by key."""
    lanes: dict[bytes, list[bytes]] = defaultdict(list)
    for payload in payloads:
        lanes[payload.partition(b"/")[0]].append(payload)
    return lanes


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("method", ["echo", "pause", "thread", "many"])
async def test_methods_of_each_kind_have_their_results(method: str, key: str) -> None:
    async with hosting(Handler, own_loop=True) as host:
        run = host.run(method, [b"%d" % number for number in range(50)], key=key)
        await host.execute(run)
        assert host.results(run) == run.payloads
        assert threading.get_ident() not in host.handler.threads


async def test_results_of_many_calls_come_together() -> None:
    async with hosting(Handler, own_loop=True) as host:
        run = host.run("pause", [b"%d" % number for number in range(64)])
        await host.execute(run)
        assert max(host.outbox.deliveries) > 8


async def test_neighbours_of_different_keys_are_executed_each_once_and_in_order() -> None:
    async with hosting(Handler, own_loop=True) as host:
        names = [f"key-{number}" for number in range(20)]
        runs = [
            host.run(method, [f"{name}/{number}".encode()], key=name)
            for number, method in enumerate(["echo", "pause", "echo"] * 5)
            for name in names
        ]
        await host.execute(*runs)
        for name, lane in keys(host.handler.started).items():
            assert lane == [b"%s/%d" % (name, number) for number in range(15)]


async def test_values_of_a_generator_come_and_it_is_stepped_on_its_loop() -> None:
    async with hosting(Handler, own_loop=True) as host:
        run = host.run("count", [b"[5]"], content_type=JSON, streaming=True)
        await host.execute(run)
        assert host.outbox.values_of[run.first] == [b"0", b"1", b"2", b"3", b"4"]
        listed = host.run("count", [b"[3]"], content_type=JSON)
        await host.execute(listed)
        assert host.results(listed) == [b"[0,1,2]"]
        assert threading.get_ident() not in host.handler.threads


async def test_a_generator_that_nobody_reads_is_paused_and_closed_when_it_is_cancelled() -> None:
    async with hosting(Handler, own_loop=True) as host:
        run = host.run("endless", [b"[0]"], content_type=JSON, streaming=True)
        host.engine.submit([run])
        await wait_until(lambda: len(host.outbox.values_of.get(run.first, ())) == 256)
        host.engine.take(host.link, [run.first], [10])
        await wait_until(lambda: len(host.outbox.values_of[run.first]) == 266)
        host.engine.cancel(host.link, [(run.first, run.first)])
        await host.answered(1)
        assert host.outbox.failures_of[run.first] is TAKEN_BACK
        assert host.handler.ended == [b"endless"]


async def test_a_generator_that_closes_is_not_disturbed_by_what_was_said_before() -> None:
    async with hosting(Handler, own_loop=True) as host:
        run = host.run("careful", [b"[]"], content_type=JSON, streaming=True)
        host.engine.submit([run])
        await wait_until(lambda: host.handler.started)
        host.engine.cancel(host.link, [(run.first, run.first)])
        host.handler.gate.set()
        await host.answered(1)
        assert host.outbox.failures_of[run.first] is TAKEN_BACK
        assert host.handler.ended == [b"careful"]


async def test_whatever_a_method_raises_is_its_calls_failure_and_no_more() -> None:
    async with hosting(Handler, own_loop=True) as host:
        ends = host.run("end", [b'["now"]'], content_type=JSON)
        await host.execute(ends)
        assert host.outbox.failures_of[ends.first].message == "SystemExit: now"
        lock = host.run("lock", [b'["lock"]', b'["fine"]'], content_type=JSON)
        await host.execute(lock)
        assert "cannot be sent" in host.outbox.failures_of[lock.first].message
        assert host.results(lock)[1] == b'"fine"'


async def test_a_call_that_waits_is_cancelled() -> None:
    async with hosting(Handler, own_loop=True) as host:
        run = host.run("wait", [b"0", b"1", b"2"])
        host.engine.submit([run])
        await wait_until(lambda: len(host.handler.started) == 3)
        host.engine.cancel(host.link, [(run.first + 1, run.first + 1)])
        await host.answered(1)
        assert host.outbox.failures_of == {run.first + 1: TAKEN_BACK}
        assert host.handler.cancelled == [b"1"]
        host.handler.is_open = True
        await host.answered(3)
        assert host.results(run) == [b"0", None, b"2"]


async def test_a_handler_that_keeps_its_loop_keeps_nobody_else() -> None:
    async with hosting(Handler, own_loop=True) as host:
        blocked = host.run("block", [b"b"])
        host.engine.submit([blocked])
        await wait_until(lambda: host.handler.started)
        behind, beside = host.run("echo", [b"e"]), host.run("thread", [b"t"])
        host.engine.submit([behind, beside])
        await host.answered(1)
        assert host.results(beside) == [b"t"]
        host.handler.gate.set()
        await host.answered(3)
        assert host.results(behind) == [b"e"]


async def test_what_is_taken_back_while_the_loop_is_kept_never_starts() -> None:
    async with hosting(Handler, own_loop=True) as host:
        first = host.run("block", [b"%d" % number for number in range(20)])
        later = host.run("echo", [b"later-%d" % number for number in range(5)])
        host.engine.submit([first])
        await wait_until(lambda: host.handler.started)
        host.engine.submit([later])
        # What is in the queue is answered at once, what the blocked runner holds when it has let go.
        host.engine.cancel(host.link, [(later.first, later.first + 3), (first.first + 5, first.first + 14)])
        await host.answered(4)
        assert all(host.outbox.failures_of[later.first + index] is CANCELLED for index in range(4))
        await passed(2 * STEP_S)  # what a runner may take for its step
        host.handler.gate.set()
        await host.answered(25)
        assert all(host.outbox.failures_of[first.first + index] is CANCELLED for index in range(5, 15))
        assert sorted(host.handler.started) == sorted(
            [b"later-4", *(b"%d" % number for number in (*range(5), *range(15, 20)))]
        )


async def test_calls_of_a_turn_that_are_taken_back_while_the_loop_is_kept_never_start() -> None:
    async with hosting(Handler, own_loop=True) as host:
        lane = host.run("block", [b"%d" % number for number in range(6)], key="k")
        host.engine.submit([lane])
        await wait_until(lambda: host.handler.started)
        host.engine.cancel(host.link, [(lane.first + 1, lane.first + 3)])
        host.handler.gate.set()
        await host.answered(6)
        assert all(host.outbox.failures_of[lane.first + index] is CANCELLED for index in range(1, 4))
        assert host.handler.started == [b"0", b"4", b"5"]


@pytest.mark.parametrize("how", ["cancel", "cut off"])
async def test_what_is_taken_back_right_after_a_runners_first_step_never_starts(how: str) -> None:
    async with hosting(Handler, own_loop=True) as host:
        executor = host.engine._executors.of_async
        assert isinstance(executor, OwnLoopExecutor)
        run = host.run("wait", [b"%d" % number for number in range(6)])

        def say() -> None:
            if how == "cancel":
                executor._cancel_here(run.link, [(run.first + 2, run.first + 3)])
            else:
                executor._cut_off_here()

        def make_task(loop: asyncio.AbstractEventLoop, work: Any, **given: Any) -> asyncio.Task[Any]:
            """What the engine says comes between the runner and what it has to do afterwards."""
            loop.set_task_factory(None)
            task = asyncio.Task(work, loop=loop, **given)
            loop.call_soon(say)
            return task

        executor._loop.call_soon_threadsafe(executor._loop.set_task_factory, make_task)
        host.engine.submit([run])
        if how == "cancel":
            await wait_until(lambda: len(host.handler.started) == 4)
            host.handler.is_open = True
            await host.answered(6)
            assert host.outbox.failures_of == {run.first + 2: CANCELLED, run.first + 3: CANCELLED}
        else:
            host.engine.scheduler.drain(host.clock.now())
            await host.answered(6)
            assert host.handler.started == [b"0"]
            assert host.outbox.failures_of == {run.first: CUT_OFF}
            assert len(host.outbox.refusals_of) == 5


async def test_calls_whose_time_is_over_while_the_loop_is_kept_never_start() -> None:
    async with hosting(Handler, own_loop=True) as host:
        host.engine.submit([host.run("block", [b"b"])])
        await wait_until(lambda: host.handler.started)
        late = host.run("echo", [b"late"], time_left_s=0.01)
        host.engine.submit([late])
        await passed(0.02)
        host.handler.gate.set()
        await host.answered(2)
        assert host.outbox.failures_of[late.first].reason is Reason.DEADLINE_IN_QUEUE
        assert host.outbox.failures_of[late.first].executed is Executed.NO


@pytest.mark.parametrize("method", ["wait", "block"])
async def test_a_turn_that_runs_ends_where_it_is_held(method: str) -> None:
    async with hosting(Handler, own_loop=True) as host:
        lane = host.run(method, [b"%d" % number for number in range(10)], key="k")
        lane.record = Record("s", 1, range(1, 11), 10, attempt=0, recovers=False)
        host.engine.submit([lane])
        await wait_until(lambda: host.handler.started)
        [(_, _, report)] = host.engine.reconcile([("s", 2, [(1, 10)])])
        assert list(report.running) == [(1, 1)]
        host.handler.is_open = True
        host.handler.gate.set()
        await host.answered(10)
        assert len(host.handler.started) == 1
        assert len(host.outbox.refusals_of) == 9


async def test_a_call_that_comes_while_the_last_runner_finds_nothing_is_executed() -> None:
    async with hosting(Handler, own_loop=True) as host:
        executor = host.engine._executors.of_async
        late = host.run("echo", [b"late"])

        class Outdated(deque[Work]):
            """Says once that it is empty when it no longer is."""

            def __len__(self) -> int:
                length = super().__len__()
                if not length and executor._runners.generation == 1:  # asked at the end of the first one
                    executor._runners.queue = deque(self)
                    executor.start(StartCalls(late, 0, 1))
                return length

        executor._runners.queue = Outdated()
        host.engine.submit([host.run("echo", [b"first"])])
        await wait_until(lambda: len(host.handler.started) == 2)
        assert host.handler.started == [b"first", b"late"]


async def test_calls_of_a_router_that_is_gone_are_cancelled() -> None:
    async with hosting(Handler, own_loop=True) as host:
        host.engine.submit([host.run("wait", [b"0", b"1"])])
        await wait_until(lambda: len(host.handler.started) == 2)
        host.engine.close(host.link)
        await wait_until(lambda: sorted(host.handler.cancelled) == [b"0", b"1"])
        await wait_until(lambda: host.engine.scheduler.is_idle)


async def test_what_still_runs_at_the_end_of_the_grace_is_cancelled() -> None:
    async with hosting(Handler, own_loop=True) as host:
        runs = host.run("wait", [b"0"]), host.run("wait", [b"1"], key="k")
        host.engine.submit(runs)
        await wait_until(lambda: len(host.handler.started) == 2)
        host.engine.cut_off()
        await host.answered(2)
        assert [host.outbox.failures_of[run.first] for run in runs] == [CUT_OFF] * 2


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_session_that_went_elsewhere_hears_what_has_started_and_gets_the_rest_back(key: str) -> None:
    async with hosting(Handler, own_loop=True) as host:
        host.engine.submit([host.run("block", [b"b"])])
        await wait_until(lambda: host.handler.started)
        run = host.run("echo", [b"%d" % number for number in range(10)], key=key)
        run.record = Record("s", 1, range(1, 11), 10, attempt=0, recovers=False)
        host.engine.submit([run])
        [(_, _, report)] = host.engine.reconcile([("s", 2, [(1, 10)])])
        assert not report.running
        await host.answered(10)
        assert len(host.outbox.refusals_of) == 10
        host.handler.gate.set()
        await host.answered(11)
        assert host.handler.started == [b"b"]


async def test_an_engine_stops_although_the_handler_keeps_its_loop() -> None:
    began = time.monotonic()
    async with hosting(Handler, own_loop=True) as host:
        handler = host.handler
        host.engine.submit([host.run("block", [b"b"]), host.run("wait", [b"w"])])
        await wait_until(lambda: handler.started)
    assert time.monotonic() - began < 5.0
    handler.gate.set()


@pytest.mark.parametrize("seed", range(4))
async def test_each_call_has_one_outcome_whatever_happens(seed: int) -> None:
    """The outbox fails where a call is answered twice."""
    chance = random.Random(seed)
    async with hosting(Handler, own_loop=True) as host:
        handler = host.handler
        handler.gate.set()
        runs = []
        for number in range(400):
            key = chance.choice(["", "", "a", "b", "c"])
            method = chance.choice(["echo", "pause", "echo", "thread", "many", "block"])
            count = chance.choice([1, 1, 1, 3, 40])
            names = [f"{key or number}/{number:03}-{index:02}".encode() for index in range(count)]
            run = host.run(method, names, key=key, time_left_s=chance.choice([60.0, 60.0, 0.002]))
            runs.append(run)
            host.engine.submit([run])
            if chance.random() < 0.2:
                again = chance.choice(runs)
                first = again.first + chance.randrange(len(again.payloads))
                host.engine.cancel(host.link, [(first, first + chance.randrange(3))])
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.001]))
        await wait_until(lambda: len(host.outbox.order) == sum(len(run.payloads) for run in runs), timeout=20)
        await wait_until(lambda: host.engine.scheduler.is_idle)
        started = keys(handler.started)
        for name in (b"a", b"b", b"c"):
            assert started[name] == sorted(started[name])
        assert len(handler.started) == len(set(handler.started))
