"""What follows from new routing tables, from changes of the links to replicas, and from calls that replicas refuse.

Invariants: refused calls return to the queue by age, unless only this replica can run them. Refused calls with no time
left fail: otherwise a replica that refuses repeatedly would keep them in the queue forever. Nothing of a refused call
was executed.
Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import balancers, failures
from router_service.core.commands import RetryLink, RouterCommand
from router_service.core.counters import RouterCounters
from router_service.core.events import (
    CapacityReported,
    DrainAnnounced,
    LinkFailed,
    LinkLost,
    LinkOpened,
    RunsRefused,
    ServiceTimesReported,
    TableReceived,
)
from router_service.core.features.session_connections import Acknowledgements
from router_service.core.features.session_resumption import Resumptions
from router_service.core.features.slot_operations import RoutedSlotOperations
from router_service.core.handlers.expiry import Expiry
from router_service.core.lifecycle import cancellation
from router_service.core.lifecycle.answers import Answers, WithdrawalFollowUp
from router_service.core.lifecycle.intake import Availability, RoutingIntake
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.replicas.retries import LONGEST_S
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun, Sent
from router_service.core.sampling import Chance
from slotmesh.calls.method_outlines import MethodOutline
from slotmesh.errors import Reason


class Refusals:
    """Requeues or fails the calls that a replica refused."""

    def __init__(
        self,
        counters: RouterCounters,
        outcomes: CallerOutcomes,
        sender: Sender,
        intake: RoutingIntake,
        answers: Answers,
        withdrawals: WithdrawalFollowUp,
        expiry: Expiry,
    ) -> None:
        self._counters = counters
        self._outcomes = outcomes
        self._sender = sender
        self._intake = intake
        self._answers = answers
        self._withdrawals = withdrawals
        self._expiry = expiry

    def refused(self, event: RunsRefused, now: float) -> None:
        """Calls go back into queues, or end."""
        replica, failure = event.replica, event.failure
        returned: list[RouterRun] = []
        left: list[tuple[Sent, int, int, bool]] = []
        replica.draining = replica.draining or failure.reason is Reason.DRAINING
        for sent, offset, _, count in replica.inflight.slices(event.ids):
            before = sent.remaining
            parts = replica.answer(sent, offset, count)
            if balancers.is_counted(sent):
                balancers.abandoned(replica.backend.hooks, replica, before - sent.remaining)
            if sent.run.recovers:
                gone = failures.result_evicted(replica) if sent.run.was_answered else None
                for lo, many in parts:
                    self._outcomes.failed(sent, lo, many, gone or failures.not_heard(replica.replica_id))
            elif failure.reason is Reason.SESSION_FENCED or not sent.takes_room:
                # The client has connected elsewhere: its next router sends these calls, if the client still wants them.
                # And an operation bound to a slot can be done nowhere else.
                for lo, many in parts:
                    self._outcomes.failed(sent, lo, many, failure)
            else:
                if sent.run.partition is not None and failure.reason is Reason.STALE_TABLE:
                    sent.run.partition.refused(sent.owner_epoch, offset, count)
                returned += self._answers.hand_back(sent, parts)
            left.append((sent, offset, count, not sent.remaining))
        self._counters.refusals[replica.backend.name, failure.reason.value] += len(event.ids)
        self._answers.learn(replica, event.capacity)
        self._intake.put_back(returned, replica.backend, now)
        for sent, offset, count, is_last in left:
            self._answers.settle(sent, now, offset, count, is_last=is_last)
        self._withdrawals.follow_up(self._expiry.end_overdue(now), now)
        self._sender.pump(replica, now)


class LinkChanges:
    """Updates replicas when links open, break or report, and starts the calls that can start then."""

    def __init__(
        self,
        out: list[RouterCommand],
        topology: Topology,
        sender: Sender,
        resumptions: Resumptions,
        answers: Answers,
        chance: Chance,
        *,
        availability: Availability,
    ) -> None:
        """Writes into `out`, the scheduler's list of commands."""
        self._out = out
        self._topology = topology
        self._sender = sender
        self._resumptions = resumptions
        self._answers = answers
        self._chance = chance
        self._availability = availability

    def opened(self, event: LinkOpened, now: float) -> None:
        """The replica takes calls, and can be queried."""
        replica, capacity = event.replica, event.capacity
        if replica.listed:
            replica.linked = True
            replica.stream_id, replica.methods = event.stream_id, frozenset(event.methods)
            replica.outlines = _shared(tuple(event.outlines), replica)
            replica.tensors = event.tensors
            replica.capacity = capacity
            replica.draining = replica.draining or capacity.draining
            replica.backend.changed(replica)
            replica.backend.ejections.came_back(replica.key, now)
            for partition in self._topology.partitions():
                if partition.owner is replica:
                    self._sender.list(partition)
            self._resumptions.link_up(replica)
            self._sender.linked(replica)
            self._availability.follow(now)
            self._sender.pump(replica, now)

    def lost(self, event: LinkLost, now: float) -> None:
        """Calls of the replica fail, or are routed again."""
        replica = event.replica
        self._answers.lost(replica, event.why, now)
        self._resumptions.link_down(replica, now)
        self._sender.pump(replica, now)

    def failed(self, event: LinkFailed, now: float) -> None:
        """The more often a replica fails, the longer the pause before the next attempt."""
        replica, backend = event.replica, event.replica.backend
        backend.await_replica(replica, is_awaited=False)
        delay_s = LONGEST_S
        if replica.listed:
            delay_s = backend.ejections.failed(replica.key, len(backend.replicas), now, self._chance())
        self._out.append(RetryLink(replica, delay_s))

    def capacity_reported(self, event: CapacityReported, now: float) -> None:
        """The replica may have more room than before, or less."""
        self._answers.learn(event.replica, event.capacity)
        self._sender.pump(event.replica, now)

    def service_times_reported(self, event: ServiceTimesReported, _now: float) -> None:
        """Slices that are sent from now on have sizes by these times."""
        event.replica.times = event.times

    def drain_announced(self, event: DrainAnnounced, now: float) -> None:
        """The replica gets no more runs."""
        replica = event.replica
        replica.draining = True
        replica.backend.changed(replica)
        self._sender.pump(replica, now)


def _shared(outlines: tuple[MethodOutline, ...], replica: RoutedReplica) -> tuple[MethodOutline, ...]:
    """Equal outlines of another replica of the backend if there are any, to save memory: there may be a thousand."""
    others = (it.outlines for it in replica.backend.replicas.values() if it.outlines == outlines)
    return next(others, outlines)


class TableChanges:
    """Applies each new table, and finds a new place for every waiting call that lost its own."""

    def __init__(
        self,
        topology: Topology,
        sender: Sender,
        intake: RoutingIntake,
        resumptions: Resumptions,
        acknowledgements: Acknowledgements,
        operations: RoutedSlotOperations,
    ) -> None:
        self._topology = topology
        self._sender = sender
        self._intake = intake
        self._resumptions = resumptions
        self._acknowledgements = acknowledgements
        self._operations = operations

    def received(self, event: TableReceived, now: float) -> None:
        """Applies the table, unless it is older than the current one."""
        topology, sender = self._topology, self._sender
        if not event.table.supersedes(topology.table):
            return
        homeless, recharged = topology.apply(event.table)
        self._acknowledgements.table_changed(now)
        for run in homeless:
            cancellation.uncharge(run)
            self._intake.route(run, now, admitted=True)
        for run in recharged:
            if run.account is not None:
                run.account.waits(now)
            self._intake.watch(run)
        for endpoint in topology.reassigned:
            for partition in endpoint.partitions.values():
                sender.list(partition)
        for replica in list(topology.replicas.values()):
            if replica.ready:
                sender.pump(replica, now)
        for backend in topology.backends.values():
            sender.pump_queue(backend, now)
        self._resumptions.table_changed(now)
        self._operations.table_changed(now)
