"""When batches are cut, in the engine with real executors; `test_batches.py` is about what goes in and comes out."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Iterator

import pytest

from slotmesh.errors import Executed, Reason
from slotmesh.handlers import BatchState, batch, batch_control, deployment
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, hosting

pytestmark = pytest.mark.asyncio

NEVER_S = 3600.0


class Gate:
    """Closed until it is opened, for coroutines and threads alike."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def wait(self) -> None:
        assert self._opened.wait(10)

    async def passed(self) -> None:
        await wait_until(self._opened.is_set, timeout=10)


class Shared:
    """`given` has the batches, in the order in which they began."""

    def __init__(self) -> None:
        self.given: list[list[bytes]] = []
        self.gate = Gate()


@deployment
class OnLoop(Shared):
    @batch(max_batch_size=1, batch_wait_timeout_s=NEVER_S)
    async def alone(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        return items

    @batch(max_batch_size=100, batch_wait_timeout_s=0.0)
    async def at_once(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        return items

    @batch(max_batch_size=2, batch_wait_timeout_s=0.0)
    async def held(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        await self.gate.passed()
        return items

    @batch(max_batch_size=3, batch_wait_timeout_s=0.0, max_concurrent_batches=4)
    async def tagged(self, items: list[bytes]) -> list[bytes]:
        await asyncio.sleep(random.random() / 500)
        return [b"of " + item for item in items]

    @batch(max_batch_size=4, batch_wait_timeout_s=NEVER_S)
    async def shrinking(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        self.shrinking.set_max_batch_size(2)
        return items


@deployment(max_ongoing=256)
class InThreads(Shared):
    @batch(max_batch_size=1, batch_wait_timeout_s=NEVER_S)
    def alone(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        return items

    @batch(max_batch_size=100, batch_wait_timeout_s=0.0)
    def at_once(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        return items

    @batch(max_batch_size=2, batch_wait_timeout_s=0.0)
    def held(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        self.gate.wait()
        return items

    @batch(max_batch_size=3, batch_wait_timeout_s=0.0, max_concurrent_batches=4)
    def tagged(self, items: list[bytes]) -> list[bytes]:
        threading.Event().wait(random.random() / 500)
        return [b"of " + item for item in items]

    @batch(max_batch_size=4, batch_wait_timeout_s=NEVER_S)
    def shrinking(self, items: list[bytes]) -> list[bytes]:
        self.given.append(items)
        self.shrinking.set_max_batch_size(2)
        return items


both = pytest.mark.parametrize("handler", [OnLoop, InThreads])


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    """Settings belong to the function: afterwards they are what they were."""
    controls = [
        control for each in (OnLoop, InThreads) for name in dir(each) if (control := batch_control(getattr(each, name)))
    ]
    settings = [control.settings for control in controls]
    yield
    for control, before in zip(controls, settings, strict=True):
        control.set_max_batch_size(before.max_batch_size)
        control.set_batch_wait_timeout_s(before.batch_wait_timeout_s)
        control.set_max_concurrent_batches(before.max_concurrent_batches)


async def began(host: Hosting, *batches: list[bytes]) -> None:
    await wait_until(lambda: host.handler.given == [*batches], what=f"{batches} have begun")


# -- when --------------------------------------------------------------------------------------------------------


@both
async def test_a_batch_of_one_does_not_wait_however_long_it_might(handler: type) -> None:
    async with hosting(handler) as host:
        await host.execute(host.run("alone", [b"a", b"b"]))
        assert host.handler.given == [[b"a"], [b"b"]]


@both
async def test_without_a_wait_one_call_is_a_batch(handler: type) -> None:
    async with hosting(handler) as host:
        await host.execute(host.run("at_once", [b"a"]))
        await host.execute(host.run("at_once", [b"b", b"c"]))
        assert host.handler.given == [[b"a"], [b"b", b"c"]]


@both
async def test_what_comes_while_a_batch_runs_becomes_one_batch_and_not_many(handler: type) -> None:
    async with hosting(handler) as host:
        host.handler.held.set_max_batch_size(50)
        host.engine.submit([host.run("held", [b"first"])])
        await began(host, [b"first"])
        later = [b"%d" % number for number in range(40)]
        for payload in later:
            host.engine.submit([host.run("held", [payload])])
        host.handler.gate.open()
        await host.answered(41)
        assert host.handler.given == [[b"first"], later]


# -- calls that are taken back -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("key", ["", "k"])
async def test_a_call_that_is_taken_back_before_the_batch_is_cut_is_left_out(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        host.engine.submit([host.run("held", [b"0"], key="other")])
        await began(host, [b"0"])
        run = host.run("held", [b"a", b"b", b"c"], key=key)
        host.engine.submit([run])
        host.engine.cancel(host.link, [(run.first + 1, run.first + 1)])
        host.handler.gate.open()
        await host.answered(4)
        assert host.handler.given == [[b"0"], [b"a", b"c"]]
        failure = host.outbox.failures_of[run.first + 1]
        assert (failure.reason, failure.executed) == (Reason.CANCELLED, Executed.NO)


@both
@pytest.mark.parametrize("key", ["", "k"])
async def test_where_all_calls_are_taken_back_there_is_no_batch(handler: type, key: str) -> None:
    async with hosting(handler) as host:
        host.engine.submit([host.run("held", [b"0"], key="other")])
        await began(host, [b"0"])
        run = host.run("held", [b"a", b"b"], key=key)
        host.engine.submit([run])
        host.engine.cancel(host.link, [(run.first, run.first + 1)])
        host.handler.gate.open()
        await host.answered(3)
        await host.engine.idle()
        assert host.handler.given == [[b"0"]]
        assert host.engine.counters.batches == 1


@both
async def test_a_call_that_is_taken_back_while_its_batch_runs_does_the_others_no_harm(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("held", [b"a", b"b"])
        host.engine.submit([run])
        await began(host, [b"a", b"b"])
        host.engine.cancel(host.link, [(run.first, run.first)])
        host.handler.gate.open()
        await host.answered(2)
        assert host.outbox.results_of[run.first + 1] == b"b"
        await host.engine.idle()
        follower = host.run("held", [b"c"])
        await host.execute(follower)
        assert host.results(follower) == [b"c"]


# -- whose result is whose ---------------------------------------------------------------------------------------


@both
async def test_results_are_never_mixed_up(handler: type) -> None:
    async with hosting(handler) as host:
        count = iter(range(10_000))
        runs = [
            host.run(
                "tagged", [b"%d" % next(count) for _ in range(random.randint(1, 7))], key=random.choice("  ab").strip()
            )
            for _ in range(60)
        ]
        await host.execute(*runs)
        for run in runs:
            assert host.results(run) == [b"of " + payload for payload in host.payloads(run)]


# -- settings that change ----------------------------------------------------------------------------------------


@both
async def test_what_was_set_in_a_batch_holds_for_the_next_one(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("shrinking", [b"%d" % number for number in range(8)])
        await host.execute(run)
        assert [len(given) for given in host.handler.given] == [4, 2, 2]
        assert host.results(run) == host.payloads(run)


@both
async def test_a_batch_that_was_cut_keeps_the_settings_of_that_moment(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("held", [b"a", b"b", b"c"])
        host.engine.submit([run])  # the first batch is cut, and has not begun
        host.handler.held.set_max_batch_size(1)
        host.handler.gate.open()
        await host.answered(3)
        assert host.handler.given == [[b"a", b"b"], [b"c"]]


@both
async def test_a_shorter_wait_is_in_force_for_what_waits_already(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("shrinking", [b"a"])
        host.engine.submit([run])
        threading.Thread(target=host.handler.shrinking.set_batch_wait_timeout_s, args=(0.01,)).start()
        await host.answered(1)
        assert host.results(run) == [b"a"]


@both
async def test_a_smaller_batch_is_full_earlier(handler: type) -> None:
    async with hosting(handler) as host:
        host.engine.submit([host.run("shrinking", [b"a", b"b"])])
        handler.shrinking.set_max_batch_size(2)  # type: ignore[attr-defined]  # as well as on the bound method
        await host.answered(2)
        assert host.handler.given == [[b"a", b"b"]]


@both
async def test_more_batches_at_once_begin_at_once(handler: type) -> None:
    async with hosting(handler) as host:
        host.engine.submit([host.run("held", [b"a", b"b", b"c", b"d"])])
        await began(host, [b"a", b"b"])
        host.handler.held.set_max_concurrent_batches(2)
        await began(host, [b"a", b"b"], [b"c", b"d"])
        host.handler.gate.open()
        await host.answered(4)


async def test_a_replica_that_has_ended_is_not_told_any_more() -> None:
    async with hosting(OnLoop) as host:
        host.engine.submit([host.run("held", [b"a", b"b", b"c"])])
        await began(host, [b"a", b"b"])
    OnLoop.held.set_max_batch_size(1)
    assert OnLoop.held.batch_state() == BatchState(is_alive=False, waiting=0, running=())


# -- what can be seen --------------------------------------------------------------------------------------------


async def test_state_before_any_replica_has_it() -> None:
    assert OnLoop.at_once.batch_state() == BatchState(is_alive=False, waiting=0, running=())


@both
async def test_state_tells_since_when_and_where_a_batch_runs_and_what_waits(handler: type) -> None:
    async with hosting(handler) as host:
        host.engine.submit([host.run("held", [b"a", b"b", b"c"])])
        await began(host, [b"a", b"b"])
        method = host.handler.held
        (running,) = (await asyncio.to_thread(method.batch_state)).running
        assert running.calls == 2
        await wait_until(lambda: method.batch_state().running[0].running_s > running.running_s)
        wanted = inspect.getsource(handler.held).splitlines()[3].strip()  # type: ignore[attr-defined]
        await wait_until(lambda: wanted in method.batch_state().running[0].stack, what=f"it is at {wanted}")
        state = method.batch_state()
        assert (state.is_alive, state.waiting) == (True, 1)
        assert ("in passed" if handler is OnLoop else "in wait") in state.running[0].stack
        assert "replica_service" not in state.running[0].stack
        assert host.engine.batch_hosts.oldest_s() >= state.running[0].running_s > 0
        host.handler.gate.open()
        await host.answered(3)
        await host.engine.idle()
        assert method.batch_state() == BatchState(is_alive=True, waiting=0, running=())
        assert host.engine.batch_hosts.oldest_s() == 0.0


# -- batches that never fill -------------------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "never fill" in record.getMessage()]


async def test_a_batch_that_can_never_fill_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with hosting(OnLoop, max_ongoing=50) as host:
        (warning,) = warnings_of(caplog)
        assert "method=at_once max_batch_size=100 max_ongoing=50" in warning
        host.engine.configure(max_ongoing=50, prefetch=7)
        assert len(warnings_of(caplog)) == 1
        host.engine.configure(max_ongoing=100, prefetch=7)
        assert len(warnings_of(caplog)) == 1
        OnLoop.alone.set_max_batch_size(101)
        await wait_until(lambda: len(warnings_of(caplog)) == 2)
        assert "method=alone max_batch_size=101 max_ongoing=100" in warnings_of(caplog)[1]


async def test_a_batch_that_has_all_permits_is_full(caplog: pytest.LogCaptureFixture) -> None:
    """Though it never fills, it does not wait for calls that cannot come."""
    async with hosting(OnLoop, max_ongoing=3) as host:
        run = host.run("shrinking", [b"a", b"b", b"c"])
        await host.execute(run)
        assert host.handler.given == [[b"a", b"b", b"c"]]
        assert warnings_of(caplog)
