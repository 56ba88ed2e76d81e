"""Runs `async def` methods on the event loop, without a task a call unless the call waits.

Purpose: a runner is a task that starts one call after another. One that never waits costs a coroutine and nothing more.
When a call waits, its runner stays with it to the end, so that `asyncio.current_task()` and `asyncio.timeout` are
right inside handlers, and fresh runners go on with the rest.

How a runner learns that its call has waited: whoever starts runners also schedules `_stepped`, which the event loop
calls after the first step of each of them. It begins a new generation; a runner that finds itself in an older one has
waited. Results that a waiting runner had gathered are handed over by whoever comes after it.

Invariants: calls of a StartTurn run one after another, in one task; all calls are started within a bounded time of the
loop, `STEP_S`, unless handlers block it, and none whose link is not fresh; every outcome is told exactly once, like the
end of each piece of work.
Owner: the engine, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple, cast

from replica_service.core.calls import Link, Run
from replica_service.core.commands import StartBatch, StartCalls, StartTurn
from replica_service.core.lanes import MAX_TURN_S
from replica_service.core.stops import is_stopped
from replica_service.core.verdicts import CANCELLED, EXPIRED, TAKEN_BACK
from replica_service.shell.batches import invocations, is_fresh, is_of
from replica_service.shell.handler_errors import HandlerErrors
from replica_service.shell.methods import Method
from replica_service.shell.sink import Sink
from slotmesh.errors import Failure
from slotmesh.handlers.context import NO_METADATA, current_metadata

STEP_S = 0.005
"""After this long without waiting, runners let the rest of the process have the loop."""
MAX_RUNNERS = 64
"""Runners that are started at once when calls wait: 1, 2, 4, … for as long as all of them do."""

Work = StartCalls | StartTurn | StartBatch


class _Streak:
    """Turns of one call each whose runs are neighbours: their results leave together."""

    __slots__ = ("run", "turns")

    def __init__(self, turn: StartTurn) -> None:
        self.run = turn.run
        self.turns = [turn]


class AsyncExecutor:
    """Executes work of `async def` methods."""

    def __init__(
        self, methods: Mapping[str, Method], sink: Sink, errors: HandlerErrors, now: Callable[[], float]
    ) -> None:
        self._methods = methods
        self._sink = sink
        self._errors = errors
        self._now = now
        self._queue: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._sites: dict[asyncio.Task[Any], _Site] = {}
        """Where each runner that executes calls is: between two steps of the loop, in a call that waits."""
        self._cancelled: set[asyncio.Task[Any]] = set()
        """Runners whose call was taken back, and that have not noticed yet."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """What runners start from: never that of a call whose end has led to the next one's start."""
        self._generation = 0
        self._runners = 1
        """Runners of this generation."""
        self._is_idle = True
        """No runner has been started that has not yet had its first step."""
        self._is_late = False
        """Runners of this generation stopped because their time was over."""
        self._until = 0.0
        """When the time of this generation is over; set by its first runner."""
        self._closing = False
        # What the runner that is in its first step has gathered.
        self._streak: StartCalls | StartTurn | _Streak | None = None
        self._streak_lo = 0
        self._streak_values: list[Any] = []

    def start(self, work: Work) -> None:
        self._queue.append(work)
        if self._is_idle:
            self._spawn(1)

    def cancel(self, link: Link, ranges: Iterable[tuple[int, int]]) -> None:
        """Cancels those of the router's calls that run and wait, by run ids, both ends included."""
        waiting = {site.run_id: task for task, site in self._sites.items() if site.run.link is link}
        for first, last in ranges:
            for run_id in range(first, last + 1) if last - first < len(waiting) else list(waiting):
                task = waiting.get(run_id)
                if task is not None and first <= run_id <= last and task not in self._cancelled:
                    self._cancelled.add(task)
                    task.cancel()

    def hold(self, turn: StartTurn) -> None:
        turn.stop = turn.next

    def recall(self, is_wanted: Callable[[Run], bool]) -> list[StartCalls | StartBatch]:
        recalled = [work for work in self._queue if not isinstance(work, StartTurn) and is_of(work, is_wanted)]
        for work in recalled:
            self._queue.remove(work)
        return recalled

    async def close(self) -> None:
        self._closing = True
        self._queue.clear()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- runners ---------------------------------------------------------------------------------------------------

    def _spawn(self, count: int) -> None:
        self._is_idle = False
        self._until = 0.0
        self._runners = count
        loop = self._loop
        for _ in range(count):
            self._tasks.add(loop.create_task(self._run(self._generation), context=self._context.copy()))
        loop.call_soon(self._stepped)

    def _stepped(self) -> None:
        """All runners of this generation have had their first step: they have ended, or their calls wait."""
        self._hand_over()
        self._generation += 1
        is_late, self._is_late = self._is_late, False
        if not self._queue or self._closing:
            self._is_idle = True
        else:
            self._spawn(1 if is_late else min(2 * self._runners, MAX_RUNNERS))

    def _hand_over(self) -> None:
        """The call behind those that were gathered waits, with its runner: the others have their results."""
        work = self._streak
        if work is None:
            return
        self._streak = None
        lo, values = self._streak_lo, self._streak_values
        if isinstance(work, StartCalls):
            work.lo = lo + len(values) + 1
            if work.lo < work.hi:
                self._queue.appendleft(work)
        elif isinstance(work, StartTurn):
            work.next = lo + len(values) + 1
        if values:
            self._sink.results(work.run, lo, values)
            if isinstance(work, StartCalls):
                self._sink.calls_ended(work.run, len(values))
            elif isinstance(work, _Streak):
                self._sink.turns_ended(work.turns[: len(values)])

    async def _run(self, generation: int) -> None:
        try:
            await self._work_off(generation)
        finally:
            self._tasks.discard(asyncio.current_task())

    async def _work_off(self, generation: int) -> None:
        """Takes work from the queue until its time is over, or a call has waited."""
        self._hand_over()
        if not self._until:
            self._until = self._now() + STEP_S
        queue = self._queue
        metadata = NO_METADATA
        while queue and generation == self._generation and not self._is_late:
            work = queue.popleft()
            wanted = NO_METADATA if isinstance(work, StartBatch) else work.run.options.metadata
            if wanted is not metadata:
                current_metadata.set(wanted)
                metadata = wanted
            if isinstance(work, StartCalls):
                await self._run_calls(work, generation)
            elif isinstance(work, StartTurn):
                if queue and _goes_on(work, queue[0]):
                    await self._run_streak(work, generation)
                else:
                    await self._run_turn(work, generation)
            else:
                await self._run_batch(work)
            if generation == self._generation and self._now() >= self._until:
                self._is_late = True
                return

    # -- work ------------------------------------------------------------------------------------------------------

    async def _run_calls(self, work: StartCalls, generation: int) -> None:
        run, sink = work.run, self._sink
        link = run.link
        while (lo := work.lo) < work.hi:
            now = self._now()
            if now >= run.deadline:
                sink.failed(run, lo, work.hi - lo, EXPIRED)
                sink.calls_ended(run, work.hi - lo)
                return
            if now >= link.fresh_until:
                sink.returned(work)
                return
            if now >= self._until:
                self._queue.appendleft(work)
                return
            reached = await self._execute(work, lo, generation, min(self._until, run.deadline, link.fresh_until))
            if generation != self._generation:
                sink.calls_ended(run, 1)  # the one that waited; `_hand_over` has seen to the others
                return
            work.lo = reached
            sink.calls_ended(run, reached - lo)

    async def _run_turn(self, turn: StartTurn, generation: int) -> None:
        run, sink = turn.run, self._sink
        link = run.link
        index = turn.lo
        until = self._until
        over = until - STEP_S + MAX_TURN_S
        stops = run.options.stop_generation > 0
        while index < turn.stop:
            now = self._now()
            if now >= run.deadline:
                sink.failed(run, index, turn.stop - index, EXPIRED)
                index = turn.stop
                break
            if now >= link.fresh_until:
                break
            if index > turn.lo:
                if now >= over:
                    break
                if now >= until:
                    turn.next = index
                    await asyncio.sleep(0)
                    until = self._now() + STEP_S
                    continue
            if stops and is_stopped(run, index):
                break  # the lane's next turn answers the rest
            if run.withdrawn is not None and index in run.withdrawn:
                sink.failed(run, index, 1, CANCELLED)
                index += 1
            elif run.withdrawn is None and not stops and generation == self._generation:
                index = await self._execute(turn, index, generation, min(until, run.deadline, link.fresh_until))
            else:
                turn.next = index + 1
                await self._execute_one(run, index)
                index += 1
        sink.turn_ended(turn, index)

    async def _run_streak(self, turn: StartTurn, generation: int) -> None:
        """Executes turns of one call each, of neighbours, for as long as none of them waits or raises."""
        run, lo = turn.run, turn.lo
        now = self._now()
        if now >= run.deadline or now >= run.link.fresh_until:
            await self._run_turn(turn, generation)
            return
        until = min(self._until, run.deadline, run.link.fresh_until)
        sink, queue, payloads, clock = self._sink, self._queue, run.payloads, self._now
        values: list[Any] = []
        streak = _Streak(turn)
        self._streak, self._streak_lo, self._streak_values = streak, lo, values
        error: BaseException | None = None
        task = _this_task()
        self._sites[task] = _Site(run, lo, values)
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            while True:
                turn.next = turn.hi
                value = await start(payloads[turn.lo])
                if generation != self._generation:
                    self._was_cancelled(task)  # but the handler went on
                    sink.results(turn.run, turn.lo, (value,))
                    break
                values.append(value)
                if not queue or not _goes_on(turn, queue[0]) or clock() >= until:
                    break
                turn = cast("StartTurn", queue.popleft())
                streak.turns.append(turn)
        except BaseException as caught:
            if self._closing:
                raise
            error = caught
        finally:
            del self._sites[task]
        has_waited = generation != self._generation
        if not has_waited:
            self._streak = None
            if values:
                sink.results(run, lo, values)
        if error is not None:
            sink.failed(turn.run, turn.lo, 1, self._failure_of(error, task, run))
        sink.turns_ended((turn,) if has_waited else streak.turns)

    async def _run_batch(self, batch: StartBatch) -> None:
        sink = self._sink
        if not is_fresh(batch, self._now()):
            sink.returned(batch)
            return
        method = self._methods[batch.batcher.method]
        for invocation in invocations(batch, method, sink.failed):
            try:
                returned = invocation.checked(await invocation.call(method), method)
            except BaseException as error:
                if self._closing:
                    raise
                returned = self._errors.failure_of(error, method.name)
            invocation.deliver(returned, sink.results, sink.failed)
        sink.batch_ended(batch)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _execute(self, work: StartCalls | StartTurn, lo: int, generation: int, until: float) -> int:
        """Executes calls from index `lo` on, in this very step of the loop, until one has waited or raised.

        Stops at `until`, after one call at least. Returns the index behind the last call that it executed.
        """
        run = work.run
        now = self._now
        values: list[Any] = []
        append = values.append
        self._streak, self._streak_lo, self._streak_values = work, lo, values
        error: BaseException | None = None
        task = _this_task()
        self._sites[task] = _Site(run, lo, values)
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            # Where calls wait, runners take one each: a copy of all that is left would be too much for that.
            hi = work.hi if isinstance(work, StartCalls) else work.stop
            if self._runners > 1:
                hi = min(hi, lo + MAX_RUNNERS)
            for payload in run.payloads[lo:hi]:
                value = await start(payload)
                if generation != self._generation:
                    self._was_cancelled(task)  # but the handler went on
                    index = lo + len(values)
                    self._sink.results(run, index, (value,))
                    return index + 1
                append(value)
                if now() >= until:
                    break
        except BaseException as caught:
            if self._closing:
                raise
            error = caught
        finally:
            del self._sites[task]
        index = lo + len(values)
        if generation == self._generation:
            self._streak = None
            if values:
                self._sink.results(run, lo, values)
        if error is not None:
            self._sink.failed(run, index, 1, self._failure_of(error, task, run))
            index += 1
        return index

    async def _execute_one(self, run: Run, index: int) -> None:
        task = _this_task()
        self._sites[task] = _Site(run, index, ())
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            value = await start(run.payloads[index])
        except BaseException as error:
            if self._closing:
                raise
            self._sink.failed(run, index, 1, self._failure_of(error, task, run))
        else:
            self._was_cancelled(task)  # but the handler went on
            self._sink.results(run, index, (value,))
        finally:
            del self._sites[task]

    def _failure_of(self, error: BaseException, task: asyncio.Task[Any], run: Run) -> Failure:
        if self._was_cancelled(task) and isinstance(error, asyncio.CancelledError):
            return TAKEN_BACK
        return self._errors.failure_of(error, run.options.method)

    def _was_cancelled(self, task: asyncio.Task[Any]) -> bool:
        """Whether the call that the runner has ended was taken back. The runner goes on as if nothing had been."""
        if task not in self._cancelled:
            return False
        self._cancelled.remove(task)
        task.uncancel()
        return True


class _Site(NamedTuple):
    """Which call a runner is in: the one behind those whose values it has."""

    run: Run
    lo: int
    values: Sequence[Any]

    @property
    def run_id(self) -> int:
        return self.run.first + self.lo + len(self.values)


def _goes_on(turn: StartTurn, work: Work) -> bool:
    """Whether two pieces of work are turns of one call each, of neighbours, the second right behind the first."""
    if not isinstance(work, StartTurn):
        return False
    run, after = turn.run, work.run
    return (
        after.payloads is run.payloads
        and turn.stop == turn.hi == turn.lo + 1 == work.lo
        and work.stop == work.hi == work.lo + 1
        and run.withdrawn is None
        and after.withdrawn is None
    )


def _this_task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())
