"""Batch methods that yield: lists with a value for each call, and calls that end before the others."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from replica_service.core.call_metadata import HandlerCredit
from slotmesh.codec import JSON, encode
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio

together = batch(max_batch_size=3, batch_wait_timeout_s=3600.0)

STEPS = 4


def entries(counts: list[int], step: int) -> list[Any]:
    """A call for n values ends after n; for -n it has failed then; for 0 it ends with an instance, at once."""
    made: list[Any] = []
    for count in counts:
        if step < abs(count):
            made.append(step)
        elif count < 0:
            made.append(ValueError(f"no more than {-count}"))
        else:
            made.append(StopIteration if count else StopAsyncIteration())
    return made


class Shared:
    def __init__(self) -> None:
        self.began: list[list[int]] = []
        self.steps = 0
        self.closed = 0
        self.gate = threading.Event()
        self.before_second: Callable[[], None] = lambda: None

    def at(self, counts: list[int], step: int) -> Any:
        """What is yielded at this step; 13 and its like are calls that spoil it for all."""
        self.steps = max(self.steps, step + 1)
        if step == 1:
            self.before_second()
        if 13 in counts and step == 2:
            raise RuntimeError("in the middle")
        return entries(counts, step)[: -1 if 14 in counts and step == 2 else None]


@deployment
class OnLoop(Shared):
    @together
    async def count(self, counts: list[int]) -> AsyncIterator[list[Any]]:
        self.began.append(counts)
        try:
            for step in range(STEPS):
                yield self.at(counts, step)
        finally:
            self.closed += 1

    @together
    async def count_behind_gate(self, counts: list[int]) -> AsyncIterator[list[Any]]:
        try:
            yield entries(counts, 0)
            await wait_until(self.gate.is_set)
            for step in range(1, STEPS):
                yield entries(counts, step)
        finally:
            self.closed += 1


@deployment(max_ongoing=64)
class InThreads(Shared):
    @together
    def count(self, counts: list[int]) -> Iterator[list[Any]]:
        self.began.append(counts)
        try:
            for step in range(STEPS):
                yield self.at(counts, step)
        finally:
            self.closed += 1

    @together
    def count_behind_gate(self, counts: list[int]) -> Iterator[list[Any]]:
        try:
            yield entries(counts, 0)
            assert self.gate.wait(10)
            for step in range(1, STEPS):
                yield entries(counts, step)
        finally:
            self.closed += 1


both = pytest.mark.parametrize("handler", [OnLoop, InThreads])
streaming_or_not = pytest.mark.parametrize("streaming", [True, False])


def counting(host: Hosting, *counts: int, method: str = "count", streaming: bool = True, **options: Any) -> Any:
    payloads = [encode(JSON, [each]) for each in counts]
    return host.run(method, payloads, content_type=JSON, streaming=streaming, **options)


def values(host: Hosting, run: Any, place: int) -> list[int]:
    """What the call has got so far, or in all where it gets one list."""
    run_id = run.first + place
    if run.options.streaming:
        return [int(payload) for payload in host.outbox.values_of.get(run_id, [])]
    return [int(each) for each in host.outbox.results_of[run_id].strip(b"[]").split(b",") if each]


@both
@streaming_or_not
async def test_each_call_ends_where_its_entry_says_so(handler: type, streaming: bool) -> None:
    async with hosting(handler) as host:
        run = counting(host, 3, 1, 0, streaming=streaming)
        await host.execute(run)
        assert not host.outbox.failures_of
        assert [values(host, run, place) for place in range(3)] == [[0, 1, 2], [0], []]
        # When the last of them has ended, nobody asks for more.
        assert (host.handler.steps, host.handler.closed) == (4, 1)


@both
@streaming_or_not
async def test_calls_that_never_end_by_themselves_end_with_the_generator(handler: type, streaming: bool) -> None:
    async with hosting(handler) as host:
        run = counting(host, 9, 2, 9, streaming=streaming)
        await host.execute(run)
        assert [values(host, run, place) for place in range(3)] == [[0, 1, 2, 3], [0, 1], [0, 1, 2, 3]]


@both
@streaming_or_not
async def test_a_caller_hears_of_its_end_while_others_go_on(handler: type, streaming: bool) -> None:
    async with hosting(handler) as host:
        # At the gate, the second call is at its end.
        run = counting(host, 9, 0, 9, method="count_behind_gate", streaming=streaming)
        host.engine.submit([run])
        await host.answered(1)
        assert host.outbox.order == [run.first + 1]
        host.handler.gate.set()
        await host.answered(3)
        assert values(host, run, 0) == values(host, run, 2) == [0, 1, 2, 3]


@both
@streaming_or_not
async def test_an_entry_that_is_an_exception_fails_its_call(handler: type, streaming: bool) -> None:
    async with hosting(handler) as host:
        run = counting(host, 9, -2, 9, streaming=streaming)
        outbox = await host.execute(run)
        failure = outbox.failures_of[run.first + 1]
        assert (failure.reason, failure.executed) == (Reason.HANDLER_ERROR, Executed.YES)
        assert failure.message == "ValueError: no more than 2"
        assert values(host, run, 0) == values(host, run, 2) == [0, 1, 2, 3]
        assert not streaming or values(host, run, 1) == [0, 1]


@both
@streaming_or_not
async def test_an_exception_midway_fails_those_that_have_not_ended(handler: type, streaming: bool) -> None:
    async with hosting(handler) as host:
        run = counting(host, 13, 1, 9, streaming=streaming)
        outbox = await host.execute(run)
        assert {run_id: failure.message for run_id, failure in outbox.failures_of.items()} == {
            run.first: "RuntimeError: in the middle",
            run.first + 2: "RuntimeError: in the middle",
        }
        assert values(host, run, 1) == [0]
        again = counting(host, 1, 1, 1, streaming=streaming)
        await host.execute(again)
        assert [values(host, again, place) for place in range(3)] == [[0]] * 3


@both
async def test_a_list_of_another_length_fails_those_that_have_not_ended(handler: type) -> None:
    async with hosting(handler) as host:
        run = counting(host, 14, 1, 9)
        outbox = await host.execute(run)
        assert {run_id: failure.reason for run_id, failure in outbox.failures_of.items()} == {
            run.first: Reason.BATCH_SIZE_MISMATCH,
            run.first + 2: Reason.BATCH_SIZE_MISMATCH,
        }
        assert host.handler.closed == 1


@both
async def test_a_caller_that_leaves_early_does_not_end_the_others(handler: type) -> None:
    async with hosting(handler) as host:
        run = counting(host, 9, 9, 9, method="count_behind_gate")
        host.engine.submit([run])
        await wait_until(lambda: len(host.outbox.values_of) == 3, what="a value each")
        host.engine.cancel(host.link, [(run.first + 1, run.first + 1)])
        await host.answered(1)
        assert host.outbox.failures_of[run.first + 1].reason is Reason.CANCELLED
        host.handler.gate.set()
        await host.answered(3)
        assert values(host, run, 0) == values(host, run, 2) == [0, 1, 2, 3]
        assert values(host, run, 1) == [0]


@both
async def test_one_that_has_ended_is_not_taken_back_any_more(handler: type) -> None:
    async with hosting(handler) as host:
        run = counting(host, 9, 0, 9, method="count_behind_gate")
        host.engine.submit([run])
        await host.answered(1)
        host.engine.cancel(host.link, [(run.first, run.first + 2)])
        host.handler.gate.set()
        await host.answered(3)
        assert sorted(host.outbox.failures_of) == [run.first, run.first + 2]
        assert host.handler.closed == 1


@both
async def test_a_caller_that_leaves_holds_nobody_up_with_values_that_it_has_not_taken(handler: type) -> None:
    async with hosting(handler) as host:
        run = counting(host, 9, 9, 9, credit=HandlerCredit(1, 1_000_000))
        host.engine.submit([run])
        for count in range(1, STEPS + 1):
            await wait_until(lambda: len(values(host, run, 2)) == count, what=f"{count} values")  # noqa: B023
            if count == 1:
                host.engine.cancel(host.link, [(run.first, run.first)])
            host.engine.take(host.link, (run.first + 1, run.first + 2), (1, 1))
        await host.answered(3)
        assert values(host, run, 1) == values(host, run, 2) == [*range(STEPS)]


async def test_one_that_has_ended_and_was_not_told_ends_well_though_it_is_taken_back() -> None:
    async with hosting(OnLoop) as host:
        run = counting(host, 9, 0, 9)
        host.handler.before_second = lambda: host.engine.cancel(host.link, [(run.first + 1, run.first + 1)])
        await host.execute(run)
        assert not host.outbox.failures_of
        assert host.outbox.ended_well == {run.first, run.first + 1, run.first + 2}


@both
async def test_state_tells_where_a_batch_is_that_yields(handler: type) -> None:
    async with hosting(handler) as host:
        host.engine.submit([counting(host, 9, 9, 9, method="count_behind_gate")])
        method = host.handler.count_behind_gate
        await wait_until(lambda: any("gate" in each.stack for each in method.batch_state().running), what="at the gate")
        host.handler.gate.set()
        await host.answered(3)
        await host.engine.idle()
        assert not method.batch_state().running
