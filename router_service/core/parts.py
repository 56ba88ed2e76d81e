"""The parts of the router's core, put together.

Purpose: each part decides one thing, and is given the parts that it asks; this module says which.
Owner: the scheduler.
"""

from __future__ import annotations

from itertools import count

from router_service.core.caller_cancels import CallerCancels
from router_service.core.commands import RouterCommand
from router_service.core.conclusions import Conclusions
from router_service.core.counters import RouterCounters
from router_service.core.keyed.column_intake import ColumnIntake
from router_service.core.outcomes import CallerOutcomes
from router_service.core.queueing.expiry import Expiry
from router_service.core.replicas.answers import Answers
from router_service.core.replicas.link_changes import LinkChanges
from router_service.core.replicas.refusals import Refusals
from router_service.core.replicas.sender import Sender
from router_service.core.routing.availability import Availability
from router_service.core.routing.intake import RoutingIntake
from router_service.core.routing.sampling import Chance
from router_service.core.routing.table_changes import TableChanges
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun
from router_service.core.sessions.acknowledgements import Acknowledgements
from router_service.core.sessions.connections import SessionConnections
from router_service.core.sessions.resumption import Resumptions
from router_service.core.sessions.suspension import SuspendedRuns
from router_service.core.slots.answers import SlotAnswers
from router_service.core.slots.operations import RoutedSlotOperations
from router_service.core.slots.submissions import SlotSubmissions
from router_service.core.streaming.requests import RequestsAtReplicas
from router_service.core.submissions import Submissions
from router_service.core.tapping.taps import OpenTaps
from router_service.core.tenants.book import TenantBook, TenantSettings
from router_service.core.timers import Timers
from router_service.core.uploads.arrivals import UploadArrivals
from router_service.core.uploads.uploads import HeldUploads
from router_service.core.withdrawals import WithdrawalFollowUp
from slotmesh.wire.deadline_heap import DeadlineHeap


class Parts:
    """Made once for each scheduler."""

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
