"""A defect in one step of a replica, or of one router's outbox, costs other calls nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from replica_service.core.events import Commands, ReplicaEvent, RunsReceived
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.shell import conditions
from replica_service.shell.conditions import DeadlineTimer
from slotmesh.errors import Failure
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until
from tests.unit.replica.hosting import Hosting, RememberingOutbox, hosting, open_link

pytestmark = pytest.mark.asyncio


class Echo:
    async def __call__(self, payload: bytes) -> bytes:
        return payload


class BrokenOutbox(RememberingOutbox):
    def failed(self, first: int, count: int, failure: Failure) -> None:
        raise ZeroDivisionError


async def submitted(host: Hosting, payloads: Sequence[bytes]) -> None:
    with pytest.raises(ZeroDivisionError):
        host.engine.submit([host.run("", payloads)])


async def test_what_a_step_that_raises_has_commanded_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosting(Echo) as host:
        follow = ReplicaScheduler.follow

        def broken(core: ReplicaScheduler, event: ReplicaEvent, now: float, commands: Commands) -> None:
            follow(core, event, now, commands)
            if isinstance(event, RunsReceived):
                raise ZeroDivisionError

        monkeypatch.setattr(ReplicaScheduler, "follow", broken)
        await submitted(host, [b"1", b"2"])
        await host.answered(2)
        assert [*host.outbox.results_of.values()] == [b"1", b"2"]


async def test_an_outbox_that_raises_costs_another_router_no_call() -> None:
    async with hosting(Echo) as host:
        broken, _ = open_link(host.engine)
        broken.outbox = BrokenOutbox()
        unknown = host.run("nothing", [b"1"], link=broken)
        waiting = asyncio.ensure_future(host.engine._conditions.until(lambda: host.engine.scheduler.in_use > 0))
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            host.engine.submit([unknown, host.run("", [b"1"])])
        assert [future.done() for _, future in host.engine._waiters] == [True], "conditions are looked at all the same"
        await waiting
        await host.answered(1)
        assert [*host.outbox.results_of.values()] == [b"1"]


async def test_a_timer_whose_step_raises_is_set_again_and_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "PAUSE_S", 0.05)
    clock, fired, errors = FakeClock(), list[float](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def step() -> None:
        fired.append(loop.time())
        timer.set(0.0)  # it is still due
        if len(fired) < 3:
            raise ZeroDivisionError

    timer = DeadlineTimer(clock.now, step)
    timer.set(0.0)
    try:
        await wait_until(lambda: len(fired) >= 4, what="a timer that fires again")
    finally:
        timer.stop()
    assert fired[1] - fired[0] >= 0.05 <= fired[2] - fired[1]
    assert [type(each) for each in errors] == 2 * [ZeroDivisionError]
