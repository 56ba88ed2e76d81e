"""Steps an `async def` that yields on a loop of the handler's own, in another thread than the engine's.

Purpose: an `AsyncDrive` with a thread between it and the engine.
Invariants: calls from the engine reach the handler's task on its loop, in order, and calls from the task reach the
engine on the engine's; a handler that closes is not disturbed by earlier ones.
Owner: the generator executor, on its event loop; `_run` and what it calls are on the handler's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from replica_service.shell.executors.generator_drives import Script, Stage
from replica_service.shell.executors.on_loop_drive import AsyncDrive


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
