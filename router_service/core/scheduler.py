"""The router's decisions: which replica runs which calls, and which outcome every caller gets.

Purpose: admission -> traffic policy -> queue -> balancer -> replica -> correlated reply, as `(event, now) -> commands`.
`Parts` constructs the parts of the core, each with the parts it uses; `Handlers` maps each class of events to its one
handler; `Conclusions` carries out what follows from an event. `handlers/submissions` and `lifecycle/intake` are the way
in, `lifecycle/sender` the way out, `lifecycle/answers` the way back.
Invariants, checked by tests/properties/test_router_scheduler.py:
  1. Each submitted call gets exactly one outcome (a result or a failure), whatever happens.
  2. Calls of one ordering key are sent in order of arrival, and to a new owner only after the old one has answered.
  3. A replica never has more unkeyed calls than its reported capacity, nor more keyed ones than its window.
  4. Nothing waits while a replica of its backend could take it, unless the brake is on.
  5. A slot that is granted to a caller that no longer waits is released immediately.
Owner: the dispatcher, on one event loop. No clock, no I/O: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

from router_service.core.commands import RouterCommand
from router_service.core.counters import RouterCounters
from router_service.core.events import (
    AllCallsResent,
    BrakeChanged,
    CallDispatched,
    CallerLeft,
    CallFailedAtEdge,
    CallsCancelled,
    CallsResent,
    CallsSubmitted,
    CapacityReported,
    ChunkArrived,
    DrainAnnounced,
    LanesStopped,
    LinkFailed,
    LinkLost,
    LinkOpened,
    RequestsTaken,
    ResultsRequested,
    RosterAcknowledged,
    RouterEvent,
    RouterTimePassed,
    RunsCompleted,
    RunsRefused,
    ServiceTimesReported,
    SessionConnected,
    SessionDisconnected,
    SessionReconciled,
    SlotAbandoned,
    SlotOperationRequested,
    SlotOperationsAnswered,
    SlotRequested,
    StreamedOutcomesLeft,
    TableReceived,
    UploadCompleted,
    UploadFailed,
)
from router_service.core.features import slot_operations
from router_service.core.features.session_connections import Acknowledgements, SessionConnections
from router_service.core.features.session_resumption import Resumptions
from router_service.core.features.slot_operations import OutgoingOp, RoutedSlotOperations
from router_service.core.features.uploads import MAX_UPLOAD_BYTES, HeldUploads
from router_service.core.handlers.expiry import CallerCancels, Expiry, Timers
from router_service.core.handlers.slots import SlotAnswers, SlotSubmissions
from router_service.core.handlers.submissions import ColumnIntake, Submissions, UploadArrivals
from router_service.core.handlers.tables_and_links import LinkChanges, Refusals, TableChanges
from router_service.core.lifecycle import cancellation
from router_service.core.lifecycle.answers import Answers, RequestsAtReplicas, WithdrawalFollowUp
from router_service.core.lifecycle.intake import Availability, RoutingIntake
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.lifecycle.taps import OpenTaps, TapClosed, TapOpened
from router_service.core.queueing.run_queues import SuspendedRuns
from router_service.core.replicas import frames
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.open_calls import OpenCallsFilter, OpenCallsScan
from router_service.core.routing.topology import Topology
from router_service.core.routing_table import RoutingTable
from router_service.core.runs import CallerBook, RouterRun
from router_service.core.sampling import Chance
from router_service.core.tenants import DEFAULT_TENANTS, TenantBook, TenantSettings
from slotmesh.calls.deadline_heap import DeadlineHeap


class Conclusions:
    """Carries out the consequences of an event until none are left, then hands over the commands collected in `out`.

    Purpose: an outcome may end other calls (those behind it in a lane that stops) or let some begin (those behind a
    payload that is no longer awaited); and calls are re-routed when a backend starts or stops being able to serve.
    Invariants: each event ends here; commands are handed over once, in the order in which they were decided.
    """

    def __init__(
        self,
        out: list[RouterCommand],
        outcomes: CallerOutcomes,
        withdrawals: WithdrawalFollowUp,
        operations: RoutedSlotOperations,
        uploads: HeldUploads,
        submissions: Submissions,
        *,
        availability: Availability,
    ) -> None:
        self._out = out
        self._outcomes = outcomes
        self._withdrawals = withdrawals
        self._operations = operations
        self._uploads = uploads
        self._submissions = submissions
        self._availability = availability
        # Looked at after each event. Their owners clear these lists, and never replace them.
        self._flipped, self._stopped, self._unbrought = availability.flipped, outcomes.stopped, outcomes.unbrought
        self._pending = operations.requests.pending

    def commands(self, now: float) -> list[RouterCommand]:
        """What was decided, once all that follows from it was."""
        if self._flipped:
            self._availability.follow(now)
        while self._stopped:
            caller, key = self._stopped.pop()
            self._withdrawals.follow_up(cancellation.stop_after(caller, key, self._outcomes), now)
        if self._unbrought:
            ended = self._unbrought.copy()
            self._unbrought.clear()
            for run in self._uploads.release_ended(ended):
                self._submissions.begin(run, now)
            return self.commands(now)
        out = self._out.copy()
        self._out.clear()
        return self._operations.for_all_waiting(out, now) if self._pending else out


class Parts:
    """The parts of the router's core, constructed once for each scheduler. Each decides one thing."""

    def __init__(self, chance: Chance, max_upload_bytes: int, tenants: TenantSettings) -> None:
        """`chance` draws uniformly from [0, 1)."""
        out: list[RouterCommand] = []
        numbers = count(1)
        """Ages of runs."""
        # What is kept.
        self.counters = counters = RouterCounters()
        self.topology = topology = Topology(out, counters, chance)
        self.tenants = book = TenantBook(tenants, counters.endpoints)
        self.suspended = suspended = SuspendedRuns()
        self.uploads = uploads = HeldUploads(max_upload_bytes)
        deadlines: DeadlineHeap[RouterRun] = DeadlineHeap(sweep_from=1024)
        # The way of a call.
        self.taps = taps = OpenTaps(chance)
        self.outcomes = outcomes = CallerOutcomes(out, counters, taps)
        self.sender = sender = Sender(out, topology)
        self.intake = intake = RoutingIntake(out, topology, outcomes, deadlines, sender, suspended, chance)
        self.answers = answers = Answers(out, counters, outcomes, sender, intake)
        withdrawals = WithdrawalFollowUp(topology, sender, intake, answers)
        self.resumptions = resumptions = Resumptions(out, topology, outcomes, intake)
        acknowledgements = Acknowledgements(out, topology, outcomes, intake, suspended)
        self.slot_operations = operations = RoutedSlotOperations(out, topology, outcomes, deadlines, sender)
        columns = ColumnIntake(numbers, topology, sender, intake, book)
        self.submissions = submissions = Submissions(
            numbers, counters, topology, outcomes, intake, resumptions, uploads, columns=columns, tenants=book
        )
        expiry = Expiry(deadlines, outcomes, intake, operations, suspended, topology)
        availability = Availability(topology, intake, sender)
        self.conclusions = Conclusions(
            out, outcomes, withdrawals, operations, uploads, submissions, availability=availability
        )
        # What else happens.
        self.requests = RequestsAtReplicas(out)
        self.caller_cancels = CallerCancels(outcomes, withdrawals, uploads, operations)
        self.upload_arrivals = UploadArrivals(outcomes, uploads, submissions)
        self.session_connections = SessionConnections(
            outcomes, availability, withdrawals, uploads, resumptions, acknowledgements
        )
        self.slot_wishes = SlotSubmissions(numbers, counters, outcomes, intake, operations, topology, book)
        self.slot_answers = SlotAnswers(
            counters, outcomes, sender, intake, answers, operations, withdrawals=withdrawals, expiry=expiry
        )
        self.refusals = Refusals(counters, outcomes, sender, intake, answers, withdrawals, expiry)
        self.link_changes = LinkChanges(out, topology, sender, resumptions, answers, chance, availability=availability)
        self.table_changes = TableChanges(topology, sender, intake, resumptions, acknowledgements, operations)
        self.timers = Timers(
            deadlines,
            outcomes,
            availability,
            withdrawals,
            expiry,
            operations=operations,
            uploads=uploads,
            resumptions=resumptions,
            acknowledgements=acknowledgements,
        )


EventT = TypeVar("EventT", bound=RouterEvent)


class Handlers:
    """The table from classes of events to what handles them."""

    def __init__(self) -> None:
        self.by_class: dict[type[RouterEvent], Callable[[Any, float], None]] = {}
        """Each takes the event, and the time as monotonic seconds."""

    def add(self, event: type[EventT], handle: Callable[[EventT, float], None]) -> None:
        """Events of this class go to `handle`."""
        if event in self.by_class:
            raise ValueError(f"{event.__name__} has a handler")
        self.by_class[event] = handle


def handlers_of(parts: Parts) -> Handlers:
    """The table of the router."""
    handlers = Handlers()
    add = handlers.add
    # Calls and callers.
    add(CallsSubmitted, parts.submissions.submitted)
    add(CallFailedAtEdge, parts.submissions.failed_at_edge)
    add(CallsCancelled, parts.caller_cancels.cancel_calls)
    add(CallerLeft, parts.caller_cancels.caller_left)
    add(ResultsRequested, parts.submissions.results_requested)
    add(StreamedOutcomesLeft, parts.outcomes.streamed_left)
    add(RequestsTaken, parts.requests.taken)
    add(RouterTimePassed, parts.timers.expire)
    # Payloads in chunks.
    add(ChunkArrived, parts.upload_arrivals.chunk_arrived)
    add(UploadCompleted, parts.upload_arrivals.completed)
    add(UploadFailed, parts.upload_arrivals.failed)
    # Sessions.
    add(SessionConnected, parts.session_connections.connected)
    add(RosterAcknowledged, parts.session_connections.acknowledged)
    add(CallsResent, parts.submissions.resent)
    add(AllCallsResent, parts.resumptions.all_resent)
    add(SessionReconciled, parts.resumptions.reconciled)
    add(SessionDisconnected, parts.session_connections.disconnected)
    # Replicas.
    add(LinkOpened, parts.link_changes.opened)
    add(LinkLost, parts.link_changes.lost)
    add(LinkFailed, parts.link_changes.failed)
    add(CapacityReported, parts.link_changes.capacity_reported)
    add(ServiceTimesReported, parts.link_changes.service_times_reported)
    add(DrainAnnounced, parts.link_changes.drain_announced)
    add(RunsCompleted, parts.answers.completed)
    add(RunsRefused, parts.refusals.refused)
    add(LanesStopped, parts.answers.stopped)
    # Slots.
    add(SlotRequested, parts.slot_wishes.requested)
    add(CallDispatched, parts.slot_wishes.dispatched)
    add(SlotOperationRequested, parts.slot_wishes.operation_requested)
    add(SlotAbandoned, parts.slot_operations.abandoned)
    add(SlotOperationsAnswered, parts.slot_answers.answered)
    # Queues.
    add(BrakeChanged, parts.sender.brake)
    # Those who look at calls.
    add(TapOpened, parts.taps.opened)
    add(TapClosed, parts.taps.closed)
    # The routing table.
    add(TableReceived, parts.table_changes.received)
    return handlers


class RouterScheduler:
    """State of one router's data plane; single writer, never awaited inside.

    Events come in by `step`. A link that can write takes its next frame by `cut_frame` and `cut_ops`. All else only
    reads.
    """

    def __init__(
        self, chance: Chance, *, max_upload_bytes: int = MAX_UPLOAD_BYTES, tenants: TenantSettings = DEFAULT_TENANTS
    ) -> None:
        """`chance` draws uniformly from [0, 1): the only randomness.

        `max_upload_bytes`: of payloads that are under way in chunks, and of what waits behind them. `tenants`: how
        many tenants have accounts of their own.
        """
        self._parts = parts = Parts(chance, max_upload_bytes, tenants)
        self._handlers = handlers_of(parts).by_class
        self._commands = parts.conclusions.commands
        self._timers = parts.timers
        self._outcomes = parts.outcomes
        self.counters = parts.counters
        """To be read, by metrics."""
        self.tenants = parts.tenants
        """To be read: which tenants call most."""
        self.topology = parts.topology
        """To be read: what the table in force names, and how loaded it is."""

    def step(self, event: RouterEvent, now: float) -> list[RouterCommand]:
        """Something has happened: returns what is to be done, in order."""
        self._outcomes.now = now
        self._handlers[type(event)](event, now)
        return self._commands(now)

    # -- what links take ---------------------------------------------------------------------------------------------

    def cut_frame(self, replica: RoutedReplica, max_calls: int, max_bytes: int) -> list[OutgoingBatch]:
        """What the next frame to the replica carries; empty when there is nothing.

        Where `next_deadline` has come, a step with `RouterTimePassed` goes before.
        """
        return frames.cut_frame(replica, max_calls, max_bytes) if replica.outbox else []

    def cut_ops(self, replica: RoutedReplica, max_bytes: int) -> list[OutgoingOp]:
        """What the next frame of slot operations carries; it goes ahead of runs. As `cut_frame` otherwise."""
        return slot_operations.cut_ops(replica, max_bytes)

    # -- what is known -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When the shell must step with `RouterTimePassed`; None when nothing can expire."""
        return self._timers.next_deadline()

    @property
    def table(self) -> RoutingTable:
        """The table in force; its revision is 0 before there is one."""
        return self.topology.table

    def scan_calls(self, wanted: OpenCallsFilter, callers: Iterable[CallerBook]) -> OpenCallsScan:
        """A look at the calls that have not ended, of these callers, which are all that there are."""
        return OpenCallsScan(wanted, self.topology, callers)

    @property
    def shadows_under_way(self) -> int:
        """Sampled copies at replicas."""
        return self._parts.intake.copies
