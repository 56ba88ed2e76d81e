"""Runs `async def` methods on the handler's own loop, in another thread than the engine's.

Purpose: a handler that blocks its loop blocks nothing else: health, heartbeats, streams and `def` methods continue. It
is `AsyncExecutor` with a thread boundary between it and the engine.
Invariants: work taken from the queue has started, except turns, whose calls are claimed one by one. The queue is shared
without a lock, because each access is a single atomic operation; claims and holds of a turn exclude each other. A call
that is cancelled while the handler blocks its loop never starts.
Owner: the engine, which calls the methods of an `Executor` on its loop. Everything else runs on the handler's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from replica_service.core.events import CallsEnded, TurnEnded, WorkReturned
from replica_service.core.failures import CANCELLED
from replica_service.core.runs import RouterPeer, StartTurn
from replica_service.core.work import StartCalls, TurnClaims, WorkCommand
from replica_service.shell.executors.loop import AsyncExecutor
from replica_service.shell.executors.protocol import CLOSE_S, HandlerEnvironment
from replica_service.shell.executors.relay import OutcomeRelay
from replica_service.shell.handler.handler_loop import HandlerLoop
from slotmesh.calls.id_ranges import Range, common, merged, without
from slotmesh.runtime.tasks import call_on


class OwnLoopExecutor(AsyncExecutor):
    """Executes work of `async def` methods on the handler's own loop."""

    def __init__(self, environment: HandlerEnvironment, handler_loop: HandlerLoop) -> None:
        relay = OutcomeRelay(environment.sink, asyncio.get_running_loop())
        super().__init__(environment._replace(sink=relay), handler_loop.loop, TurnClaims(threading.Lock()))
        self._handler_loop = handler_loop
        self._loop = handler_loop.loop
        self._runners.on_stepped = self._stepped
        self._is_woken = False

    def start(self, work: WorkCommand) -> None:
        runners = self._runners
        runners.queue.append(work)
        if runners.is_idle and not self._is_woken:
            self._is_woken = True
            self._post(self._wake)

    def hold(self, turn: StartTurn) -> None:
        super().hold(turn)
        if turn.stop == turn.lo and self._runners.take_out(turn):
            self._sink.post(TurnEnded(turn, turn.lo))  # without waiting for a handler that blocks its loop

    def cancel(self, link: RouterPeer, ranges: Iterable[Range]) -> None:
        self._post(self._cancel_here, link, merged(ranges))

    def abandon(self, link: RouterPeer) -> None:
        self._post(self._running.abandon, link)

    def cut_off(self) -> None:
        self._post(self._cut_off_here)

    async def close(self) -> None:
        self._runners.is_closing = True
        self._runners.queue.clear()
        with contextlib.suppress(TimeoutError):  # the handler blocks its loop, which ends with the process
            async with asyncio.timeout(CLOSE_S):
                await self._handler_loop.run(self._runners.close)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        call_on(self._loop, callback, *args, context=self._runners.context)

    # -- on the handler's loop -------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._is_woken = False  # before the check: work that is added later wakes the loop again
        runners = self._runners
        if runners.is_idle and runners.queue and not runners.is_closing:
            runners.spawn(1)

    def _stepped(self) -> None:
        self._runners.stepped()
        self._wake()  # for work that arrived meanwhile

    def _cancel_here(self, link: RouterPeer, ranges: Sequence[Range]) -> None:
        """Fails cancelled calls that returned to the queue since the engine read it, and cancels running ones."""
        self._runners.hand_over()  # deliver outcomes that a runner holds while its call waits
        for work in self._runners.queue.copy():
            if isinstance(work, StartCalls) and work.run.link is link and self._runners.take_out(work):
                self._leave_out(work, ranges)
        self._running.cancel(link, ranges)
        self._wake()

    def _cut_off_here(self) -> None:
        """Returns work to the engine that is in the queue since the engine read it, and cancels running calls."""
        self._runners.hand_over()
        for work in self._runners.queue.copy():
            if not isinstance(work, StartTurn) and self._runners.take_out(work):
                self._sink.post(WorkReturned(work))
        self._running.cut_off()

    def _leave_out(self, work: StartCalls, ranges: Sequence[Range]) -> None:
        """Fails the cancelled ones of its calls; the others return to the queue."""
        run = work.run
        first, last = run.first + work.lo, run.first + work.hi - 1
        for begin, end in common(first, last, ranges):
            self._sink.failed(run, begin - run.first, end - begin + 1, CANCELLED)
            self._sink.post(CallsEnded(run, end - begin + 1))
        for begin, end in reversed(without(first, last, ranges)):
            self._runners.queue.appendleft(StartCalls(run, begin - run.first, end - run.first + 1))

    def _claimed(self, turn: StartTurn, lo: int, payloads: Iterable[bytes]) -> Iterable[bytes]:
        for index, payload in enumerate(payloads, lo):
            if index > lo and not self._turns.go_on(turn, index):
                return
            yield payload
