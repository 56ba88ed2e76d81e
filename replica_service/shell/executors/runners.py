"""Runners: tasks that execute calls in sequence, so that a call has its own task only if it waits.

Purpose: a call that never waits costs a coroutine and a context, and no task. When a call waits, its runner stays with
it to the end, so that `asyncio.current_task()` and `asyncio.timeout` are right inside handlers, and new runners
continue with the rest. A runner whose task was kept by an ended call executes no other call.

How a runner detects that its call has waited: the code that starts runners also schedules `stepped`, which the event
loop calls after the first step of each runner. It begins a new generation; a runner of an older generation has waited.
Results that a waiting runner had gathered are delivered by the next runner.

A streak is a sequence of turns of one call each whose runs are neighbours, executed as if they were one run, so that
many ordering keys with one call each are as cheap as one key with many calls.

Invariants: all calls are started within a bounded time of the loop, `STEP_S`, unless handlers block it; results that a
runner has gathered are delivered exactly once, by itself or by `hand_over`.
Owner: the executor of `async def` methods, on the loop of its handler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, TypeGuard

from replica_service.core.events import CallsEnded, TurnsEnded
from replica_service.core.runs import StartTurn
from replica_service.core.work import StartCalls, WorkCommand
from replica_service.shell.executors.protocol import CLOSE_S, OutcomeSink
from replica_service.shell.handler.call_context import base_context
from slotmesh.transport.pump import WokenPumps


class Streak:
    """Turns whose results are delivered together."""

    __slots__ = ("run", "turns")

    def __init__(self, turn: StartTurn) -> None:
        self.run = turn.run
        self.turns = [turn]


def is_followed(turn: StartTurn, queue: deque[WorkCommand]) -> bool:
    """Whether the next work continues a streak. Another thread may take it meanwhile."""
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


STEP_S = 0.005
"""After this long without waiting, runners let the rest of the process have the loop."""
LARGE_BYTES = 4096
"""Before decoding more than this the clock is read, and not only after it."""
MAX_RUNNERS = 64
"""The most runners that start together: 1, 2, 4, … while all calls wait."""


class Runners:
    """The tasks of one executor, and the queue that they take work from."""

    def __init__(
        self,
        sink: OutcomeSink,
        loop: asyncio.AbstractEventLoop,
        work_off: Callable[[int], Coroutine[Any, Any, None]],
        woken: WokenPumps,
    ) -> None:
        """`work_off` is what a runner of a generation does: takes work until time is over, or a call has waited.

        `woken`: streams on this loop that have outcomes to write when all runners have had their first step.
        """
        self._woken = woken
        self._sink = sink
        self._loop = loop
        self._work_off = work_off
        self.queue: deque[WorkCommand] = deque()
        """Each operation on it is a single one, so that another thread may add to it and take from it."""
        self.context = base_context()
        """What runners start from: never that of a call whose end has led to the next one's start."""
        self.on_stepped: Callable[[], None] = self.stepped
        """Called when all runners of a generation have had their first step."""
        self._tasks: set[asyncio.Task[None] | None] = set()
        self.generation = 0
        self.count = 1
        """Runners of this generation."""
        self.is_idle = True
        """No runner has been started that has not yet had its first step."""
        self.is_late = False
        """Runners of this generation stopped because their time was over, or a call has kept the task of one."""
        self.until = 0.0
        """When the time of this generation is over; set by its first runner."""
        self.is_closing = False
        # What the runner that is in its first step has gathered.
        self.gathering: StartCalls | StartTurn | Streak | None = None
        self.gathered_lo = 0
        self.gathered: list[bytes] = []

    def take_out(self, work: WorkCommand) -> bool:
        """Takes work that has not started out of the queue; False where it has started meanwhile."""
        try:
            self.queue.remove(work)
        except ValueError:
            return False
        return True

    def spawn(self, count: int) -> None:
        """Starts a generation of this number of runners."""
        self.is_idle = False
        self.until = 0.0
        self.count = count
        loop = self._loop
        for _ in range(count):
            self._tasks.add(loop.create_task(self._run(self.generation), context=self.context.copy()))
        loop.call_soon(self.on_stepped)

    def stepped(self) -> None:
        """All runners of this generation have had their first step: they have ended, or their calls wait."""
        try:
            if self.gathering is not None:
                self.hand_over()
            self.generation += 1
        finally:
            self._woken.write()  # or no stream would write any more
        is_late, self.is_late = self.is_late, False
        if not self.queue or self.is_closing:
            self.is_idle = True
            self.gathered = []  # these results have been delivered
        else:
            self.spawn(1 if is_late else min(2 * self.count, MAX_RUNNERS))

    def hand_over(self) -> None:
        """The call behind those that were gathered waits, with its runner: the others have their results."""
        work = self.gathering
        if work is None:
            return
        self.gathering = None
        lo, values = self.gathered_lo, self.gathered
        if isinstance(work, StartCalls):
            work.lo = lo + len(values) + 1
            if work.lo < work.hi:
                self.queue.appendleft(work)
        elif isinstance(work, StartTurn):
            work.next = lo + len(values) + 1
        if values:
            self._sink.payloads(work.run, lo, values)
            if isinstance(work, StartCalls):
                self._sink.post(CallsEnded(work.run, len(values)))
            elif isinstance(work, Streak):
                self._sink.post(TurnsEnded(work.turns[: len(values)]))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task that does this and takes no other work."""
        task = self._loop.create_task(self._tracked(work), context=self.context.copy())
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled before its first step never awaits it
        self._tasks.add(task)

    async def close(self) -> None:
        """Ends all of them, as far as their calls do."""
        self.is_closing = True
        self.queue.clear()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)

    async def _run(self, generation: int) -> None:
        self._woken.is_at_work = True  # until `stepped`
        try:
            await self._work_off(generation)
        finally:
            self._tasks.discard(asyncio.current_task())

    async def _tracked(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._tasks.discard(asyncio.current_task())


def is_dropped(awaited: Any) -> bool:
    """Drops what was to be awaited. False where that may have begun already: it is no coroutine."""
    if not isinstance(awaited, Coroutine):
        return False
    awaited.close()
    return True


async def as_coroutine(awaitable: Any) -> Any:
    """Awaits what is no coroutine. Raises TypeError where it cannot be awaited."""
    return await awaitable


def this_task() -> asyncio.Task[Any]:
    """The runner that asks."""
    task: Any = asyncio.current_task()
    return task  # type: ignore[no-any-return]
