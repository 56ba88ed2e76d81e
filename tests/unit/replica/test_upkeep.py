"""What handlers may do with what the replica gives them, and what their hooks may not return."""

from __future__ import annotations

import asyncio
import logging
from copy import deepcopy
from typing import Any

import pytest

from replica_service.core.handler_health import HealthSettings
from replica_service.shell.handler.handler_loop import SharedLoop
from replica_service.shell.handler.hooks import Hook, Hooks, Upkeep
from replica_service.shell.handler.loading import construct
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.runtime.tasks import Supervisor
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Spoiling:
    """Changes the configurations that it is given."""

    def __init__(self, **config: Any) -> None:
        self.seen: list[Any] = []
        self._keep(config)

    def reconfigure(self, config: dict[str, Any]) -> None:
        self._keep(config)

    def _keep(self, config: dict[str, Any]) -> None:
        self.seen.append(deepcopy(config))
        config["names"].append("spoilt")


class Careless:
    """Its hook is a `def` that returns a coroutine, as a decorator may make of an `async def`."""

    def check_health(self) -> Any:
        return self._check()

    async def _check(self) -> bool:
        return True


async def test_a_handler_may_change_what_it_was_given() -> None:
    first, second = {"names": ["a"]}, {"names": ["a", "spoilt"]}
    handler = construct(Spoiling, first)
    settings = HealthSettings(period_s=60.0, timeout_s=60.0)
    changes = asyncio.Event()
    hooks = Hooks(handler, SharedLoop())
    upkeep = Upkeep(hooks, first, settings, MonotonicClock(), on_change=changes.set, on_sick=changes.clear)
    async with Supervisor() as tasks:
        upkeep.start(tasks)
        for config in (second, {"names": ["b"]}):
            upkeep.reconfigure(config)
            await wait_until(changes.is_set)
            changes.clear()
    assert first == {"names": ["a"]}
    assert handler.seen == [{"names": ["a"]}, {"names": ["a", "spoilt"]}, {"names": ["b"]}]


async def test_a_hook_that_returns_a_coroutine_is_awaited() -> None:
    assert await Hooks(Careless(), SharedLoop()).start(Hook.CHECK_HEALTH).ended is True


class Sick:
    """Says no, then raises, then hangs."""

    def __init__(self) -> None:
        self.checks = 0

    async def check_health(self) -> bool:
        self.checks += 1
        if self.checks == 2:
            raise ConnectionError("the accelerator is gone")
        if self.checks == 3:
            await asyncio.Event().wait()
        return False


async def test_a_check_that_raised_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    settings, sick = HealthSettings(period_s=0.001, timeout_s=0.05), asyncio.Event()
    hooks = Hooks(Sick(), SharedLoop())
    upkeep = Upkeep(hooks, {}, settings, MonotonicClock(), on_change=lambda: None, on_sick=sick.set)
    with caplog.at_level(logging.INFO):
        async with Supervisor() as tasks:
            upkeep.start(tasks)
            await wait_until(sick.is_set)
    no, raised, hung = [record for record in caplog.records if "health" in record.getMessage()]
    assert "check_health returned False" in no.getMessage()
    assert no.exc_info is None
    assert raised.getMessage() == "health check failed failures=2"
    assert raised.exc_info is not None
    assert raised.exc_info[0] is ConnectionError
    assert "the handler is unhealthy failures=3 problem=check_health has not answered" in hung.getMessage()
    assert hung.exc_info is None


class Raising:
    def check_health(self) -> None:
        raise ConnectionError("the accelerator is gone")


async def test_the_last_straw_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    settings, sick = HealthSettings(period_s=0.001, timeout_s=60.0), asyncio.Event()
    hooks = Hooks(Raising(), SharedLoop())
    upkeep = Upkeep(hooks, {}, settings, MonotonicClock(), on_change=lambda: None, on_sick=sick.set)
    with caplog.at_level(logging.ERROR):
        async with Supervisor() as tasks:
            upkeep.start(tasks)
            await wait_until(sick.is_set)
    (record,) = [record for record in caplog.records if "unhealthy" in record.getMessage()]
    assert record.getMessage() == "the handler is unhealthy failures=3"
    assert record.exc_info is not None
    assert upkeep.problem.startswith("Traceback")
    assert "hooks.py" not in upkeep.problem
