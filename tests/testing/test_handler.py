"""`slotmesh.testing.handler`: one replica in this process, called by the real client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

import slotmesh
import slotmesh.testing
from slotmesh.codec import JSON, OCTET_STREAM
from tests.support.wait import wait_until


@dataclass
class Image:
    pixels: list[float]


class Digits:
    """What a handler can be, in one."""

    def __init__(self, model: str = "nearest") -> None:
        self.model = model
        self.started = self.cancelled = 0
        self.batches: list[int] = []

    async def classify(self, image: Image) -> str:
        return f"{self.model}: {len(image.pixels)}"

    def thread(self) -> str:
        return threading.current_thread().name

    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    def count_in_thread(self, to: int) -> Iterator[int]:
        yield from range(to)

    @slotmesh.batch(max_batch_size=8, batch_wait_timeout_s=0.0)
    async def double(self, numbers: list[int]) -> list[int]:
        self.batches.append(len(numbers))
        return [number * 2 for number in numbers]

    async def wait(self) -> None:
        self.started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def fail(self) -> None:
        raise ValueError("no")

    def report(self, free: float) -> None:
        slotmesh.report(free=free)

    async def echo(self, payload: bytes) -> bytes:
        return payload

    async def size(self, text: str) -> int:
        return len(text)

    def shrink(self) -> None:
        self.double.set_max_batch_size(2)


@pytest.mark.asyncio
async def test_a_local_class_is_constructed_called_and_looked_at() -> None:
    class Greeter:
        def __init__(self, greeting: str) -> None:
            self.greeting = greeting

        async def hello(self, name: str) -> str:
            return f"{self.greeting}, {name}!"

    async with slotmesh.testing.handler(Greeter, greeting="Hello") as greeter:
        assert await greeter.hello("Ada") == "Hello, Ada!"
        assert await greeter.hello(name="Ada") == "Hello, Ada!"
        assert isinstance(greeter.instance, Greeter)
        greeter.instance.greeting = "Bye"
        assert await greeter.hello("Ada") == "Bye, Ada!"


@pytest.mark.asyncio
async def test_a_function_is_a_handler() -> None:
    async def double(number: int) -> int:
        return number * 2

    async with slotmesh.testing.handler(double) as endpoint:
        assert await endpoint(4) == 8
        assert await endpoint.method("__call__").map([1, 2]) == [2, 4]
        assert endpoint.instance is double


@pytest.mark.asyncio
async def test_arguments_are_encoded_checked_and_decoded() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        assert await digits.classify(Image([0.0, 1.0])) == "nearest: 2"
        assert await digits.options(content_type=JSON).classify({"pixels": [0]}) == "nearest: 1"
        with pytest.raises(slotmesh.BadArguments, match=r"pixels\[1\]"):
            await digits.classify({"pixels": [1.0, "x"]})
        with pytest.raises(slotmesh.MethodNotFound):
            await digits.paint()


@pytest.mark.asyncio
async def test_methods_run_where_they_would() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        assert await digits.thread() != threading.current_thread().name
        assert await digits.count(3) == [0, 1, 2]
        assert [value async for value in digits.count.stream(1000)] == list(range(1000))
        assert [value async for value in digits.count_in_thread.stream(3)] == [0, 1, 2]
        assert await digits.double.map(range(20)) == [2 * number for number in range(20)]
        assert max(digits.instance.batches) == 8


@pytest.mark.asyncio
async def test_failures_are_those_of_a_mesh() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        with pytest.raises(slotmesh.HandlerError, match="ValueError: no") as failed:
            await digits.fail()
        assert failed.value.executed is slotmesh.Executed.YES


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_is_cancelled_in_the_handler() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        call = digits.wait()
        await wait_until(lambda: digits.instance.started)
        call.cancel()
        await wait_until(lambda: digits.instance.cancelled == 1)


@pytest.mark.asyncio
async def test_deadlines_say_whether_the_call_was_executed() -> None:
    backend = slotmesh.testing.Backend(Digits, max_ongoing=1)
    async with slotmesh.testing.handler(backend) as digits:
        running, queued = digits.wait.options(timeout=1.0)(), digits.fail.options(timeout=0.01)()
        with pytest.raises(slotmesh.DeadlineInQueue) as in_queue:
            await queued
        with pytest.raises(slotmesh.DeadlineRunning) as in_handler:
            await running
        assert (in_queue.value.executed, in_handler.value.executed) == (slotmesh.Executed.NO, slotmesh.Executed.UNKNOWN)
        assert digits.instance.cancelled == 1


@pytest.mark.asyncio
async def test_a_thread_that_overruns_its_deadline_is_answered_before_it_returns() -> None:
    leave = threading.Event()

    def wait() -> None:
        leave.wait(10)

    async with slotmesh.testing.handler(wait) as endpoint:
        with pytest.raises(slotmesh.DeadlineRunning):
            await endpoint.options(timeout=1.5)()
        leave.set()


@pytest.mark.asyncio
async def test_lanes_keep_order_and_stop() -> None:
    seen: list[int] = []

    async def book(number: int) -> int:
        await asyncio.sleep(0)
        seen.append(number)
        if number == 2:
            slotmesh.abort("FAILED_PRECONDITION", "not this one")
        return number

    async with slotmesh.testing.handler(book) as ledger:
        async with ledger.ordered("account-7") as lane:
            for number in (0, 1):
                lane(number)
        stopping = ledger.ordered("account-8", after_failure="stop")
        first, second = stopping(2), stopping(3)
        with pytest.raises(slotmesh.HandlerError) as failed:
            await first
        assert failed.value.status == "FAILED_PRECONDITION"
        with pytest.raises(slotmesh.PredecessorFailed):
            await second
        assert seen == [0, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [100, 300_000, 6_000_000])
async def test_payloads_of_any_size_go_both_ways(size: int) -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        payload = bytes(size)
        assert await digits.echo.options(content_type=OCTET_STREAM)(payload) == payload
        assert await digits.size("x" * size) == size


@pytest.mark.asyncio
async def test_more_calls_than_a_window_go_through() -> None:
    async with slotmesh.testing.handler(slotmesh.testing.Backend(Digits, max_ongoing=4)) as digits:
        assert sum(await digits.double.map(range(20_000))) == 20_000 * 19_999


@pytest.mark.asyncio
async def test_what_the_constructor_raises_is_raised() -> None:
    class Dead:
        def __init__(self) -> None:
            raise LookupError("no model")

        def call(self) -> None: ...

    with pytest.raises(LookupError, match="no model"):
        async with slotmesh.testing.handler(Dead):
            pytest.fail("it was entered")
    with pytest.raises(TypeError, match="model"):
        async with slotmesh.testing.handler(Dead, model=1):
            pytest.fail("it was entered")


@pytest.mark.asyncio
async def test_what_is_no_handler_is_refused_with_what_it_is() -> None:
    with pytest.raises(TypeError, match="got 7"):
        async with slotmesh.testing.handler(7):  # type: ignore[arg-type]
            pytest.fail("it was entered")


@pytest.mark.asyncio
async def test_leaving_the_block_waits_for_calls_and_an_exception_does_not() -> None:
    began: list[int] = []
    finished: list[int] = []
    leave = asyncio.Event()

    async def work() -> None:
        began.append(1)
        await leave.wait()
        finished.append(1)

    async with slotmesh.testing.handler(work) as endpoint:
        endpoint()
        await wait_until(lambda: began)
        leave.set()
    assert finished == [1]

    leave.clear()
    left: list[asyncio.Future[None]] = []
    patient = slotmesh.testing.Backend(work, graceful_timeout_s=60.0)

    async def raise_in_the_block() -> None:
        async with slotmesh.testing.handler(patient) as endpoint:
            left.append(endpoint())
            await wait_until(lambda: len(began) == 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(20):
            await raise_in_the_block()
    with pytest.raises(slotmesh.CallCancelled):
        await left[0]
    assert finished == [1]


@pytest.mark.asyncio
async def test_what_needs_a_router_says_so() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        with pytest.raises(RuntimeError, match=r"slotmesh\.testing\.mesh"):
            await digits.size.unary("x")
        with pytest.raises(RuntimeError, match=r"slotmesh\.testing\.mesh"):
            async with digits.reserve():
                pytest.fail("it was entered")


@pytest.mark.asyncio
async def test_batch_settings_that_a_handler_turned_are_put_back() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        await digits.shrink()
        await digits.double.map(range(20))
        assert max(digits.instance.batches) == 2
    async with slotmesh.testing.handler(Digits) as digits:
        await digits.double.map(range(20))
        assert max(digits.instance.batches) == 8


@pytest.mark.asyncio
async def test_the_replica_keeps_nothing_of_calls_that_were_answered() -> None:
    async with slotmesh.testing.handler(Digits) as digits:
        await digits.double.map(range(100))
        engine = digits._replica.app.replica.engine
        assert engine is not None
        await wait_until(lambda: not engine.sessions.unacknowledged)


@pytest.mark.asyncio
async def test_no_task_is_left_behind() -> None:
    before = asyncio.all_tasks()
    async with slotmesh.testing.handler(Digits) as digits:
        digits.wait().cancel()
        assert await digits.size("x") == 1
    assert asyncio.all_tasks() == before


@pytest.mark.asyncio
async def test_what_a_handler_reports_is_visible_to_its_test() -> None:
    async with slotmesh.testing.handler(Digits) as digits, slotmesh.testing.handler(Digits) as others:
        await digits.report(0.5)
        assert digits.figures == {"free": 0.5}
        assert others.figures == {}
