"""The replica's one writer: feeds the scheduler, starts what it decides, brings outcomes to their routers.

Purpose: between the streams, the executors and the core. All of it is synchronous; nothing is awaited between an event
and what follows from it.
Invariants: only the engine calls the scheduler; every outcome goes into the outbox of the router that asked.
Owner: the app, on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

from replica_service.core.calls import Link, Run
from replica_service.core.commands import Command, Fail, Refuse, StartBatch, StartCalls, StartTurn, TellCapacity
from replica_service.core.scheduler import Scheduler
from replica_service.shell.async_executor import AsyncExecutor
from replica_service.shell.counters import Counters
from replica_service.shell.handler_errors import HandlerErrors, too_large, unsendable
from replica_service.shell.methods import Method, generators_among
from replica_service.shell.outbox import Outbox
from replica_service.shell.sink import Executor
from replica_service.shell.thread_executor import ThreadExecutor
from slotmesh.codec import OCTET_STREAM, encoder
from slotmesh.errors import Executed, Failure
from slotmesh.handlers import Kind
from slotmesh.runtime.clock import Clock

MAX_RESULT_BYTES = 4 * 1024 * 1024
"""Largest result that travels inline."""
MIN_TIMER_S = 0.001
"""The event loop's timers tick in milliseconds."""
_BYTES = {bytes}


class Engine:
    """Executes calls of one handler."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        clock: Clock,
        *,
        max_ongoing: int,
        prefetch: int,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """Made on the event loop that it works on. `chance` draws from [0, 1), for what is told to routers."""
        absent = generators_among(methods)
        batches = {name: method.batch for name, method in methods.items() if name not in absent}
        self.methods = methods
        self.scheduler = Scheduler(batches, absent, max_ongoing=max_ongoing, prefetch=prefetch, chance=chance)
        self.counters = Counters()
        self._now = clock.now
        self._loop = asyncio.get_running_loop()
        errors = HandlerErrors(clock.now)
        self._async = AsyncExecutor(methods, self, errors, clock.now)
        self._threads = ThreadExecutor(methods, self, errors, clock.now, lambda: self.scheduler.max_ongoing)
        self._executors: dict[str, Executor] = {
            name: self._async if method.kind is Kind.ASYNC else self._threads for name, method in methods.items()
        }
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._links: dict[Link, Outbox] = {}
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # -- routers ---------------------------------------------------------------------------------------------------

    def open(self) -> tuple[Link, Outbox]:
        """A router's stream begins."""
        link = Link()
        outbox = link.outbox = Outbox(lambda: self.scheduler.capacity(link))
        self._links[link] = outbox
        if self.scheduler.draining:
            outbox.go_away(_GOING)
        return link, outbox

    def submit(self, runs: Sequence[Run], rejected: Iterable[tuple[Run, Failure]] = ()) -> None:
        """A frame of runs, and those of them that fail as they are."""
        for run, failure in rejected:
            self.failed(run, 0, len(run.payloads), failure)
        self._carry_out(self.scheduler.submit(runs, self._now()))

    def cancel(self, link: Link, ranges: Iterable[tuple[int, int]]) -> None:
        """Run ids that a router takes back, both ends included: what waits never starts, what runs is cancelled.

        A handler that is `def` runs to its end, and so does a batch, for the sake of the others in it.
        """
        ranges = list(ranges)
        self._carry_out(self.scheduler.cancel(link, ranges, self._now()))
        self._async.cancel(link, ranges)

    async def finish(self, link: Link) -> None:
        """The router sends nothing more: returns when all of its calls have been answered."""
        await self._until(lambda: not (link.unkeyed or link.keyed))

    def close(self, link: Link) -> None:
        """The router's stream has ended, however."""
        outbox = self._links.pop(link, None)
        if outbox is not None:
            outbox.discard()
            self._carry_out(self.scheduler.close(link, self._now()))

    # -- the replica -----------------------------------------------------------------------------------------------

    def configure(self, *, max_ongoing: int, prefetch: int) -> None:
        """New settings; routers hear of them."""
        self._carry_out(self.scheduler.configure(max_ongoing=max_ongoing, prefetch=prefetch, now=self._now()))
        for outbox in self._links.values():
            outbox.tell_capacity()

    def drain(self) -> None:
        """Takes nothing new, hands back what has not started, tells the routers."""
        self._carry_out(self.scheduler.drain(self._now()))
        for outbox in self._links.values():
            outbox.go_away(_GOING)

    async def idle(self) -> None:
        """Returns when nothing runs and nothing waits."""
        await self._until(lambda: self.scheduler.is_idle)

    async def revoke(self, endpoint: str, epochs: Mapping[int, int]) -> AsyncGenerator[dict[int, int], None]:
        """Partitions (partition -> epoch) move away: yields those of which nothing is here any more, until none is."""
        self._carry_out(self.scheduler.revoke(endpoint, epochs, self._now()))
        is_emptied, left = self.scheduler.is_emptied, dict(epochs)
        while left:
            await self._until(lambda: any(is_emptied(endpoint, partition) for partition in left))
            emptied = {partition: epoch for partition, epoch in left.items() if is_emptied(endpoint, partition)}
            for partition in emptied:
                del left[partition]
            yield emptied

    def fence(self, epoch: int) -> dict[str, set[int]]:
        """All partitions move away that it had at this epoch or older ones; returns those (by endpoint) still here."""
        self._carry_out(self.scheduler.fence(epoch, self._now()))
        return self.scheduler.busy()

    async def stop(self) -> None:
        """Ends what still runs."""
        if self._timer is not None:
            self._timer.cancel()
        await self._async.close()
        await self._threads.close()

    # -- outcomes (the executors' sink) ----------------------------------------------------------------------------

    def results(self, run: Run, lo: int, values: Sequence[Any]) -> None:
        content_type = run.options.content_type
        payloads: Sequence[bytes] | None = None
        if content_type == OCTET_STREAM and set(map(type, values)) == _BYTES:
            payloads = values
        else:
            try:
                payloads = list(map(encoder(content_type), values))
            except Exception:  # noqa: BLE001 - a foreign object may fail in any way when it is read; see below
                payloads = None
        if payloads is not None:
            self.payloads(run, lo, payloads)
            return
        for index, value in enumerate(values, lo):
            try:
                payload = encoder(content_type)(value)
            except Exception as error:  # noqa: BLE001 - as above: this call fails, and no other
                self.failed(run, index, 1, unsendable(error))
            else:
                self.payloads(run, index, (payload,))

    def payloads(self, run: Run, lo: int, payloads: Sequence[bytes]) -> None:
        size = sum(map(len, payloads))
        if size > MAX_RESULT_BYTES and max(map(len, payloads)) > MAX_RESULT_BYTES:
            if len(payloads) > 1:
                for index, payload in enumerate(payloads, lo):
                    self.payloads(run, index, (payload,))
            else:
                self.failed(run, lo, 1, too_large(size, MAX_RESULT_BYTES))
            return
        self.counters.calls += len(payloads)
        run.link.outbox.results(run.first + lo, payloads, size, run.options.content_type)

    def failed(self, run: Run, lo: int, count: int, failure: Failure) -> None:
        if failure.executed is Executed.YES:
            self.counters.calls += count
        self.counters.failures[failure.reason] += count
        run.link.outbox.failed(run.first + lo, count, failure)

    def calls_ended(self, run: Run, count: int) -> None:
        self._carry_out(self.scheduler.calls_ended(run, count, self._now()))
        if self._waiters:
            self._look_around()

    def turn_ended(self, turn: StartTurn, reached: int) -> None:
        self._carry_out(self.scheduler.turn_ended(turn, reached, self._now()))
        if self._waiters:
            self._look_around()

    def batch_ended(self, batch: StartBatch) -> None:
        self._carry_out(self.scheduler.batch_ended(batch, self._now()))
        if self._waiters:
            self._look_around()

    # -- decisions -------------------------------------------------------------------------------------------------

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case StartTurn() | StartCalls():
                    self._executors[command.run.options.method].start(command)
                case StartBatch():
                    self._count_batch(command)
                    self._executors[command.batcher.method].start(command)
                case Refuse(run=run, lo=lo, hi=hi, failure=failure):
                    run.link.outbox.refused(run.first + lo, hi - lo, failure)
                case Fail(run=run, lo=lo, hi=hi, failure=failure):
                    self.failed(run, lo, hi - lo, failure)
                case TellCapacity(link=link):
                    link.outbox.tell_capacity()
        deadline = self.scheduler.next_deadline()
        if deadline is not None:
            self._set_timer(deadline)

    def _count_batch(self, batch: StartBatch) -> None:
        self.counters.batches += 1
        if self.counters.on_batch is not None:
            self.counters.on_batch(batch.count)

    def _set_timer(self, deadline: float) -> None:
        """A timer that runs already and is early enough stays: the core is asked again when it has fired."""
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(deadline - self._now(), MIN_TIMER_S), self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._carry_out(self.scheduler.passed(self._now()))

    async def _until(self, is_true: Callable[[], bool]) -> None:
        """Returns once the condition holds after the end of some work, or holds already."""
        if is_true():
            return
        waiter = (is_true, self._loop.create_future())
        self._waiters.append(waiter)
        try:
            await waiter[1]
        finally:
            self._waiters.remove(waiter)

    def _look_around(self) -> None:
        """Whether somebody waits for what has just happened."""
        for is_true, future in self._waiters:
            if not future.done() and is_true():
                future.set_result(None)


_GOING = "the replica drains"
