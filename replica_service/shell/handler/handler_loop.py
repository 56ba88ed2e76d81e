"""The event loop that the handler runs on: the service's, or the handler's own in a thread.

Purpose: all `async` code of a handler runs on one loop, so that objects bound to a loop (HTTP client sessions, locks,
connections) work everywhere in it: in its methods and in hooks, called with
`await handler_loop.run(handler.check_health)`; with its own loop also in its constructor.
Invariants: users' code ends neither loop, even if it raises SystemExit or KeyboardInterrupt, with which asyncio would
end the loop; nor does a task that it has started: the handler's own loop continues, and the service's does by
`slotmesh.runtime.main`. The handler's own loop is closed once, and its thread does not keep the process alive.
Owner: the replica, on the service's loop.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TypeVar

from slotmesh.logs import get_logger, without_text
from slotmesh.runtime.main import log_loop_errors
from slotmesh.runtime.tasks import call_on, set_once
from slotmesh.user_code import shown

ResultT = TypeVar("ResultT")

CLOSE_S = 1.0
"""How long a handler's own loop has to end its remaining tasks. A blocked loop does not end."""

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""Exceptions with which asyncio would end its loop."""
_MOST_SHOWN = 1000
"""Characters of such an exception in the one that takes its place."""

_log = get_logger(__name__)


class HandlerLoop(ABC):
    """The loop that the handler runs on. Methods are called on the service's loop."""

    is_own: bool
    """Whether it is not the service's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self.loop = loop
        """The handler's."""
        self.thread = thread
        """The thread of that loop."""

    @abstractmethod
    async def run(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Calls it on the handler's loop, and awaits there what it returns. Cancelling passes on.

        Raises: Exception: what the handler raises; a RuntimeError in place of what would end the process.
        """

    def wait_for(self, awaitable: Awaitable[ResultT]) -> ResultT:
        """Awaits it on the handler's loop, while the calling thread waits. Never called on that loop.

        Raises: Exception: as `run`.
        """
        return asyncio.run_coroutine_threadsafe(_tamed(lambda: awaitable), self.loop).result()

    @abstractmethod
    async def construct(self, function: Callable[[], ResultT]) -> ResultT:
        """Calls it without blocking the service's loop: on the handler's own loop, or in a thread for this call.

        A call that never returns does not keep the process. Raises what `run` raises.
        """

    @abstractmethod
    async def close(self) -> None:
        """Ends the remaining tasks of the handler's own loop, as far as possible within `CLOSE_S`."""


class SharedLoop(HandlerLoop):
    """The handler runs on the loop of the service."""

    is_own = False

    def __init__(self) -> None:
        """To be called on that loop."""
        super().__init__(asyncio.get_running_loop(), threading.current_thread())

    async def run(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await _tamed(function)

    async def construct(self, function: Callable[[], ResultT]) -> ResultT:
        outcome: asyncio.Future[ResultT | BaseException] = self.loop.create_future()

        def work() -> None:
            result: ResultT | BaseException
            try:
                result = _constructed(function)
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                result = error
            call_on(self.loop, set_once, outcome, result)

        threading.Thread(target=copy_context().run, args=(work,), name="constructor", daemon=True).start()
        result = await outcome
        if isinstance(result, BaseException):
            raise result
        return result

    async def close(self) -> None:
        """Does nothing: the service's loop continues."""


class OwnLoop(HandlerLoop):
    """The handler runs on a loop of its own, in a thread of its own."""

    is_own = True

    def __init__(self, *, logs_texts: bool = False) -> None:
        """Made on the service's loop; the handler's is one of the same kind. Its thread starts.

        `logs_texts`: whether exceptions that no code awaits are logged with their texts, which may quote calls.
        """
        self._logs_texts = logs_texts
        self._service = asyncio.get_running_loop()
        self._ended = self._service.create_future()
        self._is_closing = False
        super().__init__(type(self._service)(), threading.Thread(target=self._serve, name="handler-loop", daemon=True))
        log_loop_errors(self.loop, texts=logs_texts)
        self.thread.start()

    async def run(self, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_tamed(function), self.loop))

    async def construct(self, function: Callable[[], ResultT]) -> ResultT:
        async def call() -> ResultT:
            return _constructed(function)

        return await self.run(call)

    async def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._ended
        except TimeoutError:
            _log.warning("the handler's loop is still blocked; it ends with the process")

    def _serve(self) -> None:
        """Runs in the thread."""
        asyncio.set_event_loop(self.loop)
        while not self._is_closing:
            self._go_on(self.loop.run_forever)
        self._go_on(lambda: self.loop.run_until_complete(_end_tasks()))
        self.loop.close()
        call_on(self._service, set_once, self._ended, None)

    def _go_on(self, run: Callable[[], None]) -> None:
        try:
            run()
        except _ENDS as error:
            logged = error if self._logs_texts else without_text(error)
            _log.error("a task of the handler tried to end the process", exc_info=logged)


async def _tamed(function: Callable[[], Awaitable[ResultT]]) -> ResultT:
    try:
        return await function()
    except _ENDS as error:
        raise RuntimeError(f"the handler tried to end the process: {shown(error, _MOST_SHOWN)}") from error


def _constructed(function: Callable[[], ResultT]) -> ResultT:
    try:
        return function()
    except asyncio.CancelledError as error:  # users' code raised it: no loop runs here
        raise RuntimeError(f"the constructor was cancelled: {shown(error, _MOST_SHOWN)}") from error
    except _ENDS as error:
        raise RuntimeError(f"the handler tried to end the process: {shown(error, _MOST_SHOWN)}") from error


async def _end_tasks() -> None:
    """Ends all tasks except the current one. Runs on the handler's loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
