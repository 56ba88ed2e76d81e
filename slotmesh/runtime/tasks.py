"""Structured concurrency: each background task has a supervisor, which sees it fail and ends it.

Purpose: the one place that starts the long-lived tasks of a process or a component. Two kinds:
- `keep`: work that lasts as long as its supervisor. If it ends before, that is logged, and it is restarted with
  back-off: it keeps no state of the previous run.
- `start`: work that ends, or whose state cannot be recovered. Its failure is logged once, kept, and requests a stop.
Invariants: no task outlives its supervisor; none ends before it unnoticed, except by returning or by its owner's
cancellation: a CancelledError without a cancellation is a failure like any other, and so is a SystemExit, which does
not stop the event loop. Tasks are ended in the reverse order of their start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, Self, TypeVar

from slotmesh.logs import get_logger
from slotmesh.runtime.backoff import Backoff
from slotmesh.user_code import described

AGAIN_AFTER_S: Final = 0.1
"""The ceiling of the first delay before a restart; it doubles with each consecutive end. Delays are random below it."""
AGAIN_WITHIN_S: Final = 30.0
"""The largest ceiling. Work that lasted longer than this starts again with the first delay."""

ResultT = TypeVar("ResultT")

_log = get_logger(__name__)


class TaskFailed(Exception):
    """A supervised task ended with an error, which is the cause of this one."""


class Supervisor:
    """The parent of background tasks. Leaving it cancels them and waits for their end.

    A failed task does not stop its siblings immediately: `on_failure` (such as `stop.set`) requests an orderly end, and
    leaving the supervisor raises `TaskFailed`.
    """

    def __init__(self, on_failure: Callable[[], object] | None = None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}
        """The tasks, with their work."""
        self._closed = False
        self.failure: TaskFailed | None = None
        """The first failure, if any."""

    def keep(
        self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str, until: Callable[[], bool] | None = None
    ) -> asyncio.Task[Any]:
        """Starts a task that runs the work again whenever it ends before the supervisor does.

        Cancelling the task ends it. `until`: work that returns while this is true is not run again.
        """
        return self.start(_kept(work, name, until or _never), name=name)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Starts a task. It may return, be cancelled by its owner, or be ended by the supervisor."""
        if self._closed:
            work.close()
            raise RuntimeError(f"cannot start {name}: its supervisor has ended")
        task = asyncio.get_running_loop().create_task(_contained(work), name=name)
        self._tasks[task] = work
        task.add_done_callback(self._ended)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
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
                    interrupted = error  # cancelled too; still waits for the children
        if interrupted is not None:
            raise interrupted

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task).close()  # closes a coroutine that was cancelled before it began
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None or (task.cancelled() and task.cancelling()):
            return
        if type(error) is _EndOfProcess and error.__cause__ is not None:
            error = error.__cause__
        _log.error("task failed", task=task.get_name(), exc_info=error)
        if self.failure is None:
            self.failure = TaskFailed(f"task {task.get_name()} failed: {described(error)}")
            self.failure.__cause__ = error
            if self._on_failure is not None:
                self._on_failure()


def is_cancelled() -> bool:
    """Whether the present task is being cancelled: otherwise a CancelledError is an error like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _EndOfProcess(Exception):
    """Replaces an exception that would stop the event loop, which is its cause."""


async def _contained(work: Coroutine[Any, Any, Any]) -> Any:
    """Converts exceptions that would stop the event loop."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise _EndOfProcess from error


async def _kept(work: Callable[[], Coroutine[Any, Any, None]], name: str, until: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    backoff = Backoff(initial_s=AGAIN_AFTER_S, max_s=AGAIN_WITHIN_S)
    while True:
        began, error = loop.time(), None
        try:
            await work()
        except GeneratorExit:  # this coroutine is being closed
            raise
        except BaseException as raised:
            if isinstance(raised, asyncio.CancelledError) and is_cancelled():
                raise
            error = raised
        else:
            if until():
                return
        if loop.time() - began > AGAIN_WITHIN_S:
            backoff.reset()
        delay_s = backoff.next_delay_s()
        text = "a task that runs for good has failed" if error is not None else "a task that runs for good has returned"
        _log.error(f"{text}; it is started again", task=name, after_s=delay_s, exc_info=error)
        error = None  # frees the traceback, which refers to this frame
        await asyncio.sleep(delay_s)


def _never() -> bool:
    return False


def call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object, context: Context | None = None
) -> None:
    """Calls the function soon on the loop of another thread. Does nothing if that loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args, context=context)


def call_here_or_on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Like `call_on`, and immediately if the caller runs on that loop."""
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here:
        function(*args)
    else:
        call_on(loop, function, *args)


def set_once(future: asyncio.Future[ResultT], result: ResultT) -> None:
    """Sets the result of the future, unless it is done or was cancelled."""
    if not future.done():
        future.set_result(result)
