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

    __slots__ = ("_cancelling", "_task", "why")

    def __init__(self) -> None:
        self.why: WhyT | None = None
        """Why the block has to end; None where it need not."""
        self._task: asyncio.Task[Any] | None = None
        """Whose block it is; None outside of it."""
        self._cancelling = 0

    def end(self, why: WhyT) -> None:
        """Interrupts the block, or, before it, the first wait in it. Only the first reason counts.

        Not to be called by the block itself: that can return.
        """
        if self.why is None:
            self.why = why
            if self._task is not None:
                self._task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("what can be interrupted is a block of a task")
        self._task, self._cancelling = task, task.cancelling()
        if self.why is not None:
            task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if self.why is None or task is None:
            return False
        return task.uncancel() <= self._cancelling and kind is asyncio.CancelledError
