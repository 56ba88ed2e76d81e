"""Runs `async def` methods on the event loop, without a task a call unless the call waits.

Purpose: takes work from the queue of its runners (see `runners.py`), and executes calls and turns. Streaks, batches and
cancellations of running calls are in `loop_calls.py`.
Invariants: calls of a StartTurn run one after another; none starts whose link is not fresh; every outcome is delivered
exactly once, like the end of each piece of work. Each call has a context of its own, and a task that executes no other
call once its own has kept it (`call_context.py`); its result is encoded before another call runs.
Owner: the engine, on its event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Iterable
from sys import getrefcount
from types import CoroutineType, coroutine
from typing import Any, Final
from weakref import getweakrefcount

from replica_service.core.events import CallsEnded, TurnEnded, WorkReturned
from replica_service.core.failures import LATE
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.work import Skip, StartBatch, StartCalls, StartNow, TurnClaims, WorkCommand, claim, is_late
from replica_service.shell.executors.batches import is_of
from replica_service.shell.executors.loop_calls import AsyncBatches, AsyncStreaks, RunningCalls
from replica_service.shell.executors.protocol import HandlerEnvironment, Unsendable, encoded, encoder_of
from replica_service.shell.executors.runners import (
    LARGE_BYTES,
    MAX_RUNNERS,
    STEP_S,
    Runners,
    as_coroutine,
    is_dropped,
    is_followed,
)
from replica_service.shell.handler.call_context import NEXT, TaskMarks, TaskPlace, in_fresh_contexts, marking
from replica_service.shell.telemetry import entered
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place
from slotmesh.transport.pump import WokenPumps

_NO_GENERATION: Final = -1
"""The generation of a runner that continues one turn alone: whether its calls wait does not matter to others."""


class AsyncExecutor:
    """Executes work of `async def` methods."""

    def __init__(
        self,
        environment: HandlerEnvironment,
        loop: asyncio.AbstractEventLoop | None = None,
        turns: TurnClaims | None = None,
        woken: WokenPumps | None = None,
    ) -> None:
        """`loop` is where calls run, and `turns` what claims them; the running one and one of its own where None.

        `woken`: streams of the same loop that write outcomes.
        """
        self._methods, self._sink, errors, self._now = environment
        self._turns = turns or TurnClaims()
        self._runners = runners = Runners(
            self._sink, loop or asyncio.get_running_loop(), self._work_off, woken or WokenPumps()
        )
        self._running = running = RunningCalls(errors, runners)
        self._streaks = AsyncStreaks(environment, self._turns, runners, running)
        self._batches = AsyncBatches(environment, runners, running)

    def start(self, work: WorkCommand) -> None:
        runners = self._runners
        runners.queue.append(work)
        if runners.is_idle:
            runners.spawn(1)

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        self._running.cancel(link, ranges)

    def abandon(self, link: RouterPeer) -> None:
        self._running.abandon(link)

    def cut_off(self) -> None:
        self._running.cut_off()

    def hold(self, turn: StartTurn) -> None:
        self._turns.hold(turn)

    def recall(self, is_wanted: Callable[[ReplicaRun], bool]) -> list[StartCalls | StartBatch]:
        return [
            work
            for work in self._runners.queue.copy()
            if not isinstance(work, StartTurn) and is_of(work, is_wanted) and self._runners.take_out(work)
        ]

    async def close(self) -> None:
        await self._runners.close()

    def _claimed(self, _turn: StartTurn, _lo: int, payloads: Iterable[bytes]) -> Iterable[bytes]:
        """Yields the payloads of the turn's claimed calls from index `lo` on, while they may start."""
        return payloads

    # -- work ------------------------------------------------------------------------------------------------------

    async def _work_off(self, generation: int) -> None:
        """Takes work from the queue until its time is over, a call has waited, or one has kept the runner's task."""
        runners = self._runners
        if runners.gathering is not None:
            runners.hand_over()
        if not runners.until:
            runners.until = self._now() + STEP_S
        queue, marks = runners.queue, TaskMarks()
        while queue and generation == runners.generation and not runners.is_late:
            try:
                work = queue.popleft()
            except IndexError:  # another thread has just taken it
                return
            if isinstance(work, StartCalls):
                await self._run_calls(work, generation, marks)
            elif isinstance(work, StartTurn):
                if queue and is_followed(work, queue):
                    await self._streaks.run(work, generation)
                else:
                    await self._run_turn(work, generation, work.lo, marks)
            else:
                await self._batches.run(work, marks)
            if generation == runners.generation and (self._now() >= runners.until or marks.are_left):
                runners.is_late = True
                return

    async def _run_calls(self, work: StartCalls, generation: int, marks: TaskMarks) -> None:
        run, sink, runners = work.run, self._sink, self._runners
        while (lo := work.lo) < work.hi:
            now = self._now()
            found = claim(run, lo, work.hi, now)
            if found is None:
                sink.post(WorkReturned(work))
                return
            if isinstance(found, Skip):
                sink.failed(run, lo, found.hi - lo, found.failure)
                sink.post(CallsEnded(run, found.hi - lo))
                work.lo = found.hi
                continue
            if now >= runners.until:
                runners.queue.appendleft(work)
                return
            reached = await self._execute(work, lo, found, generation, runners.until, marks.task)
            if generation != runners.generation:
                sink.post(CallsEnded(run, 1, waited=True))  # `hand_over` has seen to the others
                return
            work.lo = reached
            if reached > lo:
                sink.post(CallsEnded(run, reached - lo))
            if work.lo < work.hi and marks.are_left:
                runners.queue.appendleft(work)
                return

    async def _run_turn(self, turn: StartTurn, generation: int, index: int, marks: TaskMarks) -> None:
        """Executes the turn's calls from `index` on."""
        run, sink, runners = turn.run, self._sink, self._runners
        until = runners.until
        stops = run.options.stop_generation > 0
        while True:
            now = self._now()
            if now >= until and turn.lo < index < turn.stop:
                turn.next = index
                await asyncio.sleep(0)
                now = self._now()
                until = now + STEP_S
            is_first = generation == runners.generation
            found = self._turns.claim(turn, index, now, sys.maxsize if is_first else 1)
            if found is None:
                break
            if isinstance(found, Skip):
                sink.failed(run, index, found.hi - index, found.failure)
                index = found.hi
            elif is_first and not stops:
                index = await self._execute(turn, index, found, generation, until, marks.task)
            else:
                index += await self._execute_one(run, index, found, marks.task)
            if marks.are_left and index < turn.stop:
                turn.next = index
                runners.start(self._go_on(turn, index))
                return
        sink.post(TurnEnded(turn, index))

    async def _go_on(self, turn: StartTurn, index: int) -> None:
        """Executes the rest of a turn in another task, because an ended call has kept the previous one."""
        await self._run_turn(turn, _NO_GENERATION, index, TaskMarks())

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _execute(
        self,
        work: StartCalls | StartTurn,
        lo: int,
        claimed: StartNow,
        generation: int,
        until: float,
        task: asyncio.Task[Any],
    ) -> int:
        """Executes calls from index `lo` on, in this very step of the loop, until one waits, raises or keeps its task.

        Stops at `until`, after one call at least, unless it is too late for that one when its arguments are there.
        Returns the index behind the last call that it executed.
        """
        run, runners, running = work.run, self._runners, self._running
        payloads = list[bytes]()
        runners.gathering, runners.gathered_lo, runners.gathered = work, lo, payloads
        failure: Failure | None = None
        late: bytes | None = None
        site = running.sites[task] = TaskPlace(run, lo, payloads, self._now, task)
        leave = run.traced and entered(run)
        current_place.set(site)
        try:
            late = await in_fresh_contexts(self._calls(work, lo, claimed, generation, until, payloads, task))
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await running.failure_of(error, task, run.options.method)
        finally:
            del running.sites[task]
            site.leave()
            if leave is not None:
                leave()
        index = lo + len(payloads)
        if generation == runners.generation:
            runners.gathering = None
            if payloads:
                self._sink.payloads(run, lo, payloads)
        elif late is not None:
            self._sink.payloads(run, index, (late,))
            index += 1
        if failure is not None:
            self._sink.failed(run, index, 1, failure)
            index += 1
        return index

    @coroutine
    def _calls(
        self,
        work: StartCalls | StartTurn,
        lo: int,
        claimed: StartNow,
        generation: int,
        until: float,
        results: list[bytes],
        task: asyncio.Task[Any],
    ) -> Generator[Any, Any, bytes | None]:
        """Steps the calls for `in_fresh_contexts`. Appends to `results`; returns the result of a call that waited."""
        run, runners, running, now = work.run, self._runners, self._running, self._now
        until = min(until, limit := claimed.until)
        options, encode, append, cancelling = run.options, encoder_of(run), results.append, task.cancelling
        start = self._methods[options.method].start(options.content_type)
        is_raw = options.content_type == OCTET_STREAM and not options.no_reply
        # Where calls wait, runners take one each: a copy of all that is left would be too much for that.
        hi = claimed.hi if runners.count == 1 else min(claimed.hi, lo + MAX_RUNNERS)
        payloads: Iterable[bytes] = marking(run, lo, hi, now) if asking.is_known else run.payloads[lo:hi]
        if isinstance(work, StartTurn):
            payloads = self._claimed(work, lo, payloads)
        is_one = hi - lo == 1
        references, weak_references = getrefcount(task), getweakrefcount(task)
        for payload in payloads:
            if results and len(payload) > LARGE_BYTES and now() >= until:
                break  # otherwise it could be decoded twice
            awaited = start(payload)
            if now() >= limit and is_dropped(awaited):
                break
            if type(awaited) is not CoroutineType:
                awaited = as_coroutine(awaited)
            value = yield from awaited
            try:
                result = value if is_raw and type(value) is bytes else encode(value)
            except BaseException as error:  # noqa: BLE001 - a foreign object may fail in any way when it is read
                raise Unsendable(error) from None
            if cancelling():
                yield from running.uncancelled(task)
            if generation != runners.generation:
                running.cancelled.pop(task, None)  # the handler has suppressed the cancellation
                return result
            append(result)
            if getrefcount(task) != references or getweakrefcount(task) != weak_references:
                break
            if is_one:
                break
            limit = until
            yield NEXT
        return None

    async def _execute_one(self, run: ReplicaRun, index: int, claimed: StartNow, task: asyncio.Task[Any]) -> int:
        """Executes one call. Returns 0 if it was too late for it after its arguments were decoded."""
        running = self._running
        sites = running.sites
        site = sites[task] = TaskPlace(run, index, (), self._now, task)
        current_place.set(site)
        if (traced := run.traced) is not None:
            traced.enter()
        try:
            result = await in_fresh_contexts(self._call(run, index, claimed.until))
            await running.uncancelled(task)  # the handler has suppressed the cancellation
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            self._sink.failed(run, index, 1, await running.failure_of(error, task, run.options.method))
        else:
            if result is None:
                return 0
            if is_late(run, self._now()):
                self._sink.failed(run, index, 1, LATE)
            else:
                self._sink.payloads(run, index, (result,))
        finally:
            del sites[task]
            if traced is not None:
                traced.leave()
        return 1

    async def _call(self, run: ReplicaRun, index: int, until: float) -> bytes | None:
        """Executes one call in its context. Returns its result; None if it was too late for it."""
        start = self._methods[run.options.method].start(run.options.content_type)
        awaited = start(run.payloads[index])
        if self._now() >= until and is_dropped(awaited):
            return None
        return encoded(run, await awaited)
