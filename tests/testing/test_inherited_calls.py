"""Calls that handlers make while they execute calls: the time these have left, their traces, and their cancellation."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import slotmesh
import slotmesh.testing
from slotmesh.client.calls.call_spec import rounded_down
from slotmesh.testing import Backend
from tests.support.rank_handler import Rank
from tests.support.wait import wait_until, within

TIMEOUT_S = 20.0


class Inherits:
    """Tells what the calls that it makes have left, and their traces."""

    async def left(self, timeout: float | None = None, inherits: bool = True) -> float | None:
        rank = slotmesh.mesh().endpoint("rank").options(inherits=inherits)
        left: float | None = await rank.left.options(timeout=timeout)()
        return left

    async def left_of_task(self) -> float | None:
        async def ask() -> float | None:
            left: float | None = await slotmesh.mesh().endpoint("rank").left()
            return left

        return await asyncio.create_task(ask())

    async def left_in_lane(self) -> float | None:
        left: float | None = await slotmesh.mesh().endpoint("rank").ordered("k", after_failure="stop").left()
        return left

    async def unary_left(self) -> float | None:
        left: float | None = await slotmesh.mesh().endpoint("rank").left.unary()
        return left

    async def streamed_left(self) -> float | None:
        lefts: list[float | None] = [each async for each in slotmesh.mesh().endpoint("rank").left.stream()]
        return lefts[0]

    async def mapped_left(self) -> float | None:
        lefts: list[float | None] = await slotmesh.mesh().endpoint("rank").left_of.map([1, 2])
        assert len(set(lefts)) <= 2
        return lefts[0]

    def left_in_thread(self) -> float | None:
        left: float | None = slotmesh.mesh_sync().endpoint("rank").left()
        return left

    def future_left_in_thread(self) -> float | None:
        left: float | None = slotmesh.mesh_sync().endpoint("rank").left.future().result()
        return left

    def unary_left_in_thread(self) -> float | None:
        left: float | None = slotmesh.mesh_sync().endpoint("rank").left.unary()
        return left

    def streamed_left_in_thread(self) -> float | None:
        lefts: list[float | None] = [*slotmesh.mesh_sync().endpoint("rank").left.stream()]
        return lefts[0]

    @slotmesh.batch(max_batch_size=2, batch_wait_timeout_s=60)
    async def lefts(self, items: list[int]) -> list[float | None]:
        left = await slotmesh.mesh().endpoint("rank").left()
        return [left for _ in items]

    async def trace(self) -> str:
        return str(await slotmesh.mesh().endpoint("rank").trace())

    async def trace_in_span(self, number: int) -> str:
        with use_span(span(number)):
            return str(await slotmesh.mesh().endpoint("rank").trace())

    def trace_in_thread(self) -> str:
        return str(slotmesh.mesh_sync().endpoint("rank").trace())

    def streamed_trace_in_thread(self) -> str:
        (trace,) = slotmesh.mesh_sync().endpoint("rank").trace.stream()
        return str(trace)


def span(number: int) -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(number, number + 1, False, TraceFlags(1)))


def parent(number: int) -> str:
    return f"00-{number:032x}-{number + 1:016x}-01"


@pytest.mark.asyncio
@pytest.mark.parametrize("own_loop", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        *("left", "left_of_task", "left_in_lane", "unary_left", "streamed_left", "mapped_left", "left_in_thread"),
        *("future_left_in_thread", "unary_left_in_thread", "streamed_left_in_thread"),
    ],
)
async def test_calls_have_no_more_time_than_the_call_has_left(method: str, own_loop: bool) -> None:
    front = Backend(Inherits, settings={"own_loop": own_loop})
    async with slotmesh.testing.mesh({"front": front, "rank": Rank}) as mesh:
        call = mesh.endpoint("front").method(method)
        assert await call() is None
        left = await call.options(timeout=TIMEOUT_S)()
        assert left is not None
        assert TIMEOUT_S / 2 < left < TIMEOUT_S


@pytest.mark.asyncio
async def test_a_view_may_say_less_time_or_that_nothing_is_taken_over() -> None:
    async with slotmesh.testing.mesh({"front": Inherits, "rank": Rank}) as mesh:
        left = mesh.endpoint("front").left.options(timeout=TIMEOUT_S)
        assert 0 < await left(timeout=1.0) <= 1.0
        assert TIMEOUT_S / 2 < await left(timeout=3600.0) < TIMEOUT_S
        assert await left(inherits=False) is None
        assert 3000 < await left(timeout=3600.0, inherits=False) <= 3600


@pytest.mark.asyncio
async def test_calls_of_a_batch_have_the_most_time_that_one_of_it_has() -> None:
    async with slotmesh.testing.mesh({"front": Inherits, "rank": Rank}) as mesh:
        lefts = mesh.endpoint("front").lefts
        some = await asyncio.gather(lefts.options(timeout=TIMEOUT_S)(1), lefts.options(timeout=2 * TIMEOUT_S)(2))
        assert TIMEOUT_S < some[0] < 2 * TIMEOUT_S
        assert await lefts.map([1, 2]) == [None, None]
        some = await asyncio.gather(lefts.options(timeout=TIMEOUT_S)(1), lefts(2))
        assert list(some) == [None, None]


@pytest.mark.asyncio
async def test_a_call_whose_time_is_over_makes_no_more() -> None:
    class Late:
        async def call(self) -> str:
            await asyncio.wait([asyncio.create_task(self.ask())])
            return ""

        async def ask(self) -> None:
            rank = slotmesh.mesh().endpoint("rank")
            while True:
                try:
                    await rank.score(1)
                except slotmesh.DeadlineExceeded as error:
                    failures.append(error)
                    return

    failures: list[slotmesh.DeadlineExceeded] = []
    async with slotmesh.testing.mesh({"late": Late, "rank": Rank}) as mesh:
        with pytest.raises(slotmesh.DeadlineExceeded):
            await mesh.endpoint("late").call.options(timeout=0.1)()
        await wait_until(lambda: failures, what="the end of the call's time")


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["trace", "trace_in_thread", "streamed_trace_in_thread"])
async def test_the_trace_goes_along(method: str) -> None:
    async with slotmesh.testing.mesh({"front": Inherits, "rank": Rank}) as mesh:
        front = mesh.endpoint("front")
        assert await front.method(method)() == ""
        with use_span(span(1)):
            call = front.method(method).options(traced=True)()
        assert await call == parent(1)


@pytest.mark.asyncio
async def test_a_span_of_the_handler_goes_before_that_of_its_caller() -> None:
    async with slotmesh.testing.mesh({"front": Inherits, "rank": Rank}) as mesh:
        with use_span(span(1)):
            call = mesh.endpoint("front").options(traced=True).trace_in_span(5)
        assert await call == parent(5)


@pytest.mark.asyncio
async def test_a_cancelled_call_takes_those_back_that_it_has_made() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def inner() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def outer() -> None:
        await slotmesh.mesh().endpoint("inner")()

    async with slotmesh.testing.mesh({"outer": outer, "inner": inner}) as mesh:
        call = mesh.endpoint("outer")()
        await within(started.wait(), "a call that has started")
        call.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await cancelled.wait()


@pytest.mark.asyncio
async def test_calls_that_wait_for_each_other_end_with_their_deadline() -> None:
    """docs/handlers.md: a handler that calls itself waits for the permit that it holds."""

    @slotmesh.deployment(max_ongoing=1)
    class Loop:
        async def call(self, depth: int) -> int:
            return int(await slotmesh.mesh().endpoint("loop").call(depth - 1)) + 1 if depth else 0

    async with slotmesh.testing.mesh({"loop": Loop}) as mesh:
        call = mesh.endpoint("loop").call
        assert await call(0) == 0
        # The inner call has the time that is left of the outer one, a little less: either may end first.
        with pytest.raises((slotmesh.DeadlineExceeded, slotmesh.HandlerError), match="DEADLINE_"):
            await call.options(timeout=0.3)(1)
        assert await call.options(timeout=TIMEOUT_S)(0) == 0, "nothing is held any more"
    async with slotmesh.testing.mesh({"loop": Backend(Loop, max_ongoing=4)}) as mesh:
        assert await mesh.endpoint("loop").call.options(timeout=TIMEOUT_S)(3) == 3


def test_times_are_rounded_to_few_values_and_never_up() -> None:
    times = [0.001 * 1.003**each for each in range(4000)]
    rounded = [rounded_down(time_s) for time_s in times]
    assert all(time_s * 0.98 <= less <= time_s for time_s, less in zip(times, rounded, strict=True))
    assert len(set(rounded)) <= 64 * 18
    assert rounded_down(0.0) == 0.0
    assert rounded_down(0.0004) == 0.0004
    assert rounded_down(20.0) == 20.0
