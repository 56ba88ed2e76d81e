"""Executes streaks of `async def` methods: turns of one call each, of neighbours, in one step of the loop.

Owner: the executor of `async def` methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from sys import getrefcount
from types import CoroutineType, coroutine
from typing import Any
from weakref import getweakrefcount

from replica_service.core.calls import StartTurn
from replica_service.core.events import TurnEnded, TurnsEnded
from replica_service.core.starting.claims import StartNow, TurnClaims
from replica_service.shell.executors.call_context import SinglePlace
from replica_service.shell.executors.encoding import Unsendable, encoder_of
from replica_service.shell.executors.islands import NEXT, islands
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.executors.runners import LARGE_BYTES, Runners, as_coroutine, is_dropped, this_task
from replica_service.shell.executors.running_calls import RunningCalls
from replica_service.shell.executors.streaks import Streak, StreakPlace, follows
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.errors import Failure
from slotmesh.handlers.context import asking, current_place


class AsyncStreaks:
    """Executes turns that follow one another as if they were one run."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        sink: OutcomeSink,
        now: Callable[[], float],
        turns: TurnClaims,
        runners: Runners,
        running: RunningCalls,
    ) -> None:
        self._methods = methods
        self._sink = sink
        self._now = now
        self._turns = turns
        self._runners = runners
        self._running = running

    async def run(self, turn: StartTurn, generation: int) -> None:
        """Executes turns of one call each, of neighbours, for as long as none of them waits or raises."""
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
        site = running.sites[task] = StreakPlace(streak, lo, results, self._now, task)
        current_place.set(site)
        try:
            late = await islands(self._calls(streak, found.until, generation, results, task))
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
        """The calls, for `islands`. Their results go to `results`; that of a call that has waited is returned.

        The last of the streak's turns was not started where it has neither.
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
                running.cancelled.pop(task, None)  # but the handler went on
                return result
            results.append(result)
            limit = until
            if getrefcount(task) != references or getweakrefcount(task) != weak_references:
                return None
            if len(payload) > LARGE_BYTES and clock() >= until:
                return None  # or the next one would be decoded twice
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
        """The next work, where it goes on with a streak: from here on it has started."""
        try:
            work = self._runners.queue.popleft()
        except IndexError:  # another thread has taken it in this moment
            return None
        if follows(work, turn) and self._turns.go_on(work, work.lo):
            return work
        self._runners.queue.appendleft(work)
        return None
