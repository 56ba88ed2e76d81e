"""Steps an `async def` that yields, in a task of its own.

Purpose: `asyncio.current_task()` and context variables are right in the handler, and so is `asyncio.timeout`: one that
runs out between two values, while the task waits for the caller, is raised in the handler, where it is suspended.
Invariants: a handler that never waits lets the rest of the process have the loop every `STEP_S`; one that was cancelled
ends where it waits, or at its next value.
Owner: the generator executor, on its event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

from replica_service.core.failures import CANCELLED
from replica_service.shell.executors.generator_drives import Drive, Script, Stage
from slotmesh.handlers.context import current_place

STEP_S = 0.005


class AsyncDrive(Drive):
    """One generator that is `async def`."""

    def __init__(self, script: Script, stage: Stage) -> None:
        super().__init__(script, stage)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """What it waits for while it is paused."""
        self._is_ending = False
        """Whether the process ends: outcomes are not delivered any more."""

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), context=self._stage.context.copy())

    def resume(self) -> None:
        if self._room is not None and not self._room.done() and not self._is_full:
            self._room.set_result(None)

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _post(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback, context=self._stage.context)

    def end(self) -> asyncio.Future[None] | None:
        self._is_ending = True
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        current_place.set(self._script.place)
        generator = self._make()
        if self._begin():
            await self._serve(generator)
            self._left()
        if not self._is_ending:
            self._say_over()

    def _say_over(self) -> None:
        # What follows is not the handler's: neither is the context.
        self._stage.context.run(self._ended)

    async def _serve(self, generator: AsyncGenerator[Any, None] | None) -> None:
        try:
            if generator is not None:
                await self._follow(generator)
            elif self._mistake is not None:
                raise self._mistake
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end more than its call
            if not self._is_ending:
                self._raised(error)
        self._is_over = True
        if generator is not None:
            await self._close(generator)

    async def _close(self, generator: AsyncGenerator[Any, None]) -> None:
        task = self._task
        while task is not None and task.cancelling():
            task.uncancel()  # what the handler does at its end was not taken back
        try:
            await generator.aclose()
        except BaseException as error:  # noqa: BLE001 - as above; this is for the log: the outcome is known
            self._stage.errors.failure_of(error, self._script.method)

    async def _follow(self, generator: AsyncGenerator[Any, None]) -> None:
        """Steps it until it ends or no call wants more of it."""
        now, step = self._stage.now, generator.__anext__
        until = now() + STEP_S
        awaited = step()
        while True:
            try:
                value = await awaited
            except StopAsyncIteration:
                return
            if not self._accept(value):
                return
            if self._is_full or now() >= until:
                try:
                    await self._pause()
                except asyncio.CancelledError as error:
                    if not self._is_wanted or self._is_ending:
                        raise
                    awaited = generator.athrow(error)
                    continue
                finally:
                    until = now() + STEP_S
            awaited = step()

    async def _pause(self) -> None:
        """Until it may go on; for a moment at least."""
        await asyncio.sleep(0)
        while self._is_full:
            self._room = self._loop.create_future()
            try:
                await self._room
            finally:
                self._room = None


# Steps an `async def` that yields on a loop of the handler's own, in another thread than the engine's.
#
# Purpose: an `AsyncDrive` with a thread between it and the engine.
# Invariants: calls from the engine reach the handler's task on its loop, in order, and calls from the task reach the
# engine on the engine's; a handler that closes is not disturbed by earlier ones.
# Owner: the generator executor, on its event loop; `_run` and what it calls are on the handler's.


class OwnLoopDrive(AsyncDrive):
    """One generator that is `async def`, stepped elsewhere."""

    def __init__(self, script: Script, stage: Stage, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the handler's."""
        super().__init__(script, stage)
        self._engine_loop = self._loop
        self._loop = loop

    # -- on the engine's loop --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._pass_on(super().start)

    def resume(self) -> None:
        self._pass_on(super().resume)

    def _stop(self) -> None:
        self._pass_on(self._stop_here)

    def end(self) -> asyncio.Future[None]:
        self._is_ending = True
        ended: asyncio.Future[None] = self._engine_loop.create_future()
        self._pass_on(lambda: self._end_here(ended))
        return ended

    def _pass_on(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the handler's loop has ended, and all that was on it
            # A context is one thread's at a time, and the stage's is the engine's.
            self._loop.call_soon_threadsafe(callback, context=self._stage.context.copy())

    # -- on the handler's loop -------------------------------------------------------------------------------------

    def _post(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the engine's loop has ended
            self._engine_loop.call_soon_threadsafe(callback, context=self._stage.context)

    def _say_over(self) -> None:
        self._post(self._ended)

    def _stop_here(self) -> None:
        if not self._is_over:
            super()._stop()

    def _end_here(self, ended: asyncio.Future[None]) -> None:
        def settle() -> None:
            if not ended.done():
                ended.set_result(None)

        task = super().end()
        if task is None:
            self._post(settle)
        else:
            task.add_done_callback(lambda _task: self._post(settle))


# Steps a `def` that yields, in threads: a stint at a time.
#
# Purpose: a stint lasts until the generator ends, or is as far ahead of its callers as it may be: while it is paused it
# holds no thread. Context variables are those of the call in whichever thread it is.
# Invariants: one stint at a time; what follows from its end is decided on the loop, so that no value that is taken
# meanwhile is overlooked.
# Owner: the generator executor, on its event loop; `_serve` and what it calls run in a thread.

_END: Final = object()

InThread = Callable[[Callable[[], None]], None]
"""Has a thread of the handlers call this soon."""


class ThreadDrive(Drive):
    """One generator that is `def`."""

    def __init__(self, script: Script, stage: Stage, in_thread: InThread) -> None:
        super().__init__(script, stage)
        self._loop = asyncio.get_running_loop()
        self._in_thread = in_thread
        self._context = stage.context.copy()
        self._generator: Generator[Any, None, None] | None = None
        self._is_paused = False

    def start(self) -> None:
        self._in_thread(self._stint)

    def resume(self) -> None:
        if self._is_paused and not (self._is_wanted and self._is_full):
            self._is_paused = False
            self._in_thread(self._stint)

    def _stop(self) -> None:
        self.resume()  # a stint that is under way looks after each value

    def end(self) -> None:
        for recipient in self.recipients:
            recipient.verdict = recipient.verdict or CANCELLED
        self._stop()

    def _post(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback, context=self._stage.context)

    def _stinted(self) -> None:
        """A stint has ended."""
        if self._is_over:
            self._ended()
            return
        self._deliver()
        self._is_paused = True
        self.resume()

    # -- in a thread -----------------------------------------------------------------------------------------------

    def _stint(self) -> None:
        self._context.run(self._serve)
        self._post(self._stinted)

    def _serve(self) -> None:
        if not self._has_begun:
            current_place.set(self._script.place)
            self._generator = self._make()
            if not self._begin():
                return
        try:
            if self._generator is None:
                if self._mistake is not None:
                    raise self._mistake
            elif not self._step(self._generator):
                return
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
            self._raised(error)
        self._is_over = True
        self._close()
        self._left()

    def _step(self, generator: Generator[Any, None, None]) -> bool:
        """Steps it until it has to pause. Returns whether it has ended instead, or no call wants more of it."""
        while self._is_wanted:
            if self._is_full:
                return False
            value = next(generator, _END)
            if value is _END or not self._accept(value):
                break
        return True

    def _close(self) -> None:
        if self._generator is not None:
            try:
                self._generator.close()
            except BaseException as error:  # noqa: BLE001 - as above; this is for the log: the outcome is known
                self._stage.errors.failure_of(error, self._script.method)
