"""Steps an `async def` that yields, in a task of its own.

Purpose: `asyncio.current_task()` and context variables are right in the handler, and so is `asyncio.timeout`: one that
runs out between two values, while the task waits for the caller, is raised in the handler, where it is suspended.
Invariants: a handler that never waits lets the rest of the process have the loop every `STEP_S`; one that was cancelled
ends where it waits, or at its next value.
Owner: the generator executor, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

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
