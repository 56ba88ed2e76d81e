"""The router's decisions: which replica runs which calls, and which outcome every caller gets.

Purpose: admission -> traffic policy -> queue -> balancer -> replica -> correlated reply, as `(event, now) -> commands`.
`Parts` constructs the parts of the core and registers the features; `Handlers` maps each class of events to its one
handler. `lifecycle/submissions` and `lifecycle/intake` are the way in, `lifecycle/sender` the way out,
`lifecycle/answers` and `lifecycle/outcomes` the way back; `features/` has what only some calls need.
Invariants, checked by tests/properties/test_router_scheduler.py:
  1. Each submitted call gets exactly one outcome (a result or a failure), whatever happens.
  2. Calls of one ordering key are sent in order of arrival, and to a new owner only after the old one has answered.
  3. A replica never has more unkeyed calls than its reported capacity, nor more keyed ones than its window.
  4. Nothing waits while a replica of its backend could take it, unless the brake is on, or it waits for a replica with
     its model (`preferences/delays`; tests/properties/test_router_delays.py).
  5. A slot that is granted to a caller that no longer waits is released immediately.
  6. A call of a broadcast goes to its replica only, and not again once that may have executed it.
Owner: the dispatcher, on one event loop. No clock, no I/O: `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, TypeVar

from router_service.core.commands import RouterCommand, Step
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
    HandlerStateReported,
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
from router_service.core.features.broadcasts import (
    BroadcastClosed,
    BroadcastOutcomesTaken,
    BroadcastRequested,
    Broadcasts,
)
from router_service.core.features.delayed_calls import DelayedCalls
from router_service.core.features.links_in_time import LinksInTime
from router_service.core.features.session_connections import Acknowledgements
from router_service.core.features.session_resumption import Resumptions
from router_service.core.features.shadows import ShadowCopies
from router_service.core.features.slot_answers import SlotAnswers, SlotSubmissions
from router_service.core.features.slot_operations import OutgoingOp, RoutedSlotOperations
from router_service.core.features.stopping_lanes import StoppingLanes
from router_service.core.features.streaming import Streaming
from router_service.core.features.taps import OpenTaps, TapClosed, TapOpened
from router_service.core.features.uploads import MAX_UPLOAD_BYTES, Uploads
from router_service.core.lifecycle.answers import Answers
from router_service.core.lifecycle.deadlines_and_cancellation import EarlyEnds
from router_service.core.lifecycle.feature import Features
from router_service.core.lifecycle.intake import Availability, RoutingIntake
from router_service.core.lifecycle.links_and_tables import LinkChanges, TableChanges
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.lifecycle.submissions import Submissions
from router_service.core.plugged_balancers import NO_PLUG_INS, PlugIns
from router_service.core.preferences.prefixes import MAX_BLOCKS
from router_service.core.replicas import frames
from router_service.core.replicas.frames import OutgoingBatch
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.open_calls import OpenCallsFilter, OpenCallsScan
from router_service.core.routing.replica_links import SubsetLinks
from router_service.core.routing.topology import Topology
from router_service.core.routing_table import RoutingTable
from router_service.core.runs import Caller
from router_service.core.sampling import Chance
from router_service.core.tenants import DEFAULT_TENANTS, TenantBook, TenantSettings
from slotmesh.errors import Failure


class Parts:
    """The parts of the router's core, constructed once for each scheduler. Each decides one thing."""

    def __init__(
        self,
        chance: Chance,
        max_upload_bytes: int,
        tenants: TenantSettings,
        subset_size: int,
        prefix_blocks: int,
        plug_ins: PlugIns,
        zone: str,
    ) -> None:
        """`chance` draws uniformly from [0, 1)."""
        numbers = count(1)
        """Ages of runs."""
        self.counters = counters = RouterCounters()
        self.features = features = Features()
        links = SubsetLinks(subset_size)
        self.topology = topology = Topology(counters, chance, links, prefix_blocks, plug_ins, zone)
        self.tenants = book = TenantBook(tenants, counters.endpoints)
        # The way of a call.
        outcomes = CallerOutcomes(counters, features)
        self.sender = sender = Sender(topology)
        links.joined = sender.pump
        self.intake = intake = RoutingIntake(topology, outcomes, sender, chance)
        self.availability = availability = Availability(intake)
        self.ends = ends = EarlyEnds(intake, features)
        self.answers = answers = Answers(counters, intake, ends, features)
        self.submissions = submissions = Submissions(numbers, counters, intake, book, features)
        self.link_changes = LinkChanges(intake, answers, availability, features, chance)
        self.table_changes = TableChanges(intake, features)
        # What some calls need.
        self.lanes = StoppingLanes(outcomes, ends)
        self.uploads = Uploads(max_upload_bytes, outcomes, submissions)
        self.acknowledgements = Acknowledgements(intake, availability)
        self.resumptions = Resumptions(intake)
        self.shadows = ShadowCopies(intake, chance)
        self.streaming = Streaming(outcomes)
        self.taps = OpenTaps(chance)
        self.slot_operations = operations = RoutedSlotOperations(intake, ends)
        self.slot_submissions = SlotSubmissions(numbers, counters, intake, operations, book)
        self.broadcasts = Broadcasts(numbers, counters, intake, book)
        self.slot_answers = SlotAnswers(counters, intake, answers, operations, ends)
        features.register(
            (
                self.lanes,
                self.uploads,
                self.acknowledgements,
                self.resumptions,
                self.shadows,
                self.streaming,
                self.taps,
                operations,
                operations.look_ups,
                self.broadcasts,
                LinksInTime(intake),
                DelayedCalls(sender),
            )
        )

    def time_passed(self, _: RouterTimePassed, step: Step) -> None:
        """Fails every call whose deadline or queue time limit has passed, and ends all other waits that are over."""
        self.ends.end_overdue(step)
        for hook in self.features.expire:
            hook(step)

    def session_connected(self, event: SessionConnected, step: Step) -> None:
        """What an earlier connection has sent is looked for at the replicas."""
        for hook in self.features.connected:
            hook(event.caller, step)


EventT = TypeVar("EventT", bound=RouterEvent)


class Handlers:
    """The table from classes of events to what handles them."""

    def __init__(self) -> None:
        self.by_class: dict[type[RouterEvent], Callable[[Any, Step], None]] = {}
        """Each takes the event, and the step that it leads to."""

    def add(self, event: type[EventT], handle: Callable[[EventT, Step], None]) -> None:
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
    add(CallFailedAtEdge, parts.lanes.failed_at_edge)
    add(CallsCancelled, parts.ends.cancel_calls)
    add(CallerLeft, parts.ends.caller_left)
    add(ResultsRequested, parts.submissions.results_requested)
    add(StreamedOutcomesLeft, parts.streaming.outcomes_left)
    add(RequestsTaken, parts.streaming.taken)
    add(RouterTimePassed, parts.time_passed)
    # Payloads in chunks.
    add(ChunkArrived, parts.uploads.chunk_arrived)
    add(UploadCompleted, parts.uploads.upload_completed)
    add(UploadFailed, parts.uploads.upload_failed)
    # Sessions.
    add(SessionConnected, parts.session_connected)
    add(RosterAcknowledged, parts.acknowledgements.acknowledged)
    add(CallsResent, parts.submissions.resent)
    add(AllCallsResent, parts.resumptions.all_resent)
    add(SessionReconciled, parts.resumptions.reconciled)
    add(SessionDisconnected, parts.ends.session_left)
    # Replicas.
    add(LinkOpened, parts.link_changes.opened)
    add(LinkLost, parts.link_changes.lost)
    add(LinkFailed, parts.link_changes.failed)
    add(CapacityReported, parts.link_changes.capacity_reported)
    add(ServiceTimesReported, parts.link_changes.service_times_reported)
    add(HandlerStateReported, parts.link_changes.handler_state_reported)
    add(DrainAnnounced, parts.link_changes.drain_announced)
    add(RunsCompleted, parts.answers.completed)
    add(RunsRefused, parts.answers.refused)
    add(LanesStopped, parts.lanes.stopped)
    # Slots.
    add(SlotRequested, parts.slot_submissions.requested)
    add(CallDispatched, parts.slot_submissions.dispatched)
    add(SlotOperationRequested, parts.slot_submissions.operation_requested)
    add(SlotAbandoned, parts.slot_operations.abandoned)
    add(SlotOperationsAnswered, parts.slot_answers.answered)
    # Broadcasts.
    add(BroadcastRequested, parts.broadcasts.requested)
    add(BroadcastOutcomesTaken, parts.broadcasts.outcomes_taken)
    add(BroadcastClosed, parts.broadcasts.closed)
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
        self,
        chance: Chance,
        *,
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
        tenants: TenantSettings = DEFAULT_TENANTS,
        subset_size: int = 0,
        prefix_blocks: int = MAX_BLOCKS,
        plug_ins: PlugIns = NO_PLUG_INS,
        zone: str = "",
    ) -> None:
        """`chance` draws uniformly from [0, 1): the only randomness.

        `max_upload_bytes`: of payloads that are under way in chunks, and of what waits behind them. `tenants`: how
        many tenants have accounts of their own. `subset_size`: with more replicas, this router links to a part of them;
        0: to all. `prefix_blocks`: of prompts, known of each backend. `plug_ins`: balancers that backends may name.
        `zone`: that of the router, whose replicas come first.
        """
        self._parts = parts = Parts(chance, max_upload_bytes, tenants, subset_size, prefix_blocks, plug_ins, zone)
        self._handlers = handlers_of(parts).by_class
        self._availability = parts.availability
        self._deadlines = parts.intake.deadlines
        self._features = parts.features
        self.counters = parts.counters
        """To be read, by metrics."""
        self.tenants = parts.tenants
        """To be read: which tenants call most."""
        self.topology = parts.topology
        """To be read: what the table in force names, and how loaded it is."""

    def step(self, event: RouterEvent, now: float) -> list[RouterCommand]:
        """Something has happened: returns what is to be done, in order."""
        step = Step(now)
        self.follow(event, step)
        return step.commands

    def follow(self, event: RouterEvent, step: Step) -> None:
        """Adds the commands that follow. If it raises (a defect), those added before are carried out all the same."""
        self._handlers[type(event)](event, step)
        if step.has_flipped:
            self._availability.follow(step)
        for follow in step.later or ():  # which may add more
            follow(step)
            if step.has_flipped:
                self._availability.follow(step)
        for under_way, hook in self._features.concluded:
            if under_way:
                hook(step)

    # -- what callers may have under way ---------------------------------------------------------------------------

    def admit(self, caller: Caller, ids: Sequence[int], size: int) -> Failure | None:
        """Accepts a batch of `size` payload bytes, or returns why it is rejected; it is submitted next, by an event."""
        return caller.admit(ids, size)

    def joined(self, caller: Caller, size: int) -> None:
        """An rpc with one call, of `size` payload bytes, has begun."""
        caller.count(1, size)

    def released(self, caller: Caller, calls: int, size: int) -> None:
        """Outcomes of `calls` calls with `size` request bytes left for the client, or the bytes are not kept."""
        caller.released(calls, size)

    def left(self, caller: Caller) -> None:
        """The stream or rpc has ended: its calls count no more, whatever becomes of them."""
        caller.leave()

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
        due = self._deadlines.next_deadline() if self._deadlines.entries else None
        for waits, hook in self._features.next_deadline:
            if waits and (other := hook()) is not None and (due is None or other < due):
                due = other
        return due

    @property
    def table(self) -> RoutingTable:
        """The table in force; its revision is 0 before there is one."""
        return self.topology.table

    def scan_calls(self, wanted: OpenCallsFilter, callers: Iterable[Caller]) -> OpenCallsScan:
        """A look at the calls that have not ended, of these callers, which are all that there are."""
        return OpenCallsScan(wanted, self.topology, callers)

    @property
    def shadows_under_way(self) -> int:
        """Sampled copies at replicas."""
        return self._parts.shadows.copies
