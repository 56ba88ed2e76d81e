"""Executes batches of `def` batch methods, each in the thread that has taken it.

Owner: the executor of `def` methods.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from inspect import isawaitable
from typing import Any

from replica_service.core.calls import ReplicaRun
from replica_service.core.commands import StartBatch
from replica_service.core.starting.claims import may_begin
from replica_service.shell.call_traces import traced_batch
from replica_service.shell.executors.batch_invocations import Invocation, OnFailed, invocations
from replica_service.shell.executors.call_context import batch_place
from replica_service.shell.executors.encoding import Outcome
from replica_service.shell.executors.late_calls import in_time
from replica_service.shell.executors.thread_outcomes import UNSTARTED, ThreadOutcomes
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.errors import Failure
from slotmesh.handlers.context import current_place


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
        method = self._methods[batch.batcher.method]
        if not may_begin(batch.parts, self._now()):
            self._outcomes.put(batch, None, 0, UNSTARTED)
            return

        outcomes = list[Outcome]()

        def on_failed(run: ReplicaRun, lo: int, count: int, failure: Failure) -> None:
            outcomes.append((run, lo, count, failure))

        left = invocations(batch, method, on_failed)
        while has_next := copy_context().run(self._invoke, batch, method, left, outcomes, on_failed):
            if has_next is UNSTARTED:
                self._outcomes.put(batch, None, 0, UNSTARTED)
                return
        self._outcomes.put(batch, None, 0, outcomes)

    def _invoke(
        self,
        batch: StartBatch,
        method: HandlerMethod,
        left: Iterator[Invocation],
        outcomes: list[Outcome],
        on_failed: OnFailed,
    ) -> bool | str:
        """The next of its invocations, in a context of its own. Returns whether there was one, or UNSTARTED."""
        invocation = whole = next(left, None)
        if whole is None:
            return False
        began = self._now()
        if batch.began is not None:
            invocation = in_time(whole, batch, method, began, on_failed)
        elif not may_begin(batch.parts, began):
            return UNSTARTED
        if invocation is None:
            return True
        batch.began = began
        batch.runner = threading.get_ident()
        current_place.set(batch_place(invocation.parts, self._now))
        traced = traced_batch(invocation.parts, began)
        returned: Sequence[Any] | Failure
        try:
            returned = invocation.call(method)
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
