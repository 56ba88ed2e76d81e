"""Runs `async def` methods on the event loop, without a task a call unless the call waits.

Purpose: takes work from the queue of its runners (see `runners.py`), and executes calls and turns. Streaks, batches and
what is cancelled while it runs have parts of their own.
Invariants: calls of a StartTurn run one after another, in one task; none starts whose link is not fresh; every outcome
is delivered exactly once, like the end of each piece of work.
Owner: the engine, on its event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from replica_service.core.calls import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.commands import StartBatch, StartCalls, WorkCommand
from replica_service.core.events import CallsEnded, TurnEnded, WorkReturned
from replica_service.core.failures import LATE
from replica_service.core.lanes.lane_history import is_late
from replica_service.core.starting.claims import Skip, StartNow, TurnClaims, claim
from replica_service.shell.call_traces import entered
from replica_service.shell.executors.batch_invocations import is_of
from replica_service.shell.executors.call_context import TaskPlace, marking
from replica_service.shell.executors.on_loop_batches import AsyncBatches
from replica_service.shell.executors.on_loop_streaks import AsyncStreaks
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.executors.runners import LARGE_BYTES, MAX_RUNNERS, STEP_S, Runners, is_dropped, this_task
from replica_service.shell.executors.running_calls import RunningCalls
from replica_service.shell.executors.streaks import is_followed
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place
from slotmesh.runtime.pump import WokenPumps


class AsyncExecutor:
    """Executes work of `async def` methods."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        sink: OutcomeSink,
        errors: HandlerErrors,
        now: Callable[[], float],
        loop: asyncio.AbstractEventLoop | None = None,
        turns: TurnClaims | None = None,
        woken: WokenPumps | None = None,
    ) -> None:
        """`loop` is where calls run, and `turns` what claims them; the running one and one of its own where None.

        `woken`: streams of the same loop that write outcomes.
        """
        self._methods = methods
        self._sink = sink
        self._now = now
        self._turns = turns or TurnClaims()
        self._runners = runners = Runners(
            sink, loop or asyncio.get_running_loop(), self._work_off, woken or WokenPumps()
        )
        self._running = running = RunningCalls(errors, runners)
        self._streaks = AsyncStreaks(methods, sink, now, self._turns, runners, running)
        self._batches = AsyncBatches(methods, sink, errors, now, running)

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
        """The payloads of the turn's calls from index `lo` on, which were claimed, for as long as they may start."""
        return payloads

    # -- work ------------------------------------------------------------------------------------------------------

    async def _work_off(self, generation: int) -> None:
        """Takes work from the queue until its time is over, or a call has waited."""
        runners = self._runners
        if runners.gathering is not None:
            runners.hand_over()
        if not runners.until:
            runners.until = self._now() + STEP_S
        queue = runners.queue
        while queue and generation == runners.generation and not runners.is_late:
            try:
                work = queue.popleft()
            except IndexError:  # another thread has taken it in this moment
                return
            if isinstance(work, StartCalls):
                await self._run_calls(work, generation)
            elif isinstance(work, StartTurn):
                if queue and is_followed(work, queue):
                    await self._streaks.run(work, generation)
                else:
                    await self._run_turn(work, generation)
            else:
                await self._batches.run(work)
            if generation == runners.generation and self._now() >= runners.until:
                runners.is_late = True
                return

    async def _run_calls(self, work: StartCalls, generation: int) -> None:
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
            reached = await self._execute(work, lo, found, generation, runners.until)
            if generation != runners.generation:
                sink.post(CallsEnded(run, 1, waited=True))  # `hand_over` has seen to the others
                return
            work.lo = reached
            if reached > lo:
                sink.post(CallsEnded(run, reached - lo))

    async def _run_turn(self, turn: StartTurn, generation: int) -> None:
        run, sink, runners = turn.run, self._sink, self._runners
        index = turn.lo
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
                index = await self._execute(turn, index, found, generation, until)
            else:
                index += await self._execute_one(run, index, found)
        sink.post(TurnEnded(turn, index))

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _execute(
        self, work: StartCalls | StartTurn, lo: int, claimed: StartNow, generation: int, until: float
    ) -> int:
        """Executes calls from index `lo` on, in this very step of the loop, until one has waited or raised.

        Stops at `until`, after one call at least, unless it is too late for that one when its arguments are there.
        Returns the index behind the last call that it executed.
        """
        run, runners, running, now = work.run, self._runners, self._running, self._now
        until = min(until, limit := claimed.until)
        append = (values := list[Any]()).append
        runners.gathering, runners.gathered_lo, runners.gathered = work, lo, values
        failure: Failure | None = None
        task: Any = asyncio.current_task()
        cancelling = task.cancelling
        site = running.sites[task] = TaskPlace(run, lo, values, now, task)
        leave = run.traced and entered(run)
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            # Where calls wait, runners take one each: a copy of all that is left would be too much for that.
            hi = claimed.hi if runners.count == 1 else min(claimed.hi, lo + MAX_RUNNERS)
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
                if now() >= limit and is_dropped(awaited):
                    break
                value = await awaited
                if cancelling():
                    await running.uncancelled(task)
                if generation != runners.generation:
                    running.cancelled.pop(task, None)  # but the handler went on
                    index = lo + len(values)
                    self._sink.results(run, index, (value,))
                    return index + 1
                append(value)
                limit = until
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await running.failure_of(error, task, run.options.method)
        finally:
            del running.sites[task]
            site.task = None
            if leave is not None:
                leave()
        index = lo + len(values)
        if generation == runners.generation:
            runners.gathering = None
            if values:
                self._sink.results(run, lo, values)
        if failure is not None:
            self._sink.failed(run, index, 1, failure)
            index += 1
        return index

    async def _execute_one(self, run: ReplicaRun, index: int, claimed: StartNow) -> int:
        """Executes one call; returns 0 where it was too late for it when its arguments were there."""
        task, running = this_task(), self._running
        sites = running.sites
        site = sites[task] = TaskPlace(run, index, (), self._now, task)
        current_place.set(site)
        if (traced := run.traced) is not None:
            traced.enter()
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            awaited = start(run.payloads[index])
            if self._now() >= claimed.until and is_dropped(awaited):
                return 0
            value = await awaited
            await running.uncancelled(task)  # but the handler went on
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            self._sink.failed(run, index, 1, await running.failure_of(error, task, run.options.method))
        else:
            if is_late(run, self._now()):
                self._sink.failed(run, index, 1, LATE)
            else:
                self._sink.results(run, index, (value,))
        finally:
            del sites[task]
            if traced is not None:
                traced.leave()
        return 1
