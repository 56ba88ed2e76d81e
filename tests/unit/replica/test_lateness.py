"""Batches of several invocations, whose later calls run out of time while earlier ones are executed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from math import inf

import pytest

from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from tests.support.fakes.clock import FakeClock
from tests.unit.replica.hosting import hosting, open_link

pytestmark = pytest.mark.asyncio

TAKES_S = 10.0

together = batch(max_batch_size=5, batch_wait_timeout_s=0.0)


@deployment(max_ongoing=64, prefetch=64)
class Handler:
    """Each invocation takes `TAKES_S`."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.given: list[list[int]] = []

    def take(self, items: list[int]) -> list[int]:
        self.given.append(list(items))
        self.clock.advance(TAKES_S)
        return items

    @together
    async def on_loop(self, items: list[int], more: list[int] | None = None) -> list[int]:
        return self.take(items)

    @together
    def in_thread(self, items: list[int], more: list[int] | None = None) -> list[int]:
        return self.take(items)

    @together
    async def stream_on_loop(self, items: list[int], more: list[int] | None = None) -> AsyncIterator[list[int]]:
        yield self.take(items)

    @together
    def stream_in_thread(self, items: list[int], more: list[int] | None = None) -> Iterator[list[int]]:
        yield self.take(items)


@pytest.mark.parametrize("method", ["on_loop", "in_thread", "stream_on_loop", "stream_in_thread"])
@pytest.mark.parametrize("all_late", [False, True])
@pytest.mark.parametrize("reason", [Reason.DEADLINE_IN_QUEUE, Reason.BACKEND_UNAVAILABLE])
async def test_calls_that_are_late_by_then_are_not_executed(method: str, all_late: bool, reason: Reason) -> None:
    clock = FakeClock()
    async with hosting(Handler, clock, clock=clock) as host:
        first = host.run(method, [b"[1]", b"[2]"], content_type=JSON)
        late = host.run(method, [b"[3, 0]", b"[4, 0]"], content_type=JSON)
        if reason is Reason.DEADLINE_IN_QUEUE:
            late.deadline = clock.now() + TAKES_S
        else:
            late.link, _ = open_link(host.engine)
            late.link.outbox = host.outbox
            late.link.fresh_until = clock.now() + TAKES_S
        behind = host.run(method, [b"[5, 0]"], content_type=JSON, time_left_s=TAKES_S if all_late else inf)
        outbox = await host.execute(first, late, behind)
        assert host.handler.given == ([[1, 2]] if all_late else [[1, 2], [5]])
        failures = [outbox.failures_of[run_id] for run_id in (late.first, late.first + 1)]
        assert {(failure.reason, failure.executed) for failure in failures} == {(reason, Executed.NO)}
        assert (behind.first in outbox.failures_of) is all_late
        assert host.engine.scheduler.is_idle
