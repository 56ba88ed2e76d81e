"""Executes batches of `async def` batch methods, each in the runner that has taken it.

Owner: the executor of `async def` methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, copy_context

from replica_service.core.calls import ReplicaRun
from replica_service.core.commands import StartBatch
from replica_service.core.events import BatchEnded, WorkReturned
from replica_service.core.starting.claims import may_begin
from replica_service.shell.call_traces import traced_batch
from replica_service.shell.executors.batch_invocations import Invocation, invocations
from replica_service.shell.executors.call_context import batch_place
from replica_service.shell.executors.encoding import Outcome
from replica_service.shell.executors.islands import TaskMarks, islands
from replica_service.shell.executors.late_calls import in_time
from replica_service.shell.executors.protocol import OutcomeSink
from replica_service.shell.executors.runners import Runners, this_task
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
        runners: Runners,
        running: RunningCalls,
    ) -> None:
        self._methods = methods
        self._sink = sink
        self._errors = errors
        self._now = now
        self._runners = runners
        self._running = running

    async def run(self, batch: StartBatch, marks: TaskMarks) -> None:
        """Executes all invocations of the batch. `marks`: those of the current task."""
        if not may_begin(batch.parts, self._now()):
            self._sink.post(WorkReturned(batch))
            return
        await self._go_on(_Invocations(batch, self._methods[batch.batcher.method]), marks)

    async def _go_on(self, left: _Invocations, marks: TaskMarks | None = None) -> None:
        """Executes those that are left, in another task where one that has ended has kept this."""
        sink, batch, marks = self._sink, left.batch, marks or TaskMarks()
        while True:
            context = copy_context()
            invocation = whole = context.run(left.next)
            if whole is None:
                break
            if batch.began is not None:
                invocation = context.run(in_time, whole, batch, left.method, self._now(), sink.failed)
            elif not may_begin(batch.parts, self._now()):
                sink.post(WorkReturned(batch))  # as a whole: the failures of unsound calls were not delivered yet
                return
            left.tell_unsound(sink)
            if invocation is not None:
                for run, lo, count, outcome in await self._invoke(invocation, left, context):
                    if isinstance(outcome, Failure):
                        sink.failed(run, lo, count, outcome)
                    else:
                        sink.payloads(run, lo, outcome)
            if marks.are_left:
                self._runners.start(self._go_on(left))
                return
        left.tell_unsound(sink)
        sink.post(BatchEnded(batch))

    async def _invoke(self, invocation: Invocation, left: _Invocations, context: Context) -> Iterable[Outcome]:
        """Calls the method, in this context. Returns what becomes of the calls."""
        task, running, method = this_task(), self._running, left.method
        running.batching.add(task)
        context.run(current_place.set, batch_place(invocation.parts, self._now))
        traced = context.run(traced_batch, invocation.parts, self._now())
        try:
            outcomes = await islands(self._called(invocation, left.batch, method), context)
            await running.uncancelled(task)  # but the handler went on
        except BaseException as error:  # noqa: BLE001 - nothing that a handler raises may end its runner
            failure = await running.failure_of(error, task, method.name)
            return list(invocation.outcomes(failure, method, self._errors.failure_of))
        finally:
            running.batching.discard(task)
            if traced is not None:
                context.run(traced.leave)
        return outcomes

    async def _called(self, invocation: Invocation, batch: StartBatch, method: HandlerMethod) -> Iterable[Outcome]:
        """In the context of the invocation."""
        batch.began, batch.runner = self._now(), invocation.call(method)
        returned = invocation.checked(await batch.runner, method)
        return list(invocation.outcomes(returned, method, self._errors.failure_of))


class _Invocations:
    """The invocations of a batch that are left."""

    def __init__(self, batch: StartBatch, method: HandlerMethod) -> None:
        self.batch = batch
        self.method = method
        self._unsound: list[tuple[ReplicaRun, int, int, Failure]] = []
        """Calls that are in none of them, and have not failed yet."""
        self._left = invocations(batch, method, lambda *failed: self._unsound.append(failed))

    def next(self) -> Invocation | None:
        """The next one: decodes the arguments of its calls."""
        return next(self._left, None)

    def tell_unsound(self, sink: OutcomeSink) -> None:
        for failed in self._unsound:
            sink.failed(*failed)
        self._unsound.clear()
