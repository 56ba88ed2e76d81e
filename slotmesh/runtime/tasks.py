"""Structured concurrency: each background task has a parent, which sees it fail and ends it.

Purpose: the one place that starts the long-lived tasks of a process or a component.
Invariants: no task outlives its supervisor; a failure is logged once, kept, and asks for a stop; cancellation is not a
failure; tasks are ended in the reverse order of their start.
Owner: the task that entered it with `async with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from slotmesh.telemetry.log import get_logger

_log = get_logger(__name__)


class TaskFailed(Exception):
    """A supervised task ended with an error, which is the cause of this one."""


class Supervisor:
    """Parent of background tasks. Leaving it cancels them and waits for their ends.

    A failed task does not stop its siblings at once: `on_failure` (such as `stop.set`) asks for an orderly end, and
    leaving the supervisor raises `TaskFailed`.
    """

    def __init__(self, on_failure: Callable[[], object] | None = None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False
        self.failure: TaskFailed | None = None
        """The first failure, if there was one."""

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Starts a task. It may end by itself, be cancelled, or be left to the supervisor."""
        if self._closed:
            work.close()
            raise RuntimeError(f"cannot start {name}: its supervisor has ended")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
        if error is None and self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Cancels all tasks, newest first, and waits until each has ended. May be called again."""
        self._closed = True
        interrupted: asyncio.CancelledError | None = None
        for task in reversed(list(self._tasks)):
            while not task.done():
                task.cancel()
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    interrupted = error  # we were cancelled too; no child is left behind for that
        if interrupted is not None:
            raise interrupted

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("task failed", task=task.get_name(), exc_info=error)
        if self.failure is None:
            self.failure = TaskFailed(f"task {task.get_name()} failed: {error!r}")
            self.failure.__cause__ = error
            if self._on_failure is not None:
                self._on_failure()
