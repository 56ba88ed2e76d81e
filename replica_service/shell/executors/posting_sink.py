"""The engine's sink, as another thread sees it.

Purpose: outcomes from the other thread reach the engine on its loop, in order and in bursts: the loop is woken once,
however many there are.
Invariants: nothing that belongs to the handler is read by another thread; calls of a run that end one after another are
delivered together; in a lane that stops, the run has a failure marked before it is delivered.
Owner: the executor that uses it, on its thread; `_collect` runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from replica_service.core.calls import ReplicaRun
from replica_service.core.events import CallsEnded, Ended
from replica_service.core.lanes.lane_history import mark_failure
from replica_service.shell.executors.protocol import OutcomeSink
from slotmesh.errors import Failure


class PostingSink:
    """Passes outcomes and ends of work on to the engine's loop."""

    def __init__(self, sink: OutcomeSink, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` is the engine's."""
        self._sink = sink
        self._loop = loop
        self._told: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """What to call, with which arguments."""
        self._is_posted = False
        # Once, so that they can be recognised.
        self._tell_payloads = sink.payloads
        self._tell_end = sink.post

    def payloads(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        if run.options.stop_generation:
            limit = run.max_result_bytes
            for index, payload in enumerate(payloads, lo):
                if len(payload) > limit:
                    mark_failure(run, index)
        self._put(self._tell_payloads, run, lo, payloads)

    def values(self, run: ReplicaRun, index: int, payloads: Sequence[bytes]) -> None:
        self._put(self._sink.values, run, index, payloads)

    def streamed(self, run: ReplicaRun, index: int) -> None:
        self._put(self._sink.streamed, run, index)

    def failed(self, run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
        mark_failure(run, lo)
        self._put(self._sink.failed, run, lo, count, failure)

    def post(self, event: Ended, /) -> None:
        self._put(self._tell_end, event)

    def _put(self, tell: Callable[..., None], *args: Any) -> None:
        self._told.append((tell, args))
        if not self._is_posted:
            self._is_posted = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._is_posted = False  # before the first look: outcomes that are put down later are posted again
        told = self._told
        while told:
            tell, args = told.popleft()
            if tell is self._tell_payloads:
                self._join(*args)
            else:
                tell(*args)

    def _join(self, run: ReplicaRun, lo: int, payloads: Sequence[bytes]) -> None:
        """Delivers payloads together with those of the calls that follow, and the end of these calls."""
        told = self._told
        ended, waited = 0, False
        joined: list[bytes] | None = None
        hi = lo + len(payloads)
        while told:
            tell, args = told[0]
            if tell is self._tell_end and isinstance(event := args[0], CallsEnded) and event.run is run:
                ended += event.count
                waited = waited or event.waited
            elif tell is self._tell_payloads and args[0] is run and args[1] == hi:
                if joined is None:
                    joined = list(payloads)
                joined += args[2]
                hi += len(args[2])
            else:
                break
            told.popleft()
        self._tell_payloads(run, lo, payloads if joined is None else joined)
        if ended:
            self._tell_end(CallsEnded(run, ended, waited))
