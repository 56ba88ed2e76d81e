"""Executes batches of `async def` batch methods, each in the runner that has taken it.

Owner: the executor of `async def` methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replica_service.core.calls import ReplicaRun
from replica_service.core.commands import StartBatch
from replica_service.core.events import BatchEnded, WorkReturned
from replica_service.core.starting.claims import may_begin
from replica_service.shell.call_traces import traced_batch
from replica_service.shell.executors.batch_invocations import Invocation, invocations
from replica_service.shell.executors.call_context import batch_place
from replica_service.shell.executors.late_calls import in_time
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.executors.runners import this_task
from replica_service.shell.executors.running_calls import RunningCalls
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.methods import HandlerMethod
from slotmesh.errors import Failure
from slotmesh.handlers.context import current_place


class AsyncBatches:
    """Hands batches to their methods."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        sink: OutcomeSink,
        errors: HandlerErrors,
        now: Callable[[], float],
        running: RunningCalls,
    ) -> None:
        self._methods = methods
        self._sink = sink
        self._errors = errors
        self._now = now
        self._running = running

    async def run(self, batch: StartBatch) -> None:
        sink = self._sink
        if not may_begin(batch.parts, self._now()):
            sink.post(WorkReturned(batch))
            return
        method = self._methods[batch.batcher.method]
        task = this_task()
        unsound: list[tuple[ReplicaRun, int, int, Failure]] = []

        def tell_unsound() -> None:
            for failed in unsound:
                sink.failed(*failed)
            unsound.clear()

        for whole in invocations(batch, method, lambda *failed: unsound.append(failed)):
            invocation: Invocation | None = whole
            if batch.began is not None:
                invocation = in_time(whole, batch, method, self._now(), sink.failed)
            elif not may_begin(batch.parts, self._now()):
                sink.post(WorkReturned(batch))  # as a whole: the failures of unsound calls were not delivered yet
                return
            tell_unsound()
            if invocation is None:
                continue
            self._running.batching.add(task)
            current_place.set(batch_place(invocation.parts, self._now))
            traced = traced_batch(invocation.parts, self._now())
            try:
                batch.began, batch.runner = self._now(), invocation.call(method)
                returned = invocation.checked(await batch.runner, method)
                await self._running.uncancelled(task)  # but the handler went on
            except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
                returned = await self._running.failure_of(error, task, method.name)
            finally:
                self._running.batching.discard(task)
                if traced is not None:
                    traced.leave()
            invocation.deliver(returned, method, self._errors.failure_of, sink.results, sink.failed)
        tell_unsound()
        sink.post(BatchEnded(batch))
