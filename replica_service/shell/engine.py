"""The replica's one writer: feeds the scheduler, starts what it decides, brings outcomes to their routers.

Purpose: between the streams, the executors and the core. All of it is synchronous; nothing is awaited between an event
and what follows from it.
Invariants: only the engine calls the scheduler; every outcome goes into the outbox of the router that asked.
Owner: the app, on one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from itertools import repeat

from replica_service.convert import Issuer
from replica_service.core.calls import FRESH_S, Link, Run
from replica_service.core.commands import Command, Fail, Grant, Refuse, StartBatch, StartCalls, StartTurn, TellCapacity
from replica_service.core.scheduler import Scheduler
from replica_service.core.sessions import RESUME_TTL_S, Report
from replica_service.core.verdicts import FENCED
from replica_service.shell.async_executor import AsyncExecutor
from replica_service.shell.generator_executor import GeneratorExecutor
from replica_service.shell.handler_errors import HandlerErrors
from replica_service.shell.methods import Method
from replica_service.shell.outbox import Outbox
from replica_service.shell.outcomes import Outcomes
from replica_service.shell.sessions import Question, Sessions
from replica_service.shell.sink import Executor
from replica_service.shell.slots import Slots
from replica_service.shell.thread_executor import ThreadExecutor
from slotmesh.chunks import MAX_PAYLOAD_BYTES
from slotmesh.errors import Failure
from slotmesh.handlers import Kind
from slotmesh.runtime.clock import Clock
from slotmesh.slots.token import SECRET_BYTES

MIN_TIMER_S = 0.001
"""The event loop's timers tick in milliseconds."""


class Engine(Outcomes):
    """Executes calls of one handler."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        clock: Clock,
        *,
        max_ongoing: int,
        prefetch: int,
        chance: Callable[[], float] = lambda: 0.5,
        resume_ttl_s: float = RESUME_TTL_S,
        issuer: Issuer | None = None,
    ) -> None:
        """Made on the event loop that it works on. `chance` draws from [0, 1), for what is told to routers.

        `issuer` is under whose name slots are given.
        """
        super().__init__(Sessions(self._fence_runs, clock.now, resume_ttl_s))
        self.methods = methods
        self.scheduler = Scheduler(
            {name: method.batch for name, method in methods.items()},
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            chance=chance,
            new_secret=lambda: secrets.token_bytes(SECRET_BYTES),
        )
        self._now = clock.now
        self._loop = asyncio.get_running_loop()
        errors = HandlerErrors(clock.now)
        self._async = AsyncExecutor(methods, self, errors, clock.now)
        self._threads = ThreadExecutor(methods, self, errors, clock.now, lambda: self.scheduler.max_ongoing)
        self._generators = GeneratorExecutor(methods, self, errors, clock.now, self._threads.step)
        by_kind: dict[Kind, Executor] = {Kind.ASYNC: self._async, Kind.DEF: self._threads}
        self._executors = {name: by_kind.get(method.kind, self._generators) for name, method in methods.items()}
        self.slots = Slots(
            self.scheduler,
            issuer or Issuer(clock),
            clock.now,
            self._carry_out,
            lambda run, failure: self.failed(run, 0, 1, failure),
            self._look_around,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._links: dict[Link, Outbox] = {}
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    # -- routers ---------------------------------------------------------------------------------------------------

    def open(self, *, echoes: bool = False, cuts: bool = False) -> tuple[Link, Outbox]:
        """A router's stream begins. One that echoes stamps has its runs started only for as long as it does.

        `cuts`: it takes large results in chunks.
        """
        link = Link()
        if echoes:
            link.fresh_until = self._now() + FRESH_S
        if cuts:
            link.max_result_bytes = MAX_PAYLOAD_BYTES
        outbox = link.outbox = Outbox(lambda: self.scheduler.capacity(link), self.slots.issuer, cuts=cuts)
        self._links[link] = outbox
        if self.scheduler.draining:
            outbox.go_away(_GOING)
        if self._waiters:
            self._look_around()
        return link, outbox

    def submit(self, runs: Sequence[Run], rejected: Iterable[tuple[Run, Failure]] = ()) -> None:
        """A frame of runs, and those of them that fail as they are."""
        for run, failure in rejected:
            self.failed(run, 0, len(run.payloads), failure)
        if any(run.record is not None for run in runs):
            runs = self.sessions.admit(runs)
        self._carry_out(self.scheduler.submit(runs, self._now()))

    def complete(self, run: Run) -> None:
        """The payload of a run that came without it is there."""
        self._carry_out(self.scheduler.complete(run, self._now()))

    def spoil(self, run: Run, failure: Failure) -> None:
        """The payload of a run that came without it will not be there."""
        self._carry_out(self.scheduler.spoil(run, failure, self._now()))

    def echoed(self, link: Link, stamp_s: float) -> None:
        """A router has echoed this stamp, seconds of this replica's clock."""
        self._carry_out(self.scheduler.echoed(link, stamp_s, self._now()))

    def reconcile(self, questions: Iterable[Question]) -> list[tuple[str, int, Report]]:
        """What became of calls of sessions that moved to this router."""
        answers = self.sessions.reconcile(questions)
        if self._waiters:
            self._look_around()
        return answers

    def acknowledge(self, link: Link, ranges: Iterable[tuple[int, int]]) -> None:
        """Clients have the outcomes of these run ids, both ends included."""
        self.sessions.acknowledge(link, ranges)
        if self._waiters:
            self._look_around()

    def cancel(self, link: Link, ranges: Iterable[tuple[int, int]]) -> None:
        """Run ids that a router takes back, both ends included: what waits never starts, what runs is cancelled.

        A handler that is `def` runs to its end, and so does a batch, for the sake of the others in it; but one that
        yields is closed at its next value, a batch once none of its calls is wanted.
        """
        ranges = list(ranges)
        self._carry_out(self.scheduler.cancel(link, ranges, self._now()))
        self._async.cancel(link, ranges)
        self._generators.cancel(link, ranges)
        for run, first, last in self.sessions.running_of(link, ranges):
            joined = [(run.first + first, run.first + last)]
            self._async.cancel(run.link, joined)
            self._generators.cancel(run.link, joined)
        if self._waiters:
            self._look_around()

    def take(self, link: Link, run_ids: Iterable[int], counts: Iterable[int]) -> None:
        """So many values of handlers that yield, by run ids, were taken: these may go on."""
        self._generators.take(link, run_ids, counts)

    async def finish(self, link: Link) -> None:
        """The router sends nothing more: returns when all of its calls have been answered.

        As it cannot say any more what it takes of the values of handlers that yield, they are taken once they leave.
        """
        link.outbox.take_values(lambda run_ids: self._generators.take(link, run_ids, repeat(1)))
        self._generators.take_all(link)
        await self._until(lambda: not (link.unkeyed or link.keyed or self.sessions.owes(link)))

    def close(self, link: Link) -> None:
        """The router's stream has ended, however."""
        outbox = self._links.pop(link, None)
        if outbox is not None:
            outbox.discard()
            self.sessions.close(link)
            self._carry_out(self.scheduler.close(link, self._now()))
            self._hold(link.waiting.values())
            self._recall(lambda run: run.link is link)
            self._generators.abandon(link)
            if self._waiters:
                self._look_around()

    # -- the replica -----------------------------------------------------------------------------------------------

    def configure(self, *, max_ongoing: int, prefetch: int) -> None:
        """New settings; routers hear of them."""
        self._carry_out(self.scheduler.configure(max_ongoing=max_ongoing, prefetch=prefetch, now=self._now()))
        for outbox in self._links.values():
            outbox.tell_capacity()

    def drain(self) -> None:
        """Takes nothing new, hands back what has not started, tells the routers. Slots that were given are honoured."""
        self._carry_out(self.scheduler.drain(self._now()))
        for outbox in self._links.values():
            outbox.go_away(_GOING)
        self._look_around()

    async def idle(self) -> None:
        """Returns when nothing runs and nothing waits."""
        await self._until(lambda: self.scheduler.is_idle)

    async def acknowledged(self) -> None:
        """Returns when no outcome of a session is kept any more."""
        await self._until(lambda: not self.sessions.unacknowledged)

    async def deserted(self, patience_s: float) -> None:
        """Returns when there was no router for so long: nobody brings outcomes to clients any more."""
        while True:
            await self._until(lambda: not self._links)
            try:
                async with asyncio.timeout(patience_s):
                    await self._until(lambda: bool(self._links))
            except TimeoutError:
                return

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
        self.sessions.stop()
        await self._async.close()
        await self._generators.close()
        await self._threads.close()

    # -- what has ended (the executors' sink; `Outcomes` is the rest of it) --------------------------------------------

    def calls_ended(self, run: Run, count: int) -> None:
        self._carry_out(self.scheduler.calls_ended(run, count, self._now()))
        if self._waiters:
            self._look_around()

    def turn_ended(self, turn: StartTurn, reached: int) -> None:
        self._carry_out(self.scheduler.turn_ended(turn, reached, self._now()))
        if self._waiters:
            self._look_around()

    def turns_ended(self, turns: Sequence[StartTurn]) -> None:
        self._carry_out(self.scheduler.turns_ended(turns, self._now()))
        if self._waiters:
            self._look_around()

    def batch_ended(self, batch: StartBatch) -> None:
        self._carry_out(self.scheduler.batch_ended(batch, self._now()))
        if self._waiters:
            self._look_around()

    def returned(self, work: StartCalls | StartBatch) -> None:
        self._carry_out(self.scheduler.returned(work, self._now()))
        if self._waiters:
            self._look_around()

    # -- what must not start any more ------------------------------------------------------------------------------

    def _fence_runs(self, runs: Sequence[Run]) -> None:
        """Sessions went on elsewhere: what of these runs has not started is handed back."""
        self._hold(runs)
        # What waits goes before what executors give back: that makes room, and whatever waits then would start.
        self._carry_out(self.scheduler.hand_back(runs, FENCED, self._now()))
        self._recall(frozenset(runs).__contains__)

    def _hold(self, runs: Iterable[Run]) -> None:
        """No further call of their turns starts."""
        for turn in self.scheduler.turns_of(runs):
            self._executors[turn.run.options.method].hold(turn)
            if turn.run.record is not None:
                self.sessions.unstarted(turn.run.record, turn.stop, turn.hi)

    def _recall(self, is_one_of_them: Callable[[Run], bool]) -> None:
        """Takes from the executors what else has not started."""
        for executor in (self._async, self._threads):
            for work in executor.recall(is_one_of_them):
                self._carry_out(self.scheduler.returned(work, self._now()))

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
                    self._no_upload(run, lo)
                    if run.record is None:
                        run.link.outbox.refused(run.first + lo, hi - lo, failure)
                        if run.lease_s:
                            self.slots.refused()
                    else:
                        self.sessions.refused(run, run.record, lo, hi - lo, failure)
                case Fail(run=run, lo=lo, hi=hi, failure=failure):
                    self._no_upload(run, lo)
                    if run.lease_s:
                        self.slots.failed(command)
                    else:
                        self.failed(run, lo, hi - lo, failure)
                case Grant():
                    self.slots.granted(command)
                case TellCapacity(link=link):
                    link.outbox.tell_capacity()
        deadline = self.scheduler.next_deadline()
        if deadline is not None:
            self._set_timer(deadline)

    @staticmethod
    def _no_upload(run: Run, lo: int) -> None:
        """Calls of the run from index `lo` on are answered: one that waits for its payload is alone."""
        if (uploads := run.link.uploads) is not None:
            uploads.forget(run.first + lo)

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
        if self._waiters:
            self._look_around()

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
