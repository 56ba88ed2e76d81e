"""The replica's one writer: feeds the scheduler, starts what it decides, brings outcomes to their routers.

Purpose: between the streams, the executors and the core. All of it is synchronous; nothing is awaited between an event
and what follows from it.
Invariants: events reach the scheduler by `post` only; every outcome goes into the outbox of the router that asked.
Owner: the app, on one event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat, starmap

from replica_service.convert import Issuer
from replica_service.core.calls.commands import (
    AnswerAttach,
    AnswerRenewal,
    Fail,
    Grant,
    Refuse,
    ReplicaCommand,
    StartBatch,
    StartCalls,
    TellCapacity,
    TellDetached,
    TellKeys,
)
from replica_service.core.calls.events import (
    BatchSettingsChanged,
    DrainBegan,
    EpochFenced,
    GraceEnded,
    LimitsChanged,
    LinkClosed,
    PartitionEpochs,
    PartitionsRevoked,
    ReplicaEvent,
    ReplicaTimePassed,
    RunsCame,
    RunsCancelled,
    SessionsMoved,
)
from replica_service.core.calls.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.failures import DRAINING
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.state.session_table import RESUME_TTL_S, SessionReport
from replica_service.core.steps.withdrawals import without_moved
from replica_service.shell.conditions import Conditions, DeadlineTimer
from replica_service.shell.executors.batches import weighers
from replica_service.shell.executors.executor_set import ExecutorSet, Recalls
from replica_service.shell.handler.batch_hosts import BatchHosts
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.methods import HandlerMethod
from replica_service.shell.outcomes import OutcomeReporter, answered, connect_link
from replica_service.shell.router_outbox import Outbox
from replica_service.shell.sessions import Question, Sessions
from replica_service.shell.slots import Slots
from replica_service.shell.telemetry import ReplicaCounters, ReplicaTraces
from slotmesh.calls.slot_tokens import SECRET_BYTES
from slotmesh.errors import Failure
from slotmesh.runtime.clock import Clock


class Engine:
    """Executes calls of one handler."""

    def __init__(
        self,
        methods: Mapping[str, HandlerMethod],
        clock: Clock,
        *,
        max_ongoing: int,
        prefetch: int,
        chance: Callable[[], float] = lambda: 0.5,
        resume_ttl_s: float = RESUME_TTL_S,
        issuer: Issuer | None = None,
        handler_loop: HandlerLoop | None = None,
        max_slots_per_caller: int | None = None,
    ) -> None:
        """Made on the event loop that it works on. `chance` draws from [0, 1), for reports of capacity to routers.

        `issuer` names this replica in slot tokens. `handler_loop` is where `async def` methods run, if not here.
        """
        self.counters = ReplicaCounters()
        self.traces: ReplicaTraces | None = None  # where calls are traced
        self.sessions = Sessions(self._fence_runs, clock.now, resume_ttl_s)
        self.outcomes = outcomes = OutcomeReporter(self.counters, self.sessions, self.post)
        self.methods = methods
        self.errors = errors = HandlerErrors(clock.now)
        self.scheduler = ReplicaScheduler(
            {name: method.control for name, method in methods.items()},
            weigh=weighers(methods, errors),
            max_ongoing=max_ongoing,
            prefetch=prefetch,
            chance=chance,
            new_secret=lambda: secrets.token_bytes(SECRET_BYTES),
            max_slots_per_caller=max_slots_per_caller,
        )
        self._now = clock.now
        self.batch_hosts = BatchHosts(methods, self.scheduler.batchers, clock.now, self._batch_settings_changed)
        self.batch_hosts.warn_of_unfillable(max_ongoing, prefetch)
        self._executors = executors = ExecutorSet(
            methods, outcomes, errors, clock.now, lambda: self.scheduler.max_ongoing, handler_loop, outcomes.woken
        )
        self._executor_of = executors.by_method
        self._recalls = Recalls(self.scheduler, self.sessions, executors, self.post)
        self._conditions = conditions = Conditions()
        self._waiters = conditions.waiters
        self.slots = Slots(
            self.scheduler,
            issuer or Issuer(clock),
            clock.now,
            self.post,
            lambda run, why: outcomes.failed(run, 0, 1, why),
        )
        self._timer = DeadlineTimer(clock.now, partial(self.post, ReplicaTimePassed()))
        self.tell_keys: Callable[[TellKeys], object] = lambda _command: None
        """Calls hooks of the handler for keys, and posts when they have ended. Used once `scheduler.hold_keys` was."""
        self._links: dict[RouterPeer, Outbox] = {}
        self.at_drain: list[Callable[[], None]] = []
        """Called when the replica begins to drain, for clients that speak to it themselves."""
        self.at_end: list[Callable[[], None]] = []
        """Called when the drain gives up calls that still run, for callers that are connected without a router."""

    # -- routers ---------------------------------------------------------------------------------------------------

    def open(self, features: Collection[str] = (), stream_id: str = "") -> tuple[RouterPeer, Outbox]:
        """A router's stream begins. If it echoes stamps, its runs are started only while it does.

        `features`: the router's. `stream_id` is the router's id of the stream, if it has one.
        """
        link, outbox = connect_link(self.scheduler, self.slots.issuer, self._now(), features, stream_id, self.methods)
        self._links[link] = outbox
        if self.scheduler.draining:
            outbox.go_away(DRAINING.message)
        if self._waiters:
            self._conditions.look_around()
        return link, outbox

    def submit(self, runs: Sequence[ReplicaRun], rejected: Iterable[tuple[ReplicaRun, Failure]] = ()) -> None:
        """A frame of runs, and those of them that fail as they are."""
        for run, failure in rejected:
            self.outcomes.failed(run, 0, len(run.payloads), failure)
        if any(run.record is not None for run in runs):
            runs = self.sessions.admit(runs)
        if self.traces is not None:
            self.traces.begin(runs)
        self.post(RunsCame(runs))

    def reconcile(self, questions: Iterable[Question]) -> list[tuple[str, int, SessionReport]]:
        """What became of calls of sessions that moved to this router."""
        answers = self.sessions.reconcile(questions)
        if self._waiters:
            self._conditions.look_around()
        return answers

    def acknowledge(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Clients have the outcomes of these run ids, both ends included."""
        self.sessions.acknowledge(link, ranges)
        if self._waiters:
            self._conditions.look_around()

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]], *, tells_stopped: bool = False) -> None:
        """A router cancels run ids, both ends included: waiting calls never start, running ones are cancelled.

        A handler that is `def` runs to its end, and so does a batch, for the sake of the others in it; but one that
        yields is closed at its next value, a batch once none of its calls is wanted. However running calls end, their
        lanes stop there if they stop at failures. `tells_stopped`: report the stops to the router.
        """
        ranges = list(ranges)
        own = without_moved(link, ranges)
        self.post(RunsCancelled(link, own))
        stopped = self._recalls.cancel(link, own, ranges)
        if tells_stopped and stopped:
            link.outbox.stopped(stopped)
        if self._waiters:
            self._conditions.look_around()

    def take(self, link: RouterPeer, run_ids: Iterable[int], counts: Iterable[int]) -> None:
        """Values of handlers that yield were taken, counts by run id: these handlers may go on."""
        self._executors.generators.take(link, run_ids, counts)

    async def finish(self, link: RouterPeer) -> None:
        """The router has half-closed: returns when all of its calls have been answered.

        It cannot acknowledge values of handlers that yield any more, so they count as taken once they leave.
        """
        link.outbox.take_values(lambda run_ids: self._executors.generators.take(link, run_ids, repeat(1)))
        self._executors.generators.take_all(link)
        await self._conditions.until(lambda: not (link.unkeyed or link.keyed or self.sessions.owes(link)))

    def close(self, link: RouterPeer) -> None:
        """The router's stream has ended, however."""
        outbox = self._links.pop(link, None)
        if outbox is not None:
            outbox.discard()
            self.sessions.close(link)
            self.leave(link)

    def leave(self, link: RouterPeer) -> None:
        """Handles an ended link: its waiting calls do not start, running ones are cancelled, slots are released."""
        self.post(LinkClosed(link))
        self._recalls.abandon(link)
        if self._waiters:
            self._conditions.look_around()

    async def answered(self, link: RouterPeer) -> None:
        """Returns when all calls of a direct stream have been answered."""
        await self._conditions.until(lambda: not link.unkeyed)

    # -- the replica -----------------------------------------------------------------------------------------------

    def configure(self, *, max_ongoing: int, prefetch: int) -> None:
        """Applies new settings, and reports the new capacity to routers."""
        self.batch_hosts.warn_of_unfillable(max_ongoing, prefetch)
        self.post(LimitsChanged(max_ongoing, prefetch))
        for outbox in self._links.values():
            outbox.tell_capacity()

    def drain(self) -> None:
        """Accepts no new calls, hands back unstarted ones, and notifies the routers. Granted slots stay valid."""
        self.post(DrainBegan())
        self._recalls.hold_all(self._links)
        self._recalls.recall(lambda run: run.slot is None)
        for outbox in self._links.values():
            outbox.go_away(DRAINING.message)
        for tell in self.at_drain:
            tell()
        self._conditions.look_around()

    def cut_off(self) -> None:
        """The grace is over: what has not started is handed back, in slots too, and what runs is cancelled."""
        self.post(GraceEnded())
        self._recalls.hold_all(self._links)
        self._recalls.recall(lambda _run: True)
        self._executors.cut_off()
        self._conditions.look_around()

    def give_up(self) -> None:
        """Calls that run on although they were cancelled are lost. Routers notice that by the end of their streams."""
        for tell in self.at_end:
            tell()

    async def quiet(self) -> None:
        """Returns when no call runs. Slots may be out."""
        await self._conditions.until(lambda: self.scheduler.is_quiet)

    async def idle(self) -> None:
        """Returns when nothing runs and nothing waits."""
        await self._conditions.until(lambda: self.scheduler.is_idle)

    async def acknowledged(self) -> None:
        """Returns when no outcome of a session is kept any more."""
        await self._conditions.until(lambda: not self.sessions.unacknowledged)

    async def deserted(self, patience_s: float) -> None:
        """Returns when there was no router for so long: kept outcomes cannot reach clients any more."""
        await self._conditions.lasts(lambda: not self._links, patience_s)

    async def revoke(self, epochs: PartitionEpochs) -> AsyncGenerator[PartitionEpochs, None]:
        """Partitions move away: yields those of which nothing is here any more, until none is."""
        self.post(PartitionsRevoked(epochs))
        is_emptied = self.scheduler.is_emptied
        left = {(endpoint, partition) for endpoint, each in epochs.items() for partition in each}
        while left:
            await self._conditions.until(lambda: any(starmap(is_emptied, left)))
            emptied: dict[str, dict[int, int]] = {}
            for endpoint, partition in [each for each in left if is_emptied(*each)]:
                left.remove((endpoint, partition))
                emptied.setdefault(endpoint, {})[partition] = epochs[endpoint][partition]
            yield emptied

    def fence(self, epoch: int) -> dict[str, set[int]]:
        """All partitions move away that it had at this epoch or older ones; returns those (by endpoint) still here."""
        self.post(EpochFenced(epoch))
        return self.scheduler.busy()

    async def stop(self) -> None:
        """Ends what still runs."""
        self._timer.stop()
        self.sessions.stop()
        self.batch_hosts.close()
        await self._executors.close()

    # -- what must not start any more ------------------------------------------------------------------------------

    def _fence_runs(self, runs: Sequence[ReplicaRun]) -> None:
        """Sessions went on elsewhere: what of these runs has not started is handed back."""
        self._recalls.hold(runs)
        # Waiting calls are cancelled before executors give back work: that makes room, in which they would start.
        self.post(SessionsMoved(runs))
        self._recalls.recall(frozenset(runs).__contains__)

    # -- decisions -------------------------------------------------------------------------------------------------

    def post(self, event: ReplicaEvent) -> None:
        """The one way into the scheduler: carries out what it decides, sets the timer, and looks around."""
        scheduler = self.scheduler
        if commands := scheduler.step(event, self._now()):
            self._carry_out(commands)
        deadline = scheduler.next_deadline()
        if deadline is not None:
            self._timer.set(deadline)
        if self._waiters:
            self._conditions.look_around()

    def _carry_out(self, commands: list[ReplicaCommand]) -> None:
        for command in commands:
            match command:
                case StartTurn() | StartCalls():
                    self._executor_of[command.run.options.method].start(command)
                case StartBatch():
                    self._executor_of[command.batcher.method].start(command)
                    self.counters.batch(command.count)
                case Refuse(run=run, lo=lo, hi=hi, failure=failure):
                    answered(run, lo, hi, failure)
                    if run.record is None:
                        run.link.outbox.refused(run.first + lo, hi - lo, failure)
                        if run.lease_s:
                            self.slots.refused()
                    else:
                        self.sessions.refused(run, run.record, lo, hi - lo, failure)
                case Fail(run=run, lo=lo, hi=hi, failure=failure):
                    answered(run, lo, hi, failure)
                    if run.lease_s:
                        self.slots.failed(command)
                    else:
                        self.outcomes.failed(run, lo, hi - lo, failure)
                case Grant():
                    self.slots.granted(command)
                case AnswerRenewal():
                    self.slots.renewed(command)
                case AnswerAttach(link=link) | TellDetached(link=link):
                    link.outbox.slot_changed(command)
                case TellCapacity(link=link):
                    link.outbox.tell_capacity()
                case TellKeys():
                    self.tell_keys(command)

    def _batch_settings_changed(self) -> None:
        """A handler has set something: what waits may be due, or its time another."""
        self.batch_hosts.warn_of_unfillable(self.scheduler.max_ongoing, self.scheduler.prefetch)
        self.post(BatchSettingsChanged())
