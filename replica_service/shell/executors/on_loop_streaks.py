"""Executes streaks of `async def` methods: turns of one call each, of neighbours, in one step of the loop.

Owner: the executor of `async def` methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replica_service.core.calls import StartTurn
from replica_service.core.events import TurnEnded, TurnsEnded
from replica_service.core.starting.claims import StartNow, TurnClaims
from replica_service.shell.executors.call_context import SinglePlace
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.executors.runners import LARGE_BYTES, Runners, is_dropped, this_task
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
        run, lo, runners, running = turn.run, turn.lo, self._runners, self._running
        sink, queue, payloads, clock = self._sink, runners.queue, run.payloads, self._now
        found = self._turns.claim(turn, lo, clock())
        if not isinstance(found, StartNow):
            if found is not None:
                sink.failed(run, lo, 1, found.failure)
            sink.post(TurnEnded(turn, lo if found is None else turn.hi))
            return
        limit = found.until
        until = min(runners.until, limit)
        values: list[Any] = []
        streak = Streak(turn)
        runners.gathering, runners.gathered_lo, runners.gathered = streak, lo, values
        failure: Failure | None = None
        unstarted: StartTurn | None = None
        task = this_task()
        cancelling = task.cancelling
        site = running.sites[task] = StreakPlace(streak, lo, values, clock, task)
        current_place.set(site)
        asks = asking.is_known
        try:
            start = self._methods[run.options.method].start(run.options.content_type)
            while True:
                if asks:
                    current_place.set(SinglePlace(turn.run, turn.lo, clock))
                payload = payloads[turn.lo]
                awaited = start(payload)
                if clock() >= limit and is_dropped(awaited):
                    unstarted = streak.turns.pop()
                    break
                value = await awaited
                if cancelling():
                    await running.uncancelled(task)
                if generation != runners.generation:
                    running.cancelled.pop(task, None)  # but the handler went on
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
            failure = await running.failure_of(error, task, run.options.method)
        finally:
            del running.sites[task]
            site.task = None
        has_waited = generation != runners.generation
        if not has_waited:
            runners.gathering = None
            if values:
                sink.results(run, lo, values)
        if failure is not None:
            sink.failed(turn.run, turn.lo, 1, failure)
        self._end_streak([turn] if has_waited else streak.turns, unstarted)

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
