"""Methods that run on a loop of the handler's own: everything as on the engine's loop, which never waits for them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict, deque

import pytest

from replica_service.core.failures import TAKEN_BACK
from replica_service.core.work import StartCalls, WorkCommand
from slotmesh.codec import JSON
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting
from tests.unit.replica.own_loop_handler import Handler

pytestmark = pytest.mark.asyncio


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
        assert host.results(run) == host.payloads(run)
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


async def test_whatever_a_method_raises_is_its_calls_failure_and_no_more() -> None:
    async with hosting(Handler, own_loop=True) as host:
        ends = host.run("end", [b'["now"]'], content_type=JSON)
        await host.execute(ends)
        assert host.outbox.failures_of[ends.first].message == "SystemExit: now"
        lock = host.run("lock", [b'["lock"]', b'["fine"]'], content_type=JSON)
        await host.execute(lock)
        assert "cannot be sent" in host.outbox.failures_of[lock.first].message
        assert host.results(lock)[1] == b'"fine"'


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


async def test_a_call_that_comes_while_the_last_runner_finds_nothing_is_executed() -> None:
    async with hosting(Handler, own_loop=True) as host:
        executor = host.engine._executors.of_async
        late = host.run("echo", [b"late"])

        class Outdated(deque[WorkCommand]):
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
                first = again.first + chance.randrange(again.end)
                host.engine.cancel(host.link, [(first, first + chance.randrange(3))])
            if chance.random() < 0.3:
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.001]))
        await wait_until(lambda: len(host.outbox.order) == sum(run.end for run in runs), timeout=20)
        await wait_until(lambda: host.engine.scheduler.is_idle)
        started = keys(handler.started)
        for name in (b"a", b"b", b"c"):
            assert started[name] == sorted(started[name])
        assert len(handler.started) == len(set(handler.started))
