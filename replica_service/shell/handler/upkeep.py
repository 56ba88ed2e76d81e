"""The upkeep of a handler: new configurations, health checks, `on_drain`.

Purpose: carries out the decisions of `core/handler_health.py`, concurrently with the calls.
Invariants: one `reconfigure` at a time, and only with a configuration that differs from the previous one. If it raises,
the old configuration stays, and it is not called again before there is another configuration.
Owner: the replica, on the service's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from replica_service.core.handler_health import FAILURES, HandlerHealth, HealthCommand, HealthSettings
from replica_service.shell.handler.hooks import Hook, HookRun, Hooks
from replica_service.shell.handler.loading import users_traceback
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.tasks import Supervisor

_log = get_logger(__name__)


class Upkeep:
    """The upkeep of one handler, from its construction to its drain."""

    def __init__(
        self,
        hooks: Hooks,
        user_config: Mapping[str, Any],
        health: HealthSettings,
        clock: Clock,
        *,
        on_change: Callable[[], None],
        on_sick: Callable[[], None],
    ) -> None:
        """`user_config` is what the handler was constructed with.

        `on_change` is called when `problem` changes, `on_sick` once, when the handler will not get well any more.
        """
        self._hooks = hooks
        self._now = clock.now
        self._on_change = on_change
        self._on_sick = on_sick
        self._tried: Mapping[str, Any] = user_config
        self._wanted: Mapping[str, Any] = user_config
        self._is_wanted = asyncio.Event()
        self._not_taken = ""
        """The traceback of the newest `reconfigure`, if it failed."""
        self._health = HandlerHealth(health, self._now())
        self._is_settled = asyncio.Event()
        """Set when the next deadline of the checks has changed."""
        self._check: HookRun | None = None
        self._answer: tuple[str, Any] = "", None
        """Problem and outcome of the latest ended check, late or not."""

    @property
    def reconfigures(self) -> bool:
        """Whether the handler has a `reconfigure`."""
        return self._hooks.has(Hook.RECONFIGURE)

    @property
    def is_sick(self) -> bool:
        """Whether the handler is unhealthy."""
        return self._health.is_sick

    @property
    def problem(self) -> str:
        """The current problem as text for operators; empty if there is none."""
        problems = [self._not_taken]
        if self._health.problem:
            problems.append(
                f"{self._health.problem.rstrip()}\nhealth check failed: {self._health.failures} of {FAILURES} in a row"
            )
        return "\n".join(problem for problem in problems if problem)

    def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Applies a new configuration. While the handler is busy with one, a newer one replaces the waiting one."""
        self._wanted = user_config
        self._is_wanted.set()

    def configure(self, health: HealthSettings) -> None:
        """Applies other settings for the checks."""
        self._health.configure(health)
        self._is_settled.set()

    def start(self, tasks: Supervisor) -> None:
        """Starts the upkeep as tasks of the supervisor."""
        if self._hooks.has(Hook.CHECK_HEALTH):
            tasks.keep(self._check_health, name="health checks", until=lambda: self._health.next_deadline() is None)
        if self.reconfigures:
            tasks.keep(self._reconfigure, name="reconfigurations")

    async def drain(self) -> None:
        """Calls the handler's `on_drain`; returns when that has ended. Cancelling ends it."""
        if not self._hooks.has(Hook.ON_DRAIN):
            return
        run = self._hooks.start(Hook.ON_DRAIN)
        try:
            outcome = await asyncio.shield(run.ended)
        except asyncio.CancelledError:
            run.cancel()
            raise
        if isinstance(outcome, BaseException):
            _log.error("on_drain raised", exc_info=outcome)

    # -- configurations ----------------------------------------------------------------------------------------------

    async def _reconfigure(self) -> None:
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            wanted = self._wanted
            if wanted == self._tried:
                continue
            self._tried = wanted
            # A copy: the handler may change what it is given.
            outcome = await asyncio.shield(self._hooks.start(Hook.RECONFIGURE, deepcopy(wanted)).ended)
            if isinstance(outcome, BaseException):
                _log.error("reconfigure raised; the old configuration stays in force", exc_info=outcome)
                self._not_taken = f"{users_traceback(outcome)}reconfigure failed: the old configuration stays in force"
            else:
                _log.info("reconfigured")
                self._not_taken = ""
            self._on_change()

    # -- health ------------------------------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        while (due := self._health.next_deadline()) is not None:
            self._is_settled.clear()
            try:
                async with asyncio.timeout(max(0.0, due - self._now())):
                    await self._is_settled.wait()
            except TimeoutError:
                self._follow(self._health.passed(self._now()))

    def _follow(self, commands: list[HealthCommand]) -> None:
        before = self._health.failures
        for command in commands:
            match command:
                case HealthCommand.START:
                    self._check = self._hooks.start(Hook.CHECK_HEALTH)
                    self._check.ended.add_done_callback(self._answered)
                case HealthCommand.CANCEL:
                    if self._check is not None:
                        self._check.cancel()
                case HealthCommand.GIVE_UP:
                    _log.error("the handler is unhealthy", failures=self._health.failures, **self._why())
                    self._on_sick()
        if commands and before:
            self._on_change()

    def _answered(self, ended: asyncio.Future[Any]) -> None:
        outcome = ended.result()
        if isinstance(outcome, BaseException):
            problem = users_traceback(outcome)
        else:
            problem = "check_health returned False" if outcome is False else ""
        before = self._health.problem
        commands = self._health.answered(problem, self._now())
        self._answer = problem, outcome
        if self._health.problem and commands == [] and not self._health.is_sick:
            _log.warning("health check failed", failures=self._health.failures, **self._why())
        if self._health.problem != before:
            self._on_change()
        self._follow(commands)
        self._is_settled.set()

    def _why(self) -> dict[str, Any]:
        """Returns the facts for the log: the problem, and the traceback if the latest check has raised."""
        problem, outcome = self._answer
        if isinstance(outcome, BaseException) and problem == self._health.problem:
            return {"exc_info": outcome}
        return {"problem": self._health.problem}
