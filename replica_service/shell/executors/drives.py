"""The two drives, which step methods that yield: `async def` in a task on the handler's loop, `def` in threads.

Invariants: `asyncio.current_task()`, context variables and `asyncio.timeout` are right in the handler. A timeout that
expires between two values, while the task waits for the caller, is raised in the handler where it is suspended. An
`async def` that never waits leaves the loop to other tasks every `STEP_S`; a cancelled one ends where it waits, or at
its next value.
Owner: the generator executor, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Final

from replica_service.core.failures import CANCELLED
from replica_service.shell.executors.generator_drives import Drive, DriveEnvironment, GeneratorRun
from slotmesh.handlers.context import current_place
from slotmesh.runtime.tasks import call_on, set_once

STEP_S = 0.005
_END: Final = object()

InThread = Callable[[Callable[[], None]], None]
"""Schedules the function in a thread of the handlers."""


class AsyncDrive(Drive):
    """Steps one `async def` generator in a task of its own, on the loop of the handler.

    If that is not the engine's loop, calls of the engine reach the task on its loop, in order, and calls of the task
    reach the engine on the engine's loop. `_run` and its callees, and the functions that end in `_here`, run on the
    handler's loop.
    """

    def __init__(
        self, generator_run: GeneratorRun, environment: DriveEnvironment, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """`loop` is the handler's, if it has one of its own."""
        super().__init__(generator_run, environment)
        self._engine_loop = asyncio.get_running_loop()
        self._loop = loop or self._engine_loop
        self._has_own_loop = loop is not None
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        """Awaited while the drive is paused."""
        self._is_ending = False
        """Whether the process ends, so that outcomes are not delivered any more."""

    # -- on the engine's loop --------------------------------------------------------------------------------------

    def start(self) -> None:
        self._pass_on(self._start_here)

    def resume(self) -> None:
        self._pass_on(self._resume_here)

    def _stop(self) -> None:
        self._pass_on(self._stop_here)

    def end(self) -> asyncio.Future[None]:
        self._is_ending = True
        ended: asyncio.Future[None] = self._engine_loop.create_future()
        self._pass_on(lambda: self._end_here(ended))
        return ended

    def _pass_on(self, callback: Callable[[], None]) -> None:
        if self._has_own_loop:
            # Only one thread can enter a context at a time, and the environment's context is the engine's.
            call_on(self._loop, callback, context=self._environment.context.copy())
        else:
            callback()

    # -- on the handler's loop -------------------------------------------------------------------------------------

    def _post(self, callback: Callable[[], None]) -> None:
        if self._has_own_loop:
            call_on(self._engine_loop, callback, context=self._environment.context)
        else:
            self._loop.call_soon(callback, context=self._environment.context)

    def _start_here(self) -> None:
        self._task = self._loop.create_task(self._run(), context=self._environment.context.copy())

    def _resume_here(self) -> None:
        if self._room is not None and not self._room.done() and not self._is_full:
            self._room.set_result(None)

    def _stop_here(self) -> None:
        if self._task is not None and not self._is_over:  # a generator that is closing is not disturbed
            self._task.cancel()

    def _end_here(self, ended: asyncio.Future[None]) -> None:
        def end(_task: object) -> None:
            self._post(lambda: set_once(ended, None))

        if self._task is None:
            end(None)
        else:
            self._task.cancel()
            self._task.add_done_callback(end)

    async def _run(self) -> None:
        current_place.set(self._generator_run.place)
        generator = self._make()
        if self._begin():
            await self._serve(generator)
            self._left()
        if not self._is_ending:
            self._finish()

    def _finish(self) -> None:
        if self._has_own_loop:
            self._post(self._ended)
        else:
            self._environment.context.run(self._ended)  # not in the handler's context

    async def _serve(self, generator: AsyncGenerator[Any, None] | None) -> None:
        try:
            if generator is not None:
                await self._follow(generator)
            elif self._error is not None:
                raise self._error
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end more than its call
            if not self._is_ending:
                self._raised(error)
        self._is_over = True
        if generator is not None:
            await self._close(generator)

    async def _close(self, generator: AsyncGenerator[Any, None]) -> None:
        task = self._task
        while task is not None and task.cancelling():
            task.uncancel()  # the cancellation must not hit the handler's cleanup
        try:
            await generator.aclose()
        except BaseException as error:  # noqa: BLE001 - as above; only logged, since the outcome is known
            self._environment.errors.failure_of(error, self._generator_run.method)

    async def _follow(self, generator: AsyncGenerator[Any, None]) -> None:
        """Steps the generator until it ends or no call takes more values."""
        now, step = self._environment.now, generator.__anext__
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
        """Waits for credit; yields to the loop at least once."""
        await asyncio.sleep(0)
        while self._is_full:
            self._room = self._loop.create_future()
            try:
                await self._room
            finally:
                self._room = None


class ThreadDrive(Drive):
    """Steps one `def` generator in threads, one stint at a time.

    A stint lasts until the generator ends or has used its callers' credit; a paused generator holds no thread. Context
    variables are those of the call in every thread. The end of a stint is handled on the loop, so that acknowledgements
    that arrive meanwhile are not missed. `_serve` and its callees run in a thread.
    """

    def __init__(self, generator_run: GeneratorRun, environment: DriveEnvironment, in_thread: InThread) -> None:
        super().__init__(generator_run, environment)
        self._loop = asyncio.get_running_loop()
        self._in_thread = in_thread
        self._context = environment.context.copy()
        self._generator: Generator[Any, None, None] | None = None
        self._is_paused = False

    def start(self) -> None:
        self._in_thread(self._stint)

    def resume(self) -> None:
        if self._is_paused and not (self._is_wanted and self._is_full):
            self._is_paused = False
            self._in_thread(self._stint)

    def _stop(self) -> None:
        self.resume()  # a running stint checks after each value

    def end(self) -> None:
        for recipient in self.recipients:
            recipient.verdict = recipient.verdict or CANCELLED
        self._stop()

    def _post(self, callback: Callable[[], None]) -> None:
        call_on(self._loop, callback, context=self._environment.context)

    def _stinted(self) -> None:
        """Handles the end of a stint."""
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
            current_place.set(self._generator_run.place)
            self._generator = self._make()
            if not self._begin():
                return
        try:
            if self._generator is None:
                if self._error is not None:
                    raise self._error
            elif not self._step(self._generator):
                return
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
            self._raised(error)
        self._is_over = True
        self._close()
        self._left()

    def _step(self, generator: Generator[Any, None, None]) -> bool:
        """Steps the generator. Returns False if it has to pause, True if it ended or no call takes more values."""
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
            except BaseException as error:  # noqa: BLE001 - as above; only logged, since the outcome is known
                self._environment.errors.failure_of(error, self._generator_run.method)
