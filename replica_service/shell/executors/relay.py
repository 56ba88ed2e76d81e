"""The way of outcomes from the threads of handlers to the engine's loop.

Purpose: executors deliver in threads as they do on the engine's loop. The loop is woken once per burst, and consecutive
calls of a run that end are delivered together.
Invariants: each outcome is delivered once, in the order in which its thread put it. No object of the handler is read by
another thread. In a lane that stops, a failure is marked on the run before it is delivered, so that no later call of
the turn is claimed.
Owner: an executor. `_collect` and what it calls run on the engine's loop, all else in threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from replica_service.core.events import CallsEnded, Ended
from replica_service.core.runs import ReplicaRun
from replica_service.core.work import mark_failure
from replica_service.shell.executors.protocol import OutcomeSink
from slotmesh.errors import Failure
from slotmesh.runtime.tasks import call_on


class OutcomeRelay:
    """An `OutcomeSink` for other threads."""

    def __init__(self, sink: OutcomeSink, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the engine's."""
        self._sink = sink
        self._loop = loop
        self._pending: deque[tuple[Any, ...]] = deque()
        """Functions to call on the engine's loop, and their arguments; payloads without a function, to be joined."""
        self._is_posted = False
        self._deliver_end = sink.post  # bound once, so that `_join` can recognise it by identity

    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes], *, ended: int = 0) -> None:
        """`ended`: the number of calls of a `StartCalls` that end with it, of which no event follows."""
        if run.options.stop_generation:
            limit = run.max_result_bytes
            for index, payload in enumerate(payloads, lo):
                if len(payload) > limit:
                    mark_failure(run, index)
        self._pending.append((None, run, lo, payloads, ended))
        if not self._is_posted:
            self._wake()

    def values(self, run: ReplicaRun, index: int, payloads: Sequence[bytes]) -> None:
        self.call(self._sink.values, run, index, payloads)

    def streamed(self, run: ReplicaRun, index: int) -> None:
        self.call(self._sink.streamed, run, index)

    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        mark_failure(run, lo)
        self.call(self._sink.failed, run, lo, count, failure)

    def post(self, event: Ended, /) -> None:
        self.call(self._deliver_end, event)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Calls the function on the engine's loop, after all that was put before."""
        self._pending.append((function, args))
        if not self._is_posted:
            self._wake()

    def _wake(self) -> None:
        self._is_posted = True
        call_on(self._loop, self._collect)

    def _collect(self) -> None:
        self._is_posted = False  # before the first read: outcomes that are added later are posted again
        pending = self._pending
        while pending:
            entry = pending.popleft()
            if entry[0] is None:
                self._join(*entry[1:])
            else:
                entry[0](*entry[1])

    def _join(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes], ended: int) -> None:
        """Delivers payloads together with those of the calls that follow, and the end of these calls."""
        pending, waited = self._pending, False
        joined: list[bytes] | None = None
        hi = lo + len(payloads)
        while pending:
            entry = pending[0]
            if entry[0] is None:
                if entry[1] is not run or entry[2] != hi:
                    break
                if joined is None:
                    joined = list(payloads)
                joined += entry[3]
                hi += len(entry[3])
                ended += entry[4]
            elif entry[0] is self._deliver_end and isinstance(event := entry[1][0], CallsEnded) and event.run is run:
                ended += event.count
                waited = waited or event.waited
            else:
                break
            pending.popleft()
        self._sink.payloads(run, lo, payloads if joined is None else joined)
        if ended:
            self._deliver_end(CallsEnded(run, ended, waited))
