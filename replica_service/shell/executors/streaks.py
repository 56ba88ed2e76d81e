"""Streaks: turns of one call each whose runs are neighbours, executed one after another as if they were one run.

Purpose: many ordering keys with one call each are as cheap as one key with many calls.
Owner: the executors of `async def` methods.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, TypeGuard

from replica_service.core.calls import ReplicaRun, StartTurn
from replica_service.core.commands import WorkCommand
from replica_service.shell.executors.call_context import TaskPlace


class Streak:
    """Turns whose results leave together."""

    __slots__ = ("run", "turns")

    def __init__(self, turn: StartTurn) -> None:
        self.run = turn.run
        self.turns = [turn]


class StreakPlace(TaskPlace):
    """In one of the calls of a streak, whose runs differ in their ordering keys."""

    __slots__ = ("turns",)

    def __init__(
        self, streak: Streak, lo: int, values: Sequence[Any], now: Callable[[], float], task: asyncio.Task[Any]
    ) -> None:
        super().__init__(streak.run, lo, values, now, task)
        self.turns = streak.turns

    def run_of(self, done: int) -> ReplicaRun:
        return self.turns[done].run


def is_followed(turn: StartTurn, queue: deque[WorkCommand]) -> bool:
    """Whether the next work goes on with a streak. Another thread may take it meanwhile."""
    try:
        return follows(queue[0], turn)
    except IndexError:
        return False


def follows(work: WorkCommand, turn: StartTurn) -> TypeGuard[StartTurn]:
    """Whether both pieces of work are turns of one call each, of neighbours, the first right behind the second.

    Where it matters by when each of them has ended, they go one by one.
    """
    if not isinstance(work, StartTurn):
        return False
    run, after = turn.run, work.run
    return (
        after.is_of_batch(run)
        and (run.deadline == inf or not run.options.stop_generation)
        and turn.stop == turn.hi == turn.lo + 1 == work.lo
        and work.stop == work.hi == work.lo + 1
        and run.traced is None
        and after.traced is None
        and run.withdrawn is None
        and after.withdrawn is None
    )
