"""Which part of the core handles which event.

Invariants: a class of events has one handler.
Owner: the scheduler, which asks for the table once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from router_service.core.events import (
    CallerLeft,
    CallFailedAtEdge,
    CallsCancelled,
    CallsSubmitted,
    ResultsRequested,
    RouterEvent,
    RouterTimePassed,
)
from router_service.core.parts import Parts
from router_service.core.queueing.events import BrakeChanged
from router_service.core.replicas.events import (
    CapacityReported,
    DrainAnnounced,
    LanesStopped,
    LinkFailed,
    LinkLost,
    LinkOpened,
    RunsCompleted,
    RunsRefused,
    ServiceTimesReported,
)
from router_service.core.routing.events import TableReceived
from router_service.core.sessions.events import (
    AllCallsResent,
    CallsResent,
    RosterAcknowledged,
    SessionConnected,
    SessionDisconnected,
    SessionReconciled,
)
from router_service.core.slots.events import (
    CallDispatched,
    SlotAbandoned,
    SlotOperationRequested,
    SlotOperationsAnswered,
    SlotRequested,
)
from router_service.core.streaming.events import RequestsTaken, StreamedOutcomesLeft
from router_service.core.tapping.events import TapClosed, TapOpened
from router_service.core.uploads.events import ChunkArrived, UploadCompleted, UploadFailed

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
