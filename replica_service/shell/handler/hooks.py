"""The hooks of a handler that the replica calls, if the handler has them, and its upkeep by them.

Hooks: `reconfigure`, `check_health`, `on_drain`, `on_keys_gained`, `on_keys_lost`. An `async def` runs on the handler's
loop, where its calls run; a `def` in a thread of its own, beside the calls and their permits. An exception of a hook is
its outcome, and ends nothing else; a hook has ended when its code has returned, not when a wait for it timed out.
`Upkeep`: new configurations, health checks (by the decisions of `core/handler_health.py`) and `on_drain`, concurrently
with the calls. One `reconfigure` at a time, and only with a configuration that differs from the previous one. If it
raises, the old configuration stays, and it is not called again before there is another configuration.
Owner: the replica, on the service's loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from replica_service.core.events import CallKeyHook, KeysGained, KeysLost
from replica_service.core.handler_health import FAILURES, HandlerHealth, HealthCommand, HealthSettings
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.loading import users_traceback
from slotmesh.handlers.context import OwnedKeys
from slotmesh.handlers.kinds import MethodKind, kind_of, runnable
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock
from slotmesh.runtime.tasks import Supervisor, call_on, set_once


class Hook(Enum):
    """The methods. No client can call them."""

    RECONFIGURE = "reconfigure"
    CHECK_HEALTH = "check_health"
    ON_DRAIN = "on_drain"
    ON_KEYS_GAINED = "on_keys_gained"
    ON_KEYS_LOST = "on_keys_lost"


class HookRun:
    """One call of a hook."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """What it returned, or the exception that it raised, as a result. Await it behind `asyncio.shield`."""
        self._has_begun = False
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """Cancels the hook if it is `async def`; a thread runs to its end. `ended` is set in both cases."""
        if self._task is not None:
            self._task.cancel()

    def run_in_thread(self, loop: HandlerLoop, function: Callable[[], Any]) -> None:
        """What it returns is awaited on the loop, if it can be."""
        engine_loop = asyncio.get_running_loop()

        def work() -> None:
            try:
                outcome = function()
                if inspect.isawaitable(outcome):
                    outcome = loop.wait_for(outcome)
            except BaseException as error:  # noqa: BLE001 - handed on: a thread of users' code ends nothing else
                outcome = error
            call_on(engine_loop, set_once, self.ended, outcome)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name=self.hook.value, daemon=True).start()

    def run_on(self, loop: HandlerLoop, function: Callable[[], Any]) -> None:
        engine_loop = asyncio.get_running_loop()

        def tell(outcome: Any) -> None:
            call_on(engine_loop, set_once, self.ended, outcome)

        async def work() -> None:
            self._has_begun = True
            try:
                outcome = await function()
            except asyncio.CancelledError as error:
                tell(error)
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                outcome = error
            tell(outcome)

        self._task = asyncio.create_task(loop.run(work), name=self.hook.value)
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._has_begun:
            set_once(self.ended, failure)


class Hooks:
    """Those of one constructed handler."""

    def __init__(self, handler: Any, loop: HandlerLoop) -> None:
        """`loop` is where `async def` ones run.

        Raises:
            TypeError: the handler has one of these names, and it cannot be called.
        """
        self._loop = loop
        self._functions: dict[Hook, Callable[..., Any]] = {}
        if inspect.isfunction(handler):
            return  # its attributes are its own
        for hook in Hook:
            function = getattr(handler, hook.value, None)
            if function is None:
                continue
            if not callable(function):
                name = f"{type(handler).__qualname__}.{hook.value}"
                raise TypeError(f"{name} must be a method, which the replica calls; got {function!r}")
            self._functions[hook] = function

    def has(self, hook: Hook) -> bool:
        """Whether the handler has this hook."""
        return hook in self._functions

    def start(self, hook: Hook, *args: Any) -> HookRun:
        """Calls a hook that the handler has."""
        function = self._functions[hook]
        run = HookRun(hook)
        if (kind := kind_of(function)) is MethodKind.ASYNC:
            run.run_on(self._loop, lambda: runnable(function, kind)(*args))
        else:
            run.run_in_thread(self._loop, lambda: function(*args))
        return run


KEYS_HOOK_TIMEOUT_S: Final = 10.0
"""The default limit of one call of a hook. Calls of the keys wait meanwhile."""

_log = get_logger(__name__)


class KeyHooks:
    """Calls a handler's `on_keys_gained` and `on_keys_lost` in step with the calls of those keys.

    One hook runs at a time, in the scheduler's order; partitions that gather meanwhile share the next call of a hook.
    Each command is followed by its event exactly once. A hook that raises is logged; one that takes too long is logged
    and not awaited any more: `async def` is cancelled, a thread continues. Owned by the engine, on the service's loop.
    """

    def __init__(self, hooks: Hooks, timeout_s: float, post: Callable[[KeysGained | KeysLost], None]) -> None:
        """`post` passes events to the scheduler. `timeout_s`: limit of each call of a hook."""
        self._hooks = hooks
        self._timeout_s = timeout_s
        self._post = post
        self._due: deque[CallKeyHook] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, command: CallKeyHook) -> None:
        """Calls the hook after the earlier ones."""
        self._due.append(command)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="hooks for keys")

    def close(self) -> None:
        """Drops all hooks that have not ended."""
        self._due.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._due:
            first = self._due[0]
            epochs: dict[int, int] = {}
            while self._due and (self._due[0].is_gain, self._due[0].endpoint) == (first.is_gain, first.endpoint):
                command = self._due.popleft()
                epochs[command.partition] = command.epoch
            hook = Hook.ON_KEYS_GAINED if first.is_gain else Hook.ON_KEYS_LOST
            await self._call(hook, OwnedKeys(first.endpoint, MappingProxyType(epochs)))
            self._post((KeysGained if first.is_gain else KeysLost)(first.endpoint, tuple(epochs)))

    async def _call(self, hook: Hook, keys: OwnedKeys) -> None:
        if not self._hooks.has(hook):
            return
        run = self._hooks.start(hook, keys)
        try:
            async with asyncio.timeout(self._timeout_s):
                outcome = await asyncio.shield(run.ended)
        except TimeoutError:
            run.cancel()
            _log.error(
                f"{hook.value} has not ended in time; calls go on without it",
                endpoint=keys.endpoint,
                partitions=len(keys.owner_epochs),
                timeout_s=self._timeout_s,
            )
            return
        except asyncio.CancelledError:
            run.cancel()
            raise
        if isinstance(outcome, BaseException):
            _log.error(f"{hook.value} raised; calls go on", endpoint=keys.endpoint, exc_info=outcome)


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
