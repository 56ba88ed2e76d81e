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
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, cast

from replica_service.core.calls import Link, Run, StartTurn
from replica_service.core.commands import StartBatch, StartCalls, Work
from replica_service.core.lane_history import is_late
from replica_service.core.turns import Skip, Start, Turns, claim, may_begin
from replica_service.core.verdicts import CUT_OFF, LATE, TAKEN_BACK
from replica_service.shell.batches import Invocation, invocations, is_of
from replica_service.shell.handler_errors import HandlerErrors
from replica_service.shell.lateness import in_time
from replica_service.shell.methods import Method
from replica_service.shell.places import SinglePlace, TaskPlace, batch_place, marking
from replica_service.shell.sink import CLOSE_S, Sink
from replica_service.shell.streaks import Streak, StreakPlace, follows, is_followed
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place

STEP_S = 0.005
"""After this long without waiting, runners let the rest of the process have the loop."""
LARGE_BYTES = 4096
"""Whoever is about to decode more than this looks at the clock before, and not only after it."""
MAX_RUNNERS = 64
"""Runners that are started at once when calls wait: 1, 2, 4, … for as long as all of them do."""


class AsyncExecutor:
    """Executes work of `async def` methods."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        sink: Sink,
        errors: HandlerErrors,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`loop` is where calls run, and `turns` what claims them; the running one and one of its own where None."""
        self._methods = methods
        self._sink = sink
        self._errors = errors
        self._now = now
        self._turns = turns or Turns()
        self._queue: deque[Work] = deque()
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._sites: dict[asyncio.Task[Any], TaskPlace] = {}
        """Where each runner that executes calls is: between two steps of the loop, in a call that waits."""
        self._batching: set[asyncio.Task[Any]] = set()
        """Runners that execute a batch."""
        self._cancelled: dict[asyncio.Task[Any], Failure] = {}
        """Runners whose call was taken back, and that have not noticed yet: what becomes of it if it ends by that."""
        self._loop = loop or asyncio.get_running_loop()
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
        self._streak: StartCalls | StartTurn | Streak | None = None
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
                if task is not None and first <= run_id <= last:
                    self._cancel(task, TAKEN_BACK)

    def abandon(self, link: Link) -> None:
        for task, site in list(self._sites.items()):
            if site.run.link is link and site.run.record is None and not site.run.options.no_reply:
                self._cancel(task, TAKEN_BACK)

    def cut_off(self) -> None:
        for task in [*self._sites, *self._batching]:
            self._cancelled.setdefault(task, CUT_OFF)
            task.cancel()  # once more where it has gone on before

    def _cancel(self, task: asyncio.Task[Any], failure: Failure) -> None:
        """Cancels what a runner executes, once, unless it ends in this very step of the loop."""
        if task not in self._cancelled:
            self._cancelled[task] = failure
            task.cancel()

    def hold(self, turn: StartTurn) -> None:
        self._turns.hold(turn)

    def recall(self, is_wanted: Callable[[Run], bool]) -> list[StartCalls | StartBatch]:
        return [
            work
            for work in self._queue.copy()
            if not isinstance(work, StartTurn) and is_of(work, is_wanted) and self._take_out(work)
        ]

    async def close(self) -> None:
        self._closing = True
        self._queue.clear()
        tasks = [task for task in self._tasks if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)

    # -- the queue: each operation is a single one, so that another thread may add to it and take from it ------------

    def _take_out(self, work: Work) -> bool:
        """Takes work that has not started out of the queue; False where it has started meanwhile."""
        try:
            self._queue.remove(work)
        except ValueError:
            return False
        return True

    def _follower(self, turn: StartTurn) -> StartTurn | None:
        """The next work, where it goes on with a streak: from here on it has started."""
        try:
            work = self._queue.popleft()
        except IndexError:  # another thread has taken it in this moment
            return None
        if follows(work, turn) and self._turns.go_on(work, work.lo):
            return work
        self._queue.appendleft(work)
        return None

    def _claimed(self, _turn: StartTurn, _lo: int, payloads: Iterable[bytes]) -> Iterable[bytes]:
        """The payloads of the turn's calls from index `lo` on, which were claimed, for as long as they may start."""
        return payloads

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
            elif isinstance(work, Streak):
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
        while queue and generation == self._generation and not self._is_late:
            try:
                work = queue.popleft()
            except IndexError:  # another thread has taken it in this moment
                return
            if isinstance(work, StartCalls):
                await self._run_calls(work, generation)
            elif isinstance(work, StartTurn):
                if queue and is_followed(work, queue):
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
        while (lo := work.lo) < work.hi:
            now = self._now()
            found = claim(run, lo, work.hi, now)
            if found is None:
                sink.returned(work)
                return
            if isinstance(found, Skip):
                sink.failed(run, lo, found.hi - lo, found.failure)
                sink.calls_ended(run, found.hi - lo)
                work.lo = found.hi
                continue
            if now >= self._until:
                self._queue.appendleft(work)
                return
            reached = await self._execute(work, lo, found, generation, self._until)
            if generation != self._generation:
                sink.calls_ended(run, 1, waited=True)  # `_hand_over` has seen to the others
                return
            work.lo = reached
            if reached > lo:
                sink.calls_ended(run, reached - lo)

    async def _run_turn(self, turn: StartTurn, generation: int) -> None:
        run, sink = turn.run, self._sink
        index = turn.lo
        until = self._until
        stops = run.options.stop_generation > 0
        while True:
            now = self._now()
            if now >= until and turn.lo < index < turn.stop:
                turn.next = index
                await asyncio.sleep(0)
                now = self._now()
                until = now + STEP_S
            is_first = generation == self._generation
            found = self._turns.claim(turn, index, now, sys.maxsize if is_first else 1)
            if found is None:
                break
            if isinstance(found, Skip):
                sink.failed(run, index, found.hi - index, found.failure)
                index = found.hi
            elif is_first and not stops:
                index = await self._execute(turn, index, found, generation, until)
            else:
                index += await self._execute_one(run, index, found)
        sink.turn_ended(turn, index)

    async def _run_streak(self, turn: StartTurn, generation: int) -> None:
        """Executes turns of one call each, of neighbours, for as long as none of them waits or raises."""
        run, lo = turn.run, turn.lo
        sink, queue, payloads, clock = self._sink, self._queue, run.payloads, self._now
        found = self._turns.claim(turn, lo, clock())
        if not isinstance(found, Start):
            if found is not None:
                sink.failed(run, lo, 1, found.failure)
            sink.turn_ended(turn, lo if found is None else turn.hi)
            return
        limit = found.until
        until = min(self._until, limit)
        values: list[Any] = []
        streak = Streak(turn)
        self._streak, self._streak_lo, self._streak_values = streak, lo, values
        failure: Failure | None = None
        unstarted: StartTurn | None = None
        task = _this_task()
        cancelling = task.cancelling
        site = self._sites[task] = StreakPlace(streak, lo, values, clock, task)
        current_place.set(site)
        asks = asking.is_known
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            while True:
                if asks:
                    current_place.set(SinglePlace(turn.run, turn.lo, clock))
                payload = payloads[turn.lo]
                awaited = start(payload)
                if clock() >= limit and _is_dropped(awaited):
                    unstarted = streak.turns.pop()
                    break
                value = await awaited
                if cancelling():
                    await self._uncancelled(task)
                if generation != self._generation:
                    self._cancelled.pop(task, None)  # but the handler went on
                    sink.results(turn.run, turn.lo, (value,))
                    break
                values.append(value)
                limit = until
                if len(payload) > LARGE_BYTES and clock() >= until:
                    break  # or the next one would be decoded twice
                if not queue or (after := self._follower(turn)) is None:
                    break
                turn = after
                streak.turns.append(turn)
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await self._failure_of(error, task, run.options.method)
        finally:
            del self._sites[task]
            site.task = None
        has_waited = generation != self._generation
        if not has_waited:
            self._streak = None
            if values:
                sink.results(run, lo, values)
        if failure is not None:
            sink.failed(turn.run, turn.lo, 1, failure)
        self._end_streak([turn] if has_waited else streak.turns, unstarted)

    def _end_streak(self, turns: Sequence[StartTurn], unstarted: StartTurn | None) -> None:
        if turns:
            self._sink.turns_ended(turns)
        if unstarted is not None:
            self._sink.turn_ended(unstarted, unstarted.lo)

    async def _run_batch(self, batch: StartBatch) -> None:
        sink = self._sink
        if not may_begin(batch.parts, self._now()):
            sink.returned(batch)
            return
        method = self._methods[batch.batcher.method]
        task = _this_task()
        unsound: list[tuple[Run, int, int, Failure]] = []

        def tell_unsound() -> None:
            for failed in unsound:
                sink.failed(*failed)
            unsound.clear()

        for whole in invocations(batch, method, lambda *failed: unsound.append(failed)):
            invocation: Invocation | None = whole
            if batch.began is not None:
                invocation = in_time(whole, batch, method, self._now(), sink.failed)
            elif not may_begin(batch.parts, self._now()):
                sink.returned(batch)  # as a whole: nobody has heard of those that are unsound
                return
            tell_unsound()
            if invocation is None:
                continue
            self._batching.add(task)
            current_place.set(batch_place(invocation.parts, self._now))
            try:
                batch.began, batch.runner = self._now(), invocation.call(method)
                returned = invocation.checked(await batch.runner, method)
                await self._uncancelled(task)  # but the handler went on
            except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
                returned = await self._failure_of(error, task, method.name)
            finally:
                self._batching.discard(task)
            invocation.deliver(returned, method, self._errors.failure_of, sink.results, sink.failed)
        tell_unsound()
        sink.batch_ended(batch)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _execute(
        self, work: StartCalls | StartTurn, lo: int, claimed: Start, generation: int, until: float
    ) -> int:
        """Executes calls from index `lo` on, in this very step of the loop, until one has waited or raised.

        Stops at `until`, after one call at least, unless it is too late for that one when its arguments are there.
        Returns the index behind the last call that it executed.
        """
        run = work.run
        limit = claimed.until
        until = min(until, limit)
        now = self._now
        values: list[Any] = []
        append = values.append
        self._streak, self._streak_lo, self._streak_values = work, lo, values
        failure: Failure | None = None
        task = _this_task()
        cancelling = task.cancelling
        site = self._sites[task] = TaskPlace(run, lo, values, now, task)
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            # Where calls wait, runners take one each: a copy of all that is left would be too much for that.
            hi = claimed.hi if self._runners == 1 else min(claimed.hi, lo + MAX_RUNNERS)
            if asking.is_known:
                payloads: Iterable[bytes] = marking(run, lo, hi, now)
            else:
                payloads = run.payloads[lo:hi]
                current_place.set(site)
            if isinstance(work, StartTurn):
                payloads = self._claimed(work, lo, payloads)
            for payload in payloads:
                if values and len(payload) > LARGE_BYTES and now() >= until:
                    break  # or it would be decoded twice
                awaited = start(payload)
                if now() >= limit and _is_dropped(awaited):
                    break
                value = await awaited
                if cancelling():
                    await self._uncancelled(task)
                if generation != self._generation:
                    self._cancelled.pop(task, None)  # but the handler went on
                    index = lo + len(values)
                    self._sink.results(run, index, (value,))
                    return index + 1
                append(value)
                limit = until
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await self._failure_of(error, task, run.options.method)
        finally:
            del self._sites[task]
            site.task = None
        index = lo + len(values)
        if generation == self._generation:
            self._streak = None
            if values:
                self._sink.results(run, lo, values)
        if failure is not None:
            self._sink.failed(run, index, 1, failure)
            index += 1
        return index

    async def _execute_one(self, run: Run, index: int, claimed: Start) -> int:
        """Executes one call; returns 0 where it was too late for it when its arguments were there."""
        task = _this_task()
        site = self._sites[task] = TaskPlace(run, index, (), self._now, task)
        current_place.set(site)
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            awaited = start(run.payloads[index])
            if self._now() >= claimed.until and _is_dropped(awaited):
                return 0
            value = await awaited
            await self._uncancelled(task)  # but the handler went on
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            self._sink.failed(run, index, 1, await self._failure_of(error, task, run.options.method))
        else:
            if is_late(run, self._now()):
                self._sink.failed(run, index, 1, LATE)
            else:
                self._sink.results(run, index, (value,))
        finally:
            del self._sites[task]
        return 1

    async def _failure_of(self, error: BaseException, task: asyncio.Task[Any], method: str) -> Failure:
        """What callers hear of it. Where the process ends, the runner does."""
        if self._closing:
            raise asyncio.CancelledError
        failure = await self._uncancelled(task)
        if failure is not None and isinstance(error, asyncio.CancelledError):
            return failure
        return self._errors.failure_of(error, method)

    async def _uncancelled(self, task: asyncio.Task[Any]) -> Failure | None:
        """Why what the runner has ended was taken back, if it was.

        The runner goes on as if nothing had been: what is left of cancelling it, be it by its handler, hits no other
        call.
        """
        while task.cancelling():
            task.uncancel()
            try:
                await asyncio.sleep(0)  # what was not thrown yet is thrown here
            except asyncio.CancelledError:
                if self._closing:
                    raise
        return self._cancelled.pop(task, None)


def _is_dropped(awaited: Any) -> bool:
    """Drops what was to be awaited. False where that may have begun already: it is no coroutine."""
    if not isinstance(awaited, Coroutine):
        return False
    awaited.close()
    return True


def _this_task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())
