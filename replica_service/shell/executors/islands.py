"""Gives each call a context and a task of its own, although one task executes many calls, one after another.

Purpose: a context variable that a call sets, and a task that it keeps, must not reach another caller's call. A task for
each call would cost more than most calls. `islands` steps the calls itself, each in a fresh copy of the task's context,
which user code never changes. A task is shared by calls only while none of them has kept it: `TaskMarks` finds that out
when a call has ended, and the task then executes no other one.
Invariants: all steps of one call run in one context, and under one `asyncio.current_task()`; nothing is shared by the
contexts of two calls but what was in the task's context before the first.
Owner: the executors of `async def` methods. Those of `def` methods run each call by `Context.run`.
"""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from sys import getrefcount
from types import coroutine
from typing import Any, Final, TypeVar, cast
from weakref import getweakrefcount

ResultT = TypeVar("ResultT")

NEXT: Final = object()
"""What is yielded to `islands` between two calls: from there on it is another context."""


@coroutine
def islands(
    calls: Generator[Any, Any, ResultT] | Coroutine[Any, Any, ResultT], context: Context | None = None
) -> Generator[Any, Any, ResultT]:
    """Runs it in a fresh copy of the current context, and in another one whenever it yields NEXT.

    `context`: the first one of these, if it was made before.
    """
    send = calls.send
    run = (context or copy_context()).run
    try:
        while True:
            waits_for = run(send, None)
            while waits_for is not NEXT:
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 - the call gets it where it waits
                    waits_for = run(calls.throw, error)
                else:
                    waits_for = run(send, sent)
            run = copy_context().run
    except StopIteration as ended:
        result: ResultT = ended.value
        return result


def base_context() -> Context:
    """What contexts of calls are copies of: the current one, without decimal's, which is changed in place."""
    base = Context()
    for variable, value in copy_context().items():
        if type(value) is not decimal.Context:
            base.run(variable.set, value)
    return base


class TaskMarks:
    """What the current task looks like before calls are executed in it."""

    __slots__ = ("_name", "_references", "_weak_references", "task")

    def __init__(self) -> None:
        self.task = cast("Any", asyncio.current_task())
        self._name = self.task.get_name()
        self._references = getrefcount(self.task)
        self._weak_references = getweakrefcount(self.task)

    @property
    def are_left(self) -> bool:
        """Whether a call that has ended keeps the task, or has left something at it.

        Asked where no local variable has the task that had it when this was made.
        """
        return (
            getrefcount(self.task) != self._references
            or getweakrefcount(self.task) != self._weak_references
            or self.task.get_name() is not self._name
            or bool(self.task._callbacks)
        )
