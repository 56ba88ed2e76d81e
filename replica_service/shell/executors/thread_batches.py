"""Executes batches of `def` batch methods, and delivers the outcomes of the threads to the event loop.

Outcomes arrive in bursts: the loop is woken once per burst, and results of neighbours are joined. Each outcome is
delivered once, in the order in which it was put.
Owner: the executor of `def` methods. A batch runs in the thread that has taken it; `ThreadOutcomes.put` is called in
threads, everything else of it on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from inspect import isawaitable
from typing import Any

from replica_service.core.events import BatchEnded, CallsEnded, TurnEnded, WorkReturned
from replica_service.core.runs import ReplicaRun, StartTurn
from replica_service.core.work import StartBatch, StartCalls, WorkCommand
from replica_service.shell.executors.batches import BatchRun
from replica_service.shell.executors.protocol import Outcome, OutcomeSink, deliver
from replica_service.shell.handler.call_context import batch_place
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.telemetry import traced_batch
from slotmesh.errors import Failure
from slotmesh.handlers.context import current_place

SLOW_BATCH_S = 0.001
"""After a batch of this duration, the loop waits until the next one has begun."""

Done = tuple[WorkCommand, ReplicaRun | None, int, Any]
"""Work, run, index of the first call, outcome: a payload, payloads, a (count, Failure), or None for the end.

Without a run: the outcomes of a whole batch, each an `Outcome`, or `UNSTARTED`: the work is returned.
"""
UNSTARTED = "unstarted"


class ThreadOutcomes:
    """Outcomes in transit from threads to the loop."""

    def __init__(self, sink: OutcomeSink, now: Callable[[], float], loop: asyncio.AbstractEventLoop) -> None:
        self._sink = sink
        self._now = now
        self._loop = loop
        self._done: deque[Done] = deque()
        self._is_posted = False
        self.hands_over = False
        """A long batch has ended: the loop lets the next one begin before it delivers."""

    def put(self, work: WorkCommand, run: ReplicaRun | None, index: int, outcome: Any) -> None:
        """In a thread: see `Done`."""
        self._done.append((work, run, index, outcome))
        if not self._is_posted:
            self._is_posted = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        """Takes what workers have put down, joining results of neighbours."""
        self._is_posted = False  # before the first look: outcomes that are put down later are posted again
        done = self._done
        while done:
            work, run, index, outcome = done.popleft()
            if type(outcome) is bytes:
                payloads = [outcome]
                while done and done[0][1] is run and done[0][2] == index + len(payloads) and type(done[0][3]) is bytes:
                    payloads.append(done.popleft()[3])
                outcome = payloads
            self._tell(work, run, index, outcome)

    def _tell(self, work: WorkCommand, run: ReplicaRun | None, index: int, outcome: Any) -> None:
        sink = self._sink
        if run is None:
            if outcome is UNSTARTED and not isinstance(work, StartTurn):
                sink.post(WorkReturned(work))
            elif isinstance(work, StartTurn):
                sink.post(TurnEnded(work, index))
            elif isinstance(work, StartBatch):
                self._tell_batch(work, outcome)
            return
        if isinstance(outcome, list):
            count = len(outcome)
            sink.payloads(run, index, outcome)
        else:
            count, failure = outcome
            sink.failed(run, index, count, failure)
        if isinstance(work, StartCalls):
            sink.post(CallsEnded(run, count))

    def _tell_batch(self, batch: StartBatch, outcomes: Sequence[Outcome]) -> None:
        """The next batch starts before outcomes are seen to, in this very step of the loop: nothing waits for them.

        But lanes do, which may stop at a failure.
        """
        sink = self._sink
        if not batch.lanes:
            self.hands_over = batch.began is not None and self._now() - batch.began >= SLOW_BATCH_S
            sink.post(BatchEnded(batch))
            self.hands_over = False
        deliver(outcomes, sink)
        if batch.lanes:
            sink.post(BatchEnded(batch))


class ThreadBatches:
    """Hands batches to their methods."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        errors: HandlerErrors,
        now: Callable[[], float],
        outcomes: ThreadOutcomes,
        took: Callable[[float], None],
        wait_for: Callable[[Awaitable[Any]], Any],
    ) -> None:
        """`took` is called with the seconds of each invocation, `wait_for` with an awaitable that one returned."""
        self._wait_for = wait_for
        self._methods = methods
        self._errors = errors
        self._now = now
        self._outcomes = outcomes
        self._took = took

    def execute(self, batch: StartBatch) -> None:
        """In a thread. Its outcomes come back together."""
        left = BatchRun(batch, self._methods[batch.method], self._now)
        outcomes = list[Outcome]()
        is_left = None if left.is_to_return else True
        while is_left:
            is_left = copy_context().run(self._invoke, left, outcomes)
        self._outcomes.put(batch, None, 0, UNSTARTED if is_left is None else outcomes)

    def _invoke(self, left: BatchRun, outcomes: list[Outcome]) -> bool | None:
        """Executes the next invocation, in a context of its own. Returns False if none is left.

        None: nothing has begun, and the batch returns to the scheduler.
        """
        invocation, method = left.next(), left.method
        if left.is_to_return:
            return None
        outcomes += left.take_failed()
        if invocation is None:
            return False
        began = self._now()
        left.batch.runner = threading.get_ident()
        current_place.set(batch_place(invocation.parts, self._now))
        traced = traced_batch(invocation.parts, began)
        returned: Sequence[Any] | Failure
        try:
            returned = left.begin(invocation)
            if isawaitable(returned):
                returned = self._wait_for(returned)
            returned = invocation.checked(returned, method)
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end the thread
            returned = self._errors.failure_of(error, method.name)
        finally:
            if traced is not None:
                traced.leave()
        self._took(self._now() - began)
        outcomes += invocation.outcomes(returned, method, self._errors.failure_of)
        return True
