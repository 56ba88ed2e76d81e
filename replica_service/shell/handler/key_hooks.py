"""A handler's `on_keys_gained` and `on_keys_lost`, called in step with the calls of those keys.

Purpose: one hook at a time, in the order in which the scheduler decides; partitions that gather meanwhile share the
next call of a hook.
Invariants: each command is answered by its event exactly once, whatever the hook does: one that raises is logged, and
one that takes too long is logged and waited for no longer (`async def` is cancelled, a thread goes on).
Owner: the engine, on the service's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from replica_service.core.commands import TellKeys
from replica_service.core.events import KeysGained, KeysLost
from replica_service.shell.handler.hooks import Hook, Hooks
from slotmesh.handlers.owned_keys import OwnedKeys
from slotmesh.telemetry.log import get_logger

KEYS_HOOK_TIMEOUT_S: Final = 10.0
"""What one call of a hook may take, unless a process is configured otherwise. Calls of the keys wait meanwhile."""

_log = get_logger(__name__)


class KeyHooks:
    """The hooks of one handler, and what they are still to be told."""

    def __init__(self, hooks: Hooks, timeout_s: float, post: Callable[[KeysGained | KeysLost], None]) -> None:
        """`post` gives events to the scheduler. `timeout_s`: of each call of a hook."""
        self._hooks = hooks
        self._timeout_s = timeout_s
        self._post = post
        self._due: deque[TellKeys] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, command: TellKeys) -> None:
        """Calls the hook, after those before it."""
        self._due.append(command)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="hooks for keys")

    def close(self) -> None:
        """Waits for no hook any more."""
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
