"""Ending what a task does from outside, and not the task: as `asyncio.timeout` does, but when something happens.

It takes the place of a second task that waits for that: streams come by the thousand.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Generic, TypeVar

WhyT = TypeVar("WhyT")


class Interruption(Generic[WhyT]):
    """The block of its `with` is left where it waits, once it is told why; `why` is looked at after the block.

    The block ends in order where it is left for that. Whatever else it raises is raised, a cancellation of its task
    included.
    """

    __slots__ = ("_cancelling", "_has_cancelled", "_task", "why")

    def __init__(self) -> None:
        self.why: WhyT | None = None
        """Why the block has to end; None where it need not."""
        self._task: asyncio.Task[Any] | None = None
        """Whose block it is; None outside of it."""
        self._cancelling = 0
        self._has_cancelled = False

    def end(self, why: WhyT) -> None:
        """Interrupts the block, or, before it, the first wait in it. Only the first reason counts.

        Not to be called by the block itself: that can return.
        """
        if self.why is None:
            self.why = why
            if self._task is not None:
                self._cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("what can be interrupted is a block of a task")
        self._task, self._cancelling = task, task.cancelling()
        if self.why is not None:
            # Not now: where the block does not wait, the task would be cancelled as it waits for something else.
            asyncio.get_running_loop().call_soon(self._cancel)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if not self._has_cancelled or task is None:
            return False
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def _cancel(self) -> None:
        if self._task is not None:
            self._has_cancelled = True
            self._task.cancel()
