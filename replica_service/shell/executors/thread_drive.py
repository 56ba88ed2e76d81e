"""Steps a `def` that yields, in threads: a stint at a time.

Purpose: a stint lasts until the generator ends, or is as far ahead of its callers as it may be: while it is paused it
holds no thread. Context variables are those of the call in whichever thread it is.
Invariants: one stint at a time; what follows from its end is decided on the loop, so that no value that is taken
meanwhile is overlooked.
Owner: the generator executor, on its event loop; `_serve` and what it calls run in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import Any, Final

from replica_service.core.failures import CANCELLED
from replica_service.shell.executors.generator_drives import Drive, Script, Stage
from slotmesh.handlers.context import current_place

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
