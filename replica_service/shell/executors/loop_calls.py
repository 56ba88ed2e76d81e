"""What runners execute: running calls and their cancellation, batches, and streaks.

Invariants: a call is cancelled once, and once more at the end of the grace. A cancellation that is still pending when
its call ends hits no other call of the runner.
Owner: the executor of `async def` methods, on the loop of its handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextvars import Context, copy_context
from sys import getrefcount
from types import CoroutineType, coroutine
from typing import Any
from weakref import getweakrefcount

from replica_service.core.events import BatchEnded, TurnEnded, TurnsEnded, WorkReturned
from replica_service.core.failures import CUT_OFF, TAKEN_BACK
from replica_service.core.runs import RouterPeer, StartTurn
from replica_service.core.work import StartBatch, StartNow, TurnClaims
from replica_service.shell.executors.batches import BatchRun, Invocation
from replica_service.shell.executors.protocol import HandlerEnvironment, Outcome, Unsendable, deliver, encoder_of
from replica_service.shell.executors.runners import (
    LARGE_BYTES,
    Runners,
    Streak,
    as_coroutine,
    follows,
    is_dropped,
    this_task,
)
from replica_service.shell.handler.call_context import (
    NEXT,
    SinglePlace,
    TaskMarks,
    TaskPlace,
    batch_place,
    in_fresh_contexts,
)
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.telemetry import traced_batch
from slotmesh.calls.id_ranges import among
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place
from slotmesh.handlers.rpc_context import RpcRaised


class RunningCalls:
    """Calls and batches of one executor that have started and not ended."""

    def __init__(self, errors: HandlerErrors, runners: Runners) -> None:
        self._errors = errors
        self._runners = runners
        self.sites: dict[asyncio.Task[Any], TaskPlace] = {}
        """The place of each runner that executes calls. Between two steps of the loop it is in a call that waits."""
        self.batching: set[asyncio.Task[Any]] = set()
        """Runners that execute a batch."""
        self.cancelled: dict[asyncio.Task[Any], Failure] = {}
        """Runners whose call was cancelled and has not ended: the failure if the cancellation ends it."""

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Cancels the router's running calls in these ranges of run ids, both ends included."""
        waiting = {
            site.run_id: task
            for task, site in self.sites.items()
            if site.run.link is link and site.run.ends_with_caller
        }
        for first, last in ranges:
            for run_id in among(waiting, first, last):
                self._cancel(waiting[run_id], TAKEN_BACK)

    def abandon(self, link: RouterPeer) -> None:
        """Cancels the calls of an ended link, except those of a session, with a request id or without reply."""
        for task, site in list(self.sites.items()):
            run = site.run
            if run.link is link and run.record is None and run.ends_with_caller and not run.options.no_reply:
                self._cancel(task, TAKEN_BACK)

    def cut_off(self) -> None:
        """Cancels all calls: the grace is over."""
        for task in [*self.sites, *self.batching]:
            self.cancelled.setdefault(task, CUT_OFF)
            task.cancel()  # again, if the call has suppressed an earlier cancellation

    def _cancel(self, task: asyncio.Task[Any], failure: Failure) -> None:
        """Cancels a runner's call, once. A call that ends in this step of the loop is not affected."""
        if task not in self.cancelled:
            self.cancelled[task] = failure
            task.cancel()

    async def failure_of(self, error: BaseException, task: asyncio.Task[Any], method: str) -> Failure:
        """Returns the failure of a call that raised `error`. Ends the runner if the process ends."""
        if self._runners.is_closing:
            raise asyncio.CancelledError
        failure = await self.uncancelled(task)
        raised = error.error if isinstance(error, RpcRaised) else error
        if failure is not None and isinstance(raised, asyncio.CancelledError):
            return failure
        return self._errors.failure_of(error, method)

    async def uncancelled(self, task: asyncio.Task[Any]) -> Failure | None:
        """Clears a pending cancellation of the runner, so that it hits no other call.

        Returns the failure with which the ended call was cancelled, if it was.
        """
        while task.cancelling():
            task.uncancel()
            try:
                await asyncio.sleep(0)  # a pending cancellation is raised here
            except asyncio.CancelledError:
                if self._runners.is_closing:
                    raise
        return self.cancelled.pop(task, None)


class AsyncBatches:
    """Executes batches of `async def` batch methods, each in the runner that has taken it."""

    def __init__(self, environment: HandlerEnvironment, runners: Runners, running: RunningCalls) -> None:
        self._methods, self._sink, self._errors, self._now = environment
        self._runners = runners
        self._running = running

    async def run(self, batch: StartBatch, marks: TaskMarks) -> None:
        """Executes all invocations of the batch. `marks`: of the current task."""
        left = BatchRun(batch, self._methods[batch.method], self._now)
        if left.is_to_return:
            self._sink.post(WorkReturned(batch))
        else:
            await self._execute(left, marks)

    async def _execute(self, left: BatchRun, marks: TaskMarks | None = None) -> None:
        """Executes the remaining invocations. Continues in a new task if an ended call has kept the current one."""
        sink, marks = self._sink, marks or TaskMarks()
        while True:
            context = copy_context()
            invocation = context.run(left.next)
            if left.is_to_return:
                sink.post(WorkReturned(left.batch))
                return
            deliver(left.take_failed(), sink)
            if invocation is None:
                break
            deliver(await self._invoke(invocation, left, context), sink)
            if marks.are_left:
                self._runners.start(self._execute(left))
                return
        sink.post(BatchEnded(left.batch))

    async def _invoke(self, invocation: Invocation, left: BatchRun, context: Context) -> Iterable[Outcome]:
        """Calls the method in this context. Returns the outcomes of the calls."""
        task, running, method = this_task(), self._running, left.method
        running.batching.add(task)
        context.run(current_place.set, batch_place(invocation.parts, self._now))
        traced = context.run(traced_batch, invocation.parts, self._now())
        try:
            outcomes = await in_fresh_contexts(self._called(invocation, left), context)
            await running.uncancelled(task)  # the handler has suppressed the cancellation
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await running.failure_of(error, task, method.name)
            return list(invocation.outcomes(failure, method, self._errors.failure_of))
        finally:
            running.batching.discard(task)
            if traced is not None:
                context.run(traced.leave)
        return outcomes

    async def _called(self, invocation: Invocation, left: BatchRun) -> Iterable[Outcome]:
        """Calls the method. Runs in the context of the invocation."""
        left.batch.runner = left.begin(invocation)
        returned = invocation.checked(await left.batch.runner, left.method)
        return list(invocation.outcomes(returned, left.method, self._errors.failure_of))


class AsyncStreaks:
    """Executes streaks of `async def` methods: turns of one call each, of neighbours, in one step of the loop."""

    def __init__(
        self, environment: HandlerEnvironment, turns: TurnClaims, runners: Runners, running: RunningCalls
    ) -> None:
        self._methods, self._sink, _, self._now = environment
        self._turns = turns
        self._runners = runners
        self._running = running

    async def run(self, turn: StartTurn, generation: int) -> None:
        """Executes turns of one call each, of neighbours, until one of them waits or raises."""
        run, lo, runners, running, sink = turn.run, turn.lo, self._runners, self._running, self._sink
        found = self._turns.claim(turn, lo, self._now())
        if not isinstance(found, StartNow):
            if found is not None:
                sink.failed(run, lo, 1, found.failure)
            sink.post(TurnEnded(turn, lo if found is None else turn.hi))
            return
        results = list[bytes]()
        streak = Streak(turn)
        runners.gathering, runners.gathered_lo, runners.gathered = streak, lo, results
        failure: Failure | None = None
        late: bytes | None = None
        unstarted: StartTurn | None = None
        task = this_task()
        site = running.sites[task] = TaskPlace(run, lo, results, self._now, task, streak.turns)
        current_place.set(site)
        try:
            late = await in_fresh_contexts(self._calls(streak, found.until, generation, results, task))
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await running.failure_of(error, task, run.options.method)
        finally:
            del running.sites[task]
            site.leave()
        turn = streak.turns[-1]
        if has_waited := generation != runners.generation:
            if late is not None:
                sink.payloads(turn.run, turn.lo, (late,))
        else:
            runners.gathering = None
            if results:
                sink.payloads(run, lo, results)
            if failure is None and len(results) < len(streak.turns):
                unstarted = streak.turns.pop()
        if failure is not None:
            sink.failed(turn.run, turn.lo, 1, failure)
        self._end_streak([turn] if has_waited else streak.turns, unstarted)

    @coroutine
    def _calls(
        self, streak: Streak, limit: float, generation: int, results: list[bytes], task: asyncio.Task[Any]
    ) -> Generator[Any, Any, bytes | None]:
        """Steps the calls for `in_fresh_contexts`. Appends to `results`; returns the result of a call that waited.

        If the streak's last turn has neither, its call was not started.
        """
        turn, run, runners, running, clock = streak.turns[0], streak.run, self._runners, self._running, self._now
        queue, payloads, cancelling, asks = runners.queue, run.payloads, task.cancelling, asking.is_known
        until = min(runners.until, limit)
        encode = encoder_of(run)
        start = self._methods[run.options.method].start(run.options.content_type)
        references, weak_references = getrefcount(task), getweakrefcount(task)
        while True:
            if asks:
                current_place.set(SinglePlace(turn.run, turn.lo, clock))
            payload = payloads[turn.lo]
            awaited = start(payload)
            if clock() >= limit and is_dropped(awaited):
                return None
            if type(awaited) is not CoroutineType:
                awaited = as_coroutine(awaited)
            value = yield from awaited
            try:
                result = encode(value)
            except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
                raise Unsendable(error) from None
            if cancelling():
                yield from running.uncancelled(task)
            if generation != runners.generation:
                running.cancelled.pop(task, None)  # the handler has suppressed the cancellation
                return result
            results.append(result)
            limit = until
            if getrefcount(task) != references or getweakrefcount(task) != weak_references:
                return None
            if len(payload) > LARGE_BYTES and clock() >= until:
                return None  # otherwise the next payload could be decoded twice
            if not queue or (after := self._follower(turn)) is None:
                return None
            turn = after
            streak.turns.append(turn)
            yield NEXT

    def _end_streak(self, turns: Sequence[StartTurn], unstarted: StartTurn | None) -> None:
        if turns:
            self._sink.post(TurnsEnded(turns))
        if unstarted is not None:
            self._sink.post(TurnEnded(unstarted, unstarted.lo))

    def _follower(self, turn: StartTurn) -> StartTurn | None:
        """Claims and returns the next work if it continues the streak."""
        try:
            work = self._runners.queue.popleft()
        except IndexError:  # another thread has just taken it
            return None
        if follows(work, turn) and self._turns.go_on(work, work.lo):
            return work
        self._runners.queue.appendleft(work)
        return None
