"""Generators in the engine: which of them begin, in which context, and the outcome of those that do not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from replica_service.core.call_metadata import HandlerCredit
from replica_service.core.events import StampEchoed
from slotmesh.codec import JSON, MSGPACK, decode, encode
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from slotmesh.handlers.context import context
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio


@deployment(max_ongoing=2, prefetch=0)
class Handler:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began: list[Any] = []
        self.closed: list[Any] = []
        self.seen: list[dict[str, str]] = []

    def hold_thread(self, payload: bytes) -> bytes:
        self.began.append(payload)
        self.gate.wait(10)
        return payload

    def count_in_thread(self, count: int) -> Iterator[int]:
        self.began.append(count)
        try:
            yield from range(count)
        finally:
            self.closed.append(count)

    def count_behind_gate(self, count: int) -> Iterator[int]:
        for number in range(count):
            if number == 255:
                self.gate.wait(10)
            yield number

    async def count(self, count: int) -> AsyncIterator[int]:
        self.began.append(count)
        try:
            for number in range(count):
                yield number
        finally:
            self.closed.append(count)

    async def stubborn(self, payload: bytes) -> AsyncIterator[bytes]:
        """Takes no cancelling for an end, and takes its time at the end."""
        try:
            yield payload
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                yield b"more"
        finally:
            async with asyncio.timeout(20.0):
                await asyncio.sleep(0)
            self.closed.append(payload)

    def failing_to_close(self, payload: bytes) -> Iterator[bytes]:
        try:
            while True:
                yield payload
        finally:
            raise RuntimeError("not at the end")

    async def metadata(self, payload: bytes) -> AsyncIterator[bytes]:
        self.seen.append(dict(context().metadata))
        yield payload

    def metadata_in_thread(self, payload: bytes) -> Iterator[bytes]:
        self.seen.append(dict(context().metadata))
        yield payload

    async def wait_for_metadata(self, payload: bytes) -> bytes:
        await asyncio.sleep(0)
        self.seen.append(dict(context().metadata))
        return payload

    @batch(max_batch_size=2, batch_wait_timeout_s=0.0)
    def count_together(self, counts: list[int]) -> Iterator[list[int]]:
        self.began.append(counts)
        for number in range(2):
            yield [number] * len(counts)


async def begun(host: Hosting, *calls: Any) -> None:
    await wait_until(lambda: host.handler.began == [*calls], what=f"{calls} have begun")


def count(host: Hosting, number: int, method: str = "count_in_thread", **options: Any) -> Any:
    return host.run(method, [encode(JSON, [number])], content_type=JSON, streaming=True, **options)


async def test_a_call_that_finds_no_thread_before_its_deadline_does_not_begin() -> None:
    async with hosting(Handler, max_ongoing=2) as host:
        host.engine._executors.threads._max_threads = lambda: 1
        host.engine.submit([host.run("hold_thread", [b"x"])])
        await begun(host, b"x")
        host.engine.submit([count(host, 2, time_left_s=0.02)])
        ((_, recipient, _),) = host.engine._executors.generators._running[host.link].values()
        await wait_until(lambda: recipient.verdict, what="its deadline has passed")
        host.handler.gate.set()
        await host.answered(2)
        failure = host.outbox.failures_of[2]
        assert (failure.reason, failure.executed) == (Reason.DEADLINE_IN_QUEUE, Executed.NO)
        assert host.handler.began == [b"x"]


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_call_that_is_taken_back_before_it_finds_a_thread_does_not_begin(key: str) -> None:
    async with hosting(Handler, max_ongoing=2) as host:
        host.engine._executors.threads._max_threads = lambda: 1
        host.engine.submit([host.run("hold_thread", [b"x"])])
        await begun(host, b"x")
        host.engine.submit([count(host, 2, key=key)])
        host.engine.cancel(host.link, [(2, 2)])
        host.handler.gate.set()
        await host.answered(2)
        failure = host.outbox.failures_of[2]
        assert (failure.reason, failure.executed) == (Reason.CANCELLED, Executed.NO)
        assert host.handler.began == [b"x"]
        assert host.engine.scheduler.is_idle


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("method", ["count_in_thread", "count", "count_together"])
async def test_a_call_whose_link_is_not_fresh_when_it_would_begin_waits_for_that(method: str, key: str) -> None:
    async with hosting(Handler, max_ongoing=4) as host:
        host.engine._executors.threads._max_threads = lambda: 1
        host.engine.submit([host.run("hold_thread", [b"x"])])
        await begun(host, b"x")
        run = count(host, 2, method, key=key)
        unsound = host.run(method, [encode(JSON, ["x"])], content_type=JSON, streaming=True)
        host.engine.submit([run, unsound])
        host.link.fresh_until = 0.0
        host.handler.gate.set()
        await host.answered(1)
        await wait_until(lambda: host.link.parked, what="it has come back")
        assert host.handler.began == [b"x"]
        host.engine.post(StampEchoed(host.link, host.clock.now()))
        await host.answered(3)
        assert host.outbox.values_of[run.first] == [b"0", b"1"]
        assert host.outbox.failures_of[unsound.first].reason is Reason.BAD_ARGUMENTS
        assert len(host.handler.began) == 2


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize("place", [0, 1])
async def test_a_batch_that_comes_back_leaves_out_what_was_taken_back(place: int, key: str) -> None:
    async with hosting(Handler, max_ongoing=4) as host:
        host.engine._executors.threads._max_threads = lambda: 1
        host.engine.submit([host.run("hold_thread", [b"x"])])
        await begun(host, b"x")
        payloads = [encode(JSON, [each]) for each in (1, 2)]
        run = host.run("count_together", payloads, content_type=JSON, key=key, streaming=True)
        host.engine.submit([run])
        taken_back = run.first + place
        host.engine.cancel(host.link, [(taken_back, taken_back)])
        host.link.fresh_until = 0.0
        host.handler.gate.set()
        await wait_until(lambda: host.link.parked, what="it has come back")
        host.engine.post(StampEchoed(host.link, host.clock.now()))
        await host.answered(3)
        failure = host.outbox.failures_of[taken_back]
        assert (failure.reason, failure.executed) == (Reason.CANCELLED, Executed.NO)
        assert host.handler.began == [b"x", [2 - place]]
        assert host.engine.scheduler.is_idle


async def test_what_is_taken_while_a_stint_ends_is_not_overlooked() -> None:
    """The thread has found that it must pause; before the loop hears of that, all values are taken."""
    async with hosting(Handler) as host:
        host.engine.submit([count(host, 300, "count_behind_gate")])
        await wait_until(lambda: len(host.outbox.values_of.get(1, ())) == 255, what="it stands at the gate")
        host.handler.gate.set()
        deadline = host.clock.now() + 5
        while not host.engine._executors.threads._sleepers:
            assert host.clock.now() < deadline, "the thread does not come back"
        host.engine.take(host.link, [1], [256])
        await host.answered(1)
        assert len(host.outbox.values_of[1]) == 300


@pytest.mark.parametrize("method", ["count", "count_in_thread"])
@pytest.mark.parametrize(
    ("credit", "ahead"), [(HandlerCredit(3, 1000), 3), (HandlerCredit(200, 25), 18), (HandlerCredit(1, 1), 1)]
)
async def test_a_handler_is_as_far_ahead_as_its_call_allows(method: str, credit: HandlerCredit, ahead: int) -> None:
    async with hosting(Handler) as host:
        host.engine.submit([count(host, 300, method, credit=credit)])
        values = host.outbox.values_of
        await wait_until(lambda: len(values.get(1, ())) == ahead, what="it is paused")
        await asyncio.sleep(0)
        host.engine.take(host.link, [1], [1])
        await wait_until(lambda: len(values[1]) > ahead or credit.bytes == 25, what="it goes on")
        assert len(values[1]) <= ahead + 1
        while not host.outbox.order:
            host.engine.take(host.link, [1], [credit.values])
            await asyncio.sleep(0)
        assert len(values[1]) == 300


async def test_what_a_call_does_at_its_end_is_not_cancelled() -> None:
    async with hosting(Handler) as host:
        run = host.run("stubborn", [b"x"], streaming=True)
        host.engine.submit([run])
        await wait_until(lambda: host.outbox.values_of, what="a value")
        host.engine.cancel(host.link, [(1, 1)])
        await host.answered(1)
        assert host.outbox.failures_of[1].reason is Reason.CANCELLED
        assert host.outbox.values_of == {1: [b"x"]}
        assert host.handler.closed == [b"x"]


async def test_one_that_fails_to_close_has_the_outcome_that_it_had() -> None:
    async with hosting(Handler) as host:
        host.engine.submit([host.run("failing_to_close", [b"x"], streaming=True)])
        await wait_until(lambda: len(host.outbox.values_of.get(1, ())) == 256, what="it is paused")
        host.engine.cancel(host.link, [(1, 1)])
        await host.answered(1)
        assert host.outbox.failures_of[1].reason is Reason.CANCELLED
        assert host.engine.scheduler.is_idle


@pytest.mark.parametrize("first", ["metadata", "metadata_in_thread", "wait_for_metadata"])
@pytest.mark.parametrize("second", ["metadata", "metadata_in_thread", "wait_for_metadata"])
async def test_metadata_is_nobody_elses(first: str, second: str) -> None:
    """What follows from the end of a call runs in no context of its handler."""
    async with hosting(Handler, max_ongoing=1, prefetch=10) as host:
        await host.execute(
            host.run(first, [b"x"], streaming=True, metadata={"a": "1"}), host.run(second, [b"x"], streaming=True)
        )
        assert host.handler.seen == [{"a": "1"}, {}]


@pytest.mark.parametrize("method", ["count", "count_in_thread"])
async def test_the_end_of_the_process_closes_what_runs(method: str) -> None:
    async with hosting(Handler) as host:
        host.engine.submit([count(host, 1000, method)])
        await wait_until(lambda: host.outbox.values_of, what="it runs")
        handler = host.handler
    if method == "count":
        assert handler.closed == [1000]


async def test_a_call_without_streaming_takes_no_credit() -> None:
    async with hosting(Handler) as host:
        run = host.run("count", [encode(MSGPACK, [5000])], content_type=MSGPACK)
        outbox = await host.execute(run)
        assert decode(MSGPACK, outbox.results_of[1]) == [*range(5000)]


async def test_paused_calls_are_taken_into_account_when_the_replica_is_reconfigured() -> None:
    async with hosting(Handler) as host:
        host.engine.submit([count(host, 300, "count")])
        await wait_until(lambda: len(host.outbox.values_of.get(1, ())) == 256, what="it is paused")
        host.engine.configure(max_ongoing=1, prefetch=1)
        host.engine.submit([count(host, 1, "count")])
        assert host.engine.scheduler.waiting == 1
        host.engine.take(host.link, [1], [100])
        await host.answered(2)
        assert host.outbox.ended_well == {1, 2}
