"""Methods that run on a loop of the handler's own: calls that are cancelled, late, or handed back."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from replica_service.core.events import DrainBegan
from replica_service.core.failures import CANCELLED, CUT_OFF, TAKEN_BACK
from replica_service.core.session_records import Record
from replica_service.shell.executors.own_loop import OwnLoopExecutor
from replica_service.shell.executors.runners import STEP_S
from slotmesh.codec import JSON
from slotmesh.errors import Executed, Reason
from tests.support.wait import wait_until
from tests.unit.replica.hosting import hosting
from tests.unit.replica.own_loop_handler import Handler

pytestmark = pytest.mark.asyncio


async def passed(seconds: float) -> None:
    """Returns when this time is over: it is what the test is about."""
    until = time.monotonic() + seconds
    await wait_until(lambda: time.monotonic() >= until)


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
            host.engine.post(DrainBegan())
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
