"""Background tasks of a controller that end before their time: they are started again, and nothing is forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from controller_service.shell.loops.autoscaler import Autoscaler
from controller_service.shell.loops.launching import ProcessWatch
from controller_service.shell.loops.reconcile_loop import ReconcileLoop
from controller_service.shell.loops.shifter import Shifter
from controller_service.shell.mesh_state import Concern, Key
from controller_service.shell.replica_logs import LogBook
from tests.support.controllers import running_controller
from tests.support.fakes.members import FakeRouter
from tests.support.foreign_code import EndOfTheWorld
from tests.support.wait import wait_until

MESH = """
backends:
  v1: {handler: "app:Digits"%s}
endpoints:
  digits: {traffic: {v1: 1.0}}
"""


def ending_once(
    function: Callable[..., Any], task: str, error: type[BaseException], times: list[None]
) -> Callable[..., Any]:
    """The same, but that it ends the task of this name the first time; other tasks may call it as well."""

    def end_or_call(*args: Any, **kwargs: Any) -> Any:
        running = asyncio.current_task()
        if running is not None and running.get_name() == task:
            times.append(None)
            if len(times) == 1:
                raise error
        return function(*args, **kwargs)

    return end_or_call


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, EndOfTheWorld, LookupError])
@pytest.mark.parametrize(
    ("owner", "function", "task"),
    [
        (ReconcileLoop, "_pass", "reconcile"),
        (Autoscaler, "look", "watch-scaled"),
        (Shifter, "look", "shifts"),
        (ProcessWatch, "look", "processes"),
        (LogBook, "look", "replica-logs"),
    ],
)
async def test_a_task_that_ends_is_started_again_and_what_it_was_about_is_done(
    owner: type,
    function: str,
    task: str,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    times: list[None] = []
    async with running_controller(launches=True) as mesh, FakeRouter(mesh.channel, "r") as router:
        monkeypatch.setattr(owner, function, ending_once(getattr(owner, function), task, error, times))
        with caplog.at_level(logging.ERROR):
            # Where the loop itself ends, nothing else looks at the same backend again.
            await mesh.apply(MESH % ("" if owner is ReconcileLoop else ", autoscale: {min: 1, max: 2}"))
            await router.wait_for(lambda table: len(table.endpoints) == 1, "the endpoint")
            assert mesh.launcher is not None
            await wait_until(lambda: mesh.launcher and mesh.launcher.started, what="a replica is launched")
            await wait_until(lambda: len(times) > 1, what="the task goes on")
    restarted = [each.getMessage() for each in caplog.records if "runs for good" in each.getMessage()]
    assert len(restarted) == 1
    assert f"task={task}" in restarted[0]


@pytest.mark.asyncio
async def test_a_pass_that_ends_leaves_its_keys_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[set[Key]] = []
    run_pass = ReconcileLoop._pass

    async def end_the_first_with_a_backend(self: ReconcileLoop, keys: list[Key], *rest: Any) -> None:
        if passes or any(key.concern is Concern.BACKEND for key in keys):
            passes.append({*keys})
        if len(passes) == 1:
            raise asyncio.CancelledError
        await run_pass(self, keys, *rest)

    async with running_controller(launches=True) as mesh, FakeRouter(mesh.channel, "r"):
        monkeypatch.setattr(ReconcileLoop, "_pass", end_the_first_with_a_backend)
        await mesh.apply(MESH % "")
        await wait_until(lambda: len(passes) > 1, what="the next pass")
    assert passes[1] >= passes[0]
