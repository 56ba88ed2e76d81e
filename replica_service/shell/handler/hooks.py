"""The hooks of a handler that the replica calls, if the handler has them.

Purpose: `reconfigure`, `check_health`, `on_drain`, `on_keys_gained`, `on_keys_lost`. An `async def` runs on the
handler's loop, where its calls run; a `def` in a thread of its own, beside the calls and their permits.
Invariants: an exception of a hook is its outcome, and ends nothing else; a hook has ended when its code has returned,
not when a wait for it timed out.
Owner: the upkeep, on the service's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from replica_service.core.calls.commands import TellKeys
from replica_service.core.calls.events import KeysGained, KeysLost
from replica_service.shell.handler.handler_loop import HandlerLoop
from slotmesh.handlers.context import OwnedKeys
from slotmesh.handlers.kinds import MethodKind, kind_of, runnable
from slotmesh.logs import get_logger


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
        tell = self._teller()

        def work() -> None:
            try:
                outcome = function()
                if inspect.isawaitable(outcome):
                    outcome = loop.wait_for(outcome)
            except BaseException as error:  # noqa: BLE001 - handed on: a thread of users' code ends nothing else
                outcome = error
            tell(outcome)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name=self.hook.value, daemon=True).start()

    def run_on(self, loop: HandlerLoop, function: Callable[[], Any]) -> None:
        tell = self._teller()

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
        if not self._has_begun and not self.ended.done():
            self.ended.set_result(failure)

    def _teller(self) -> Callable[[Any], None]:
        """Settles `ended`, from any thread."""
        loop = asyncio.get_running_loop()

        def settle(outcome: Any) -> None:
            if not self.ended.done():
                self.ended.set_result(outcome)

        def tell(outcome: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, outcome)

        return tell


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
        self._due: deque[TellKeys] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, command: TellKeys) -> None:
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
