"""`def` methods: as many threads as calls may run and no more, lanes in order, outcomes in bursts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, cast

import pytest

from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.work import MAX_TURN_S
from replica_service.shell.executors import threads as thread_executor
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.executors.relay import OutcomeRelay
from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from slotmesh.handlers.context import context
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting

pytestmark = pytest.mark.asyncio


class Wordless(Exception):
    """Cannot even be told."""

    def __str__(self) -> str:
        raise SystemExit


@deployment(max_ongoing=4, prefetch=1000)
class Handler:
    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock
        self.gate = threading.Event()
        self.barrier = threading.Barrier(4, timeout=30)
        self.lock = threading.Lock()
        self.running = self.most_running = 0
        self.seen: list[bytes] = []
        self.threads: set[str] = set()

    def echo(self, payload: bytes) -> bytes:
        self.seen.append(payload)
        self.threads.add(threading.current_thread().name)
        return payload

    def meet(self, payload: bytes) -> bytes:
        """Returns once four calls are in here at the same time."""
        self.barrier.wait()
        return payload

    def wait(self, payload: bytes) -> bytes:
        with self.lock:
            self.seen.append(payload)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.gate.wait(5)
        with self.lock:
            self.running -= 1
        return payload

    def fail(self, payload: bytes) -> Any:
        match payload:
            case b"value":
                raise ValueError("no good")
            case b"exit":
                raise SystemExit(3)
            case b"interrupt":
                raise KeyboardInterrupt
            case b"wordless":
                raise Wordless
            case b"not bytes":
                return 5
            case _:
                pass
        return payload

    def take_time(self, payload: bytes) -> bytes:
        assert self.clock is not None
        self.clock.advance(float(payload))
        return payload

    def metadata(self, payload: bytes) -> bytes:
        return context().metadata.get("who", "nobody").encode()


async def test_quick_calls_stay_in_order_of_their_ids_and_come_back_in_bursts() -> None:
    async with hosting(Handler) as host:
        run = host.run("echo", [b"%d" % index for index in range(500)])
        outbox = await host.execute(run)
        assert host.results(run) == host.payloads(run)
        assert len(outbox.deliveries) < 500
        assert host.engine.scheduler.is_idle


async def test_as_many_calls_run_at_once_as_there_are_permits() -> None:
    async with hosting(Handler) as host:
        run = host.run("meet", [b"a"] * 8)
        await host.execute(run)
        assert host.results(run) == [b"a"] * 8


async def test_never_more_calls_or_threads_than_permits() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        host.engine.submit([host.run("wait", [b""] * 10), *(host.run("wait", [b""], key=f"k{n}") for n in range(5))])
        await wait_until(lambda: handler.running == 4)
        assert host.engine._executors.threads._threads == 4
        handler.gate.set()
        await host.answered(15)
        assert handler.most_running == 4
        assert host.engine._executors.threads._threads == 4


async def test_batches_that_compute_one_after_another_do_not_wander_through_threads() -> None:
    @deployment(max_ongoing=64, prefetch=1000)
    class Batches:
        def __init__(self) -> None:
            self.threads: set[str] = set()

        @batch(max_batch_size=8, batch_wait_timeout_s=0.0)
        def compute(self, payloads: list[bytes]) -> list[bytes]:
            self.threads.add(threading.current_thread().name)
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
            return payloads

    async with hosting(Batches) as host:
        await host.execute(host.run("compute", [b""] * 400))
        assert len(host.handler.threads) <= 6  # of 64: each has memory of its own, and is cold when its turn comes


class Exits:
    """Ends more than it should when it is looked at."""

    def tolist(self) -> list[int]:
        raise SystemExit


@deployment(max_ongoing=64, prefetch=1000)
class Batches:
    @batch(max_batch_size=8, batch_wait_timeout_s=0.0)
    def echo(self, payloads: list[bytes]) -> list[bytes]:
        return payloads

    @batch(max_batch_size=3)
    def mixed(self, items: list[int]) -> list[Any]:
        return [Exits() if item == 2 else item for item in items]

    def numbers(self, to: int) -> Iterator[Any]:
        yield from range(to)
        yield Exits()


@pytest.mark.parametrize("key", ["", "k"])
async def test_the_next_batch_is_under_way_before_results_are_seen_to_unless_lanes_wait_for_them(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_executor, "SLOW_BATCH_S", 0.0)
    monkeypatch.setattr(thread_executor, "HAND_OVER_S", 5.0)  # as long as it takes, on a machine that is busy
    taken: list[int] = []

    async with hosting(Batches) as host:
        put = host.outbox.results

        def results(first: int, payloads: Sequence[bytes], size: int, content_type: str) -> None:
            taken.append(host.engine._executors.threads._taken)
            put(first, payloads, size, content_type)

        monkeypatch.setattr(host.outbox, "results", results)
        began = time.monotonic()
        run = host.run("echo", [b"%d" % index for index in range(24)], key=key)
        await host.execute(run)
        assert host.results(run) == host.payloads(run)
        assert taken == ([1, 2, 3] if key else [2, 3, 3])
        assert time.monotonic() - began < 4, "nobody is waited for who does not come"


@pytest.mark.parametrize("key", ["", "k"])
async def test_whatever_one_call_raises_touches_no_other(key: str) -> None:
    async with hosting(Handler) as host:
        run = host.run("fail", [b"1", b"value", b"2", b"exit", b"interrupt", b"wordless", b"not bytes", b"3"], key=key)
        outbox = await host.execute(run)
        assert [result for result in host.results(run) if result] == [b"1", b"2", b"3"]
        messages = [outbox.failures_of[run.first + index].message for index in (1, 3, 4, 5, 6)]
        assert messages[:4] == ["ValueError: no good", "SystemExit: 3", "KeyboardInterrupt", "Wordless: (no text)"]
        assert messages[4].startswith("the result cannot be sent: application/octet-stream carries bytes, got int")
        assert {failure.executed for failure in outbox.failures_of.values()} == {Executed.YES}
        await wait_until(lambda: host.engine.scheduler.is_idle)


@pytest.mark.parametrize(("method", "results"), [("mixed", [b"1", None, b"3"]), ("numbers", [None] * 3)])
async def test_a_result_that_exits_when_it_is_read_fails_its_call_and_no_other(
    method: str, results: list[bytes | None]
) -> None:
    async with hosting(Batches) as host:
        run = host.run(method, [b"[1]", b"[2]", b"[3]"], content_type=JSON)
        await host.execute(run)
        assert host.results(run) == results
        await wait_until(lambda: host.engine.scheduler.is_idle)


async def test_a_lane_runs_in_order_one_at_a_time() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        payloads = [b"%d" % index for index in range(600)]
        runs = [host.run("echo", payloads[lo : lo + 100], key="k") for lo in range(0, 600, 100)]
        await host.execute(*runs)
        assert handler.seen == payloads


async def test_a_turn_of_some_length_lets_other_lanes_go_first() -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock, max_ongoing=1) as host:
        slow = host.run("take_time", [b"%.3f" % (MAX_TURN_S * 0.6)] * 5, key="slow")
        quick = host.run("echo", [b"q"], key="quick")
        await host.execute(slow, quick)
        assert host.outbox.order.index(quick.first) == 2


@pytest.mark.parametrize("key", ["", "k"])
async def test_no_call_starts_after_its_deadline(key: str) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock, max_ongoing=1) as host:
        run = host.run("take_time", [b"0.015"] * 5, key=key, time_left_s=0.04)
        outbox = await host.execute(run)
        assert host.results(run) == [b"0.015"] * 3 + [None] * 2
        assert outbox.failures_of[run.first + 4].reason is Reason.DEADLINE_IN_QUEUE


async def test_calls_of_a_turn_that_were_taken_back_are_answered_and_not_executed() -> None:
    async with hosting(Handler) as host:
        handler = host.handler
        run = host.run("wait", [b"0", b"1", b"2", b"3"], key="k")
        host.engine.submit([run])
        await wait_until(lambda: handler.running == 1)
        host.engine.cancel(host.link, [(run.first, run.first + 2)])
        handler.gate.set()
        await host.answered(4)
        assert handler.seen == [b"0", b"3"]
        assert [host.outbox.failures_of[run.first + index].reason for index in (1, 2)] == [Reason.CANCELLED] * 2


async def test_a_handler_can_read_the_metadata_of_its_call() -> None:
    async with hosting(Handler, max_ongoing=1) as host:
        runs = [host.run("metadata", [b""], metadata={"who": "ann"}), host.run("metadata", [b""])]
        await host.execute(*runs)
        assert [host.results(run) for run in runs] == [[b"ann"], [b"nobody"]]


async def test_calls_wait_where_the_machine_has_no_more_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, 0

    def start_at_times(thread: threading.Thread) -> None:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_at_times)
    async with hosting(Handler) as host:
        run = host.run("meet", [b"a"] * 8)
        await host.execute(run)
        assert host.results(run) == [b"a"] * 8
        assert host.engine._executors.threads._threads == 4
    assert refused == 3
    assert caplog.text.count("threads cannot be started") == 1


async def test_stopping_ends_idle_threads_and_waits_for_none() -> None:
    before = set(threading.enumerate())
    async with hosting(Handler) as host:
        handler = host.handler
        await host.execute(host.run("echo", [b""]))
        host.engine.submit([host.run("wait", [b""])])
        await wait_until(lambda: handler.running == 1)
        handlers = {each for each in set(threading.enumerate()) - before if each.name.startswith("handler-")}
        assert handlers
        began = time.monotonic()
        await host.engine.stop()
        assert time.monotonic() - began < 1
        handler.gate.set()
        await wait_until(lambda: not any(each.is_alive() for each in handlers))


@pytest.mark.parametrize("order", sorted({*permutations("aabbcc")}))
async def test_results_of_several_runs_are_told_to_their_own_calls_however_they_come(order: tuple[str, ...]) -> None:
    """Of each run they come in order; threads that end at the same time put them down in turns."""
    told: dict[tuple[str, int], bytes] = {}
    runs = {name: ReplicaRun(RouterPeer(), 1, [b""] * 2, ReplicaCallOptions(), "e", 0.0) for name in "abc"}
    names = {run: name for name, run in runs.items()}

    class Sink:
        def payloads(self, run: ReplicaRun, index: int, payloads: Sequence[bytes]) -> None:
            for at, payload in enumerate(payloads, index):
                assert told.setdefault((names[run], at), payload) is payload, "it was told twice"

        def post(self, event: object) -> None: ...

    relay = OutcomeRelay(cast("OutcomeSink", Sink()), asyncio.get_running_loop())
    at = Counter[str]()
    for name in order:
        relay.payloads(runs[name], at[name], (f"{name}{at[name]}".encode(),), ended=1)
        at[name] += 1
    await wait_until(lambda: len(told) == 6)
    assert told == {(name, index): f"{name}{index}".encode() for name in "abc" for index in (0, 1)}
