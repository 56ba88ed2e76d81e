"""The replica's engine, the only writer of its state: passes events to the scheduler and carries out its commands.

Purpose: connects streams, executors and core. It is synchronous: nothing is awaited between an event and its commands.
Invariants: events reach the scheduler only by `post`; each outcome goes into the outbox of the call's router.
Owner: the app, on one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat, starmap
from math import inf

from replica_service.convert.slots import Issuer
from replica_service.core.events import (
    BatchSettingsChanged,
    CallKeyHook,
    DrainBegan,
    EpochFenced,
    Fail,
    GraceEnded,
    Grant,
    LimitsChanged,
    LinkClosed,
    PartitionEpochs,
    PartitionsRevoked,
    Refuse,
    ReplicaCommand,
    ReplicaEvent,
    ReplicaTimePassed,
    ReportAttach,
    ReportCapacity,
    ReportDefect,
    ReportDetached,
    ReportRenewal,
    RunsCancelled,
    RunsReceived,
    SessionsMoved,
)
from replica_service.core.failures import DRAINING
from replica_service.core.runs import ReplicaRun, RouterPeer, StartTurn
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.core.session_table import RESUME_TTL_S, SessionReport
from replica_service.core.withdrawals import without_moved
from replica_service.core.work import StartBatch, StartCalls
from replica_service.shell.conditions import Conditions, DeadlineTimer
from replica_service.shell.executors.batches import weighers
from replica_service.shell.executors.executor_set import ExecutorSet, Recalls
from replica_service.shell.executors.protocol import HandlerEnvironment
from replica_service.shell.handler.failures import HandlerErrors
from replica_service.shell.handler.handler_loop import HandlerLoop
from replica_service.shell.handler.methods import BatchHosts, HandlerMethod
from replica_service.shell.outcomes import OutcomeReporter, connect_link, never_started
from replica_service.shell.repetitions import Repetitions
from replica_service.shell.router_outbox import Outbox
from replica_service.shell.sessions import Question, Sessions
from replica_service.shell.slots import Slots
from replica_service.shell.state_reports import StateReports
from replica_service.shell.telemetry import ReplicaCounters, ReplicaTraces
from slotmesh.calls.slot_tokens import SECRET_BYTES
from slotmesh.errors import Failure
from slotmesh.handlers.reporting import HandlerState
from slotmesh.logs import get_logger
from slotmesh.runtime.clock import Clock

_log = get_logger(__name__)


class Engine:
    """Executes calls of one handler."""

    _closed_at = -inf
    """When a router's link ended last, monotonic seconds."""

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
        state: HandlerState | None = None,
    ) -> None:
        """To be called on the engine's event loop. `chance` draws from [0, 1), for reports of capacity to routers.

        `issuer` names this replica in slot tokens. `handler_loop` runs `async def` methods; None: this loop does.
        `state`: what the handler reports of itself.
        """
        self.counters = ReplicaCounters()
        self.traces: ReplicaTraces | None = None  # where calls are traced
        self.sessions = Sessions(self._fence_runs, clock.now, resume_ttl_s)
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
        self.repetitions = Repetitions(clock.now, self.scheduler.owns, self._fail)
        self.outcomes = outcomes = OutcomeReporter(self.counters, self.sessions, self.repetitions, self.post)
        self._now = clock.now
        self.batch_hosts = BatchHosts(methods, self.scheduler.batchers, clock.now, self._batch_settings_changed)
        self.batch_hosts.warn_of_unfillable(max_ongoing, prefetch)
        self._executors = executors = ExecutorSet(
            HandlerEnvironment(methods, outcomes, errors, clock.now),
            lambda: self.scheduler.max_ongoing,
            handler_loop,
            outcomes.woken,
        )
        self._executor_of = executors.by_method
        self._recalls = Recalls(self.scheduler, self.sessions, executors, self.post)
        self._conditions = conditions = Conditions()
        self._waiters = conditions.waiters
        self.slots = Slots(self.scheduler, issuer or Issuer(clock), clock.now, self.post, self.repetitions, self._fail)
        self._timer = DeadlineTimer(clock.now, partial(self.post, ReplicaTimePassed()))
        self.tell_keys: Callable[[CallKeyHook], object] = lambda _command: None
        """Calls the handler's hooks for keys, and posts their end. Used after `scheduler.hold_keys`."""
        self._links: dict[RouterPeer, Outbox] = {}
        self._state = state or HandlerState()
        self._state_reports = StateReports(self._state, self._announce_state)
        self.at_drain: list[Callable[[], None]] = []
        """Called when the replica begins to drain, for directly connected clients."""
        self.at_end: list[Callable[[], None]] = []
        """Called when the drain gives up calls that still run, for directly connected callers."""

    # -- routers ---------------------------------------------------------------------------------------------------

    def open(self, stream_id: str = "") -> tuple[RouterPeer, Outbox]:
        """Adds the link of a router's stream. If the router echoes stamps, its runs are started only while it does.

        `stream_id`: the router's id of the stream, if it has one.
        """
        link, outbox = connect_link(
            self.scheduler, self.slots.issuer, self._now(), stream_id, self.methods, self._state
        )
        self._links[link] = outbox
        if self.scheduler.draining:
            outbox.go_away(DRAINING.message)
        self._conditions.look_around()
        return link, outbox

    def submit(self, runs: Sequence[ReplicaRun], rejected: Iterable[tuple[ReplicaRun, Failure]] = ()) -> None:
        """Submits the runs of a frame, and fails its invalid runs."""
        for run, failure in rejected:
            self.outcomes.failed(run, 0, len(run.payloads), failure)
        if any(run.record is not None for run in runs):
            runs = self.sessions.admit(runs)
        if any(run.request is not None for run in runs):
            runs = self.repetitions.admit(runs)
        if self.traces is not None:
            self.traces.begin(runs)
        self.post(RunsReceived(runs))

    def reconcile(self, questions: Iterable[Question]) -> list[tuple[str, int, SessionReport]]:
        """Returns the state of the calls of sessions that have moved to this router."""
        answers = self.sessions.reconcile(questions)
        self._conditions.look_around()
        return answers

    def acknowledge(self, link: RouterPeer, ranges: Iterable[tuple[int, int]]) -> None:
        """Drops kept outcomes that clients have received, by ranges of run ids, both ends included."""
        self.sessions.acknowledge(link, ranges)
        self._conditions.look_around()

    def cancel(self, link: RouterPeer, ranges: Iterable[tuple[int, int]], *, tells_stopped: bool = False) -> None:
        """Cancels ranges of run ids, both ends included: waiting calls never start, running ones are cancelled.

        A `def` method runs to its end, and so does a batch, because of its other calls, and a call with a request id,
        because of repetitions; a method that yields is closed at its next value, in a batch when none of its calls is
        left. Regardless of how running calls end, their lanes stop there if they stop at failures. `tells_stopped`:
        report the stops to the router.
        """
        ranges = list(ranges)
        own = without_moved(link, ranges)
        self.post(RunsCancelled(link, own))
        stopped = self._recalls.cancel(link, own, ranges)
        if tells_stopped and stopped:
            link.outbox.stopped(stopped)
        self.repetitions.cancel(link, ranges)
        self._conditions.look_around()

    def take(self, link: RouterPeer, run_ids: Iterable[int], counts: Iterable[int]) -> None:
        """Applies acknowledgements of values, counts by run id: the handlers may continue."""
        self._executors.generators.take(link, run_ids, counts)

    async def finish(self, link: RouterPeer) -> None:
        """Returns when all calls of a router that has half-closed have their outcome.

        The router cannot acknowledge values any more, so values count as taken when they are sent.
        """
        link.outbox.take_values(lambda run_ids: self._executors.generators.take(link, run_ids, repeat(1)))
        self._executors.generators.take_all(link)
        owes = (self.sessions.owes, self.repetitions.owes)
        await self._conditions.until(lambda: not (link.unkeyed or link.keyed or any(each(link) for each in owes)))

    def close(self, link: RouterPeer) -> None:
        """Removes the link of a router's stream that has ended."""
        self._closed_at = self._now()
        outbox = self._links.pop(link, None)
        if outbox is not None:
            outbox.discard()
            self.sessions.close(link)
            self.repetitions.close(link)
            self.leave(link)

    def leave(self, link: RouterPeer) -> None:
        """Handles an ended link: its waiting calls do not start, running ones are cancelled, slots are released."""
        self.post(LinkClosed(link))
        self._recalls.abandon(link)
        self._conditions.look_around()

    async def answered(self, link: RouterPeer) -> None:
        """Returns when all calls of a direct stream have their outcome."""
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
        """Hands back all unstarted calls, also in slots, and cancels running ones: the grace is over."""
        self.post(GraceEnded())
        self._recalls.hold_all(self._links)
        self._recalls.recall(lambda _run: True)
        self._executors.cut_off()
        self._conditions.look_around()

    def give_up(self) -> None:
        """Gives up calls that run despite their cancellation. Routers detect that by the end of their streams."""
        for tell in self.at_end:
            tell()

    async def quiet(self) -> None:
        """Returns when no call runs. Slots may still be granted."""
        await self._conditions.until(lambda: self.scheduler.is_quiet)

    async def idle(self) -> None:
        """Returns when no call runs or waits, and no slot is granted."""
        await self._conditions.until(lambda: self.scheduler.is_idle)

    async def acknowledged(self, resume_s: float) -> None:
        """Returns when no outcome of a session is kept any more, and no link to a router has ended for `resume_s`.

        A client whose router was lost queries this replica through another router. No other process knows that it has
        not received a call.
        """
        while True:
            await self._conditions.until(lambda: not self.sessions.unacknowledged)
            left_s = self._closed_at + resume_s - self._now()
            if left_s <= 0 or not self._links:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._conditions.until(lambda: not self._links)

    async def deserted(self, duration_s: float) -> None:
        """Returns when no router was connected for this duration, so that kept outcomes cannot reach clients."""
        await self._conditions.lasts(lambda: not self._links, duration_s)

    async def revoke(self, epochs: PartitionEpochs) -> AsyncGenerator[PartitionEpochs, None]:
        """Gives partitions up. Yields those that have become empty, until all have."""
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
        """Gives up all partitions of this epoch and older ones. Returns those that are not empty, by endpoint."""
        self.post(EpochFenced(epoch))
        return self.scheduler.busy()

    async def stop(self) -> None:
        """Ends all calls that still run."""
        self._timer.stop()
        self._state_reports.close()
        self.sessions.stop()
        self.repetitions.stop()
        self.batch_hosts.close()
        await self._executors.close()

    # -- what must not start any more ------------------------------------------------------------------------------

    def _fence_runs(self, runs: Sequence[ReplicaRun]) -> None:
        """Hands back unstarted calls of these runs, whose sessions have moved to another router."""
        self._recalls.hold(runs)
        # Waiting calls are cancelled before executors return work: otherwise they would start in the room it makes.
        self.post(SessionsMoved(runs))
        self._recalls.recall(frozenset(runs).__contains__)

    # -- decisions -------------------------------------------------------------------------------------------------

    def post(self, event: ReplicaEvent) -> None:
        """The only way into the scheduler: carries out its commands, those of a step that raises as well."""
        scheduler, commands = self.scheduler, list[ReplicaCommand]()
        try:
            scheduler.follow(event, self._now(), commands)
        finally:
            try:
                self._carry_out(commands)
            finally:
                if (deadline := scheduler.next_deadline()) is not None:
                    self._timer.set(deadline)
                if self._waiters:
                    self._conditions.look_around()

    def _carry_out(self, commands: list[ReplicaCommand]) -> None:
        defect: Exception | None = None
        for command in commands:
            try:
                match command:
                    case StartTurn() | StartCalls():
                        self._executor_of[command.run.options.method].start(command)
                    case StartBatch():
                        self._executor_of[command.method].start(command)
                        self.counters.batch(command.count)
                    case Refuse() | Fail():
                        self._end_unstarted(command)
                    case Grant():
                        self.slots.granted(command)
                    case ReportRenewal():
                        self.slots.renewed(command)
                    case ReportAttach(link=link) | ReportDetached(link=link):
                        link.outbox.slot_changed(command)
                    case ReportCapacity(link=link):
                        link.outbox.tell_capacity()
                    case CallKeyHook():
                        self.tell_keys(command)
                    case ReportDefect(what=what):
                        self.counters.defects += 1
                        _log.error("a defect of the replica: an event was ignored", what=what)
            except Exception as error:  # noqa: BLE001 - raised once the commands for others are carried out
                defect = defect or error
        if defect is not None:
            raise defect

    def _fail(self, run: ReplicaRun, failure: Failure) -> None:
        """Fails the only call of a run that was not submitted to the scheduler."""
        self.outcomes.failed(run, 0, 1, failure)

    def _end_unstarted(self, command: Refuse | Fail) -> None:
        """Delivers the outcome of calls that never start, or hands them back."""
        run, lo, hi, failure = command.run, command.lo, command.hi, command.failure
        never_started(run, lo, hi, failure)
        if isinstance(command, Fail):
            if run.lease_s:
                self.slots.failed(command)
            else:
                self.outcomes.failed(run, lo, hi - lo, failure)
        elif run.record is not None:
            self.sessions.refused(run, run.record, lo, hi - lo, failure)
        else:
            run.link.outbox.refused(run.first + lo, hi - lo, failure)
            if run.lease_s:
                self.slots.refused()
            elif run.request is not None:
                self.repetitions.refused(run, failure)

    def _announce_state(self) -> None:
        for outbox in self._links.values():
            outbox.announce_state()

    def _batch_settings_changed(self) -> None:
        """Handles changed batch settings: a batch may be due, or at another time."""
        self.batch_hosts.warn_of_unfillable(self.scheduler.max_ongoing, self.scheduler.prefetch)
        self.post(BatchSettingsChanged())
