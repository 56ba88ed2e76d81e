"""What follows from new routing tables, and from changes of the links to replicas.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core.commands import RetryLink, Step
from router_service.core.events import (
    CapacityReported,
    DrainAnnounced,
    HandlerStateReported,
    LinkFailed,
    LinkLost,
    LinkOpened,
    ServiceTimesReported,
    TableReceived,
)
from router_service.core.lifecycle.answers import Answers
from router_service.core.lifecycle.feature import Features
from router_service.core.lifecycle.intake import Availability, RoutingIntake
from router_service.core.preferences import Preferences
from router_service.core.replicas.backends import LONGEST_S
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.sampling import Chance
from slotmesh.calls.handler_figures import NO_FIGURES, NOTHING_EVICTED
from slotmesh.calls.method_outlines import MethodOutline


class LinkChanges:
    """Updates replicas when links open, break or report, and starts the calls that can start then."""

    def __init__(
        self, intake: RoutingIntake, answers: Answers, availability: Availability, features: Features, chance: Chance
    ) -> None:
        self._intake = intake
        self._topology = intake.topology
        self._sender = intake.sender
        self._answers = answers
        self._availability = availability
        self._features = features
        self._chance = chance

    def opened(self, event: LinkOpened, step: Step) -> None:
        """The replica takes calls, and can be queried."""
        replica, capacity = event.replica, event.capacity
        if replica.listed:
            replica.linked, replica.has_failed = True, False
            replica.stream_id, replica.methods = event.stream_id, frozenset(event.methods)
            replica.outlines = _shared(tuple(event.outlines), replica)
            replica.backend.prompts.learn(replica.outlines)
            replica.tensors = event.tensors
            replica.figures, replica.models = NO_FIGURES, frozenset()
            replica.capacity = capacity
            replica.draining = replica.draining or capacity.draining
            self._topology.changed(replica, step)
            if replica.draining:
                self._replace(replica, step)
                _look_up_at(replica, self._intake, step)
            replica.backend.ejections.came_back(replica.key, step.now)
            for partition in self._topology.partitions():
                if partition.owner is replica:
                    self._sender.list(partition, step)
            for hook in self._features.link_opened:
                hook(replica, step)
            self._sender.linked(replica, step)
            self._availability.follow(step)
            self._sender.pump(replica, step)

    def lost(self, event: LinkLost, step: Step) -> None:
        """Calls of the replica fail, or are routed again."""
        replica = event.replica
        replica.has_failed = True
        self._answers.lost(replica, event.why, step)
        for hook in self._features.link_lost:
            hook(replica, step)
        self._replace(replica, step)
        self._sender.pump(replica, step)

    def failed(self, event: LinkFailed, step: Step) -> None:
        """The more often a replica fails, the longer the pause before the next attempt."""
        replica, backend = event.replica, event.replica.backend
        replica.has_failed = True
        backend.await_replica(replica, is_awaited=False)
        self._topology.changed(replica, step)
        delay_s = LONGEST_S
        self._replace(replica, step)
        if replica.listed:
            links = sum(each.has_link for each in backend.replicas.values())
            delay_s = backend.ejections.failed(replica.key, links, step.now, self._chance())
        step.commands.append(RetryLink(replica, delay_s))

    def capacity_reported(self, event: CapacityReported, step: Step) -> None:
        """The replica may have more room than before, or less."""
        self._answers.learn(event.replica, event.capacity, step)
        self._sender.pump(event.replica, step)

    def service_times_reported(self, event: ServiceTimesReported, _step: Step) -> None:
        """Slices that are sent from now on have sizes by these times."""
        event.replica.times = event.times

    def handler_state_reported(self, event: HandlerStateReported, step: Step) -> None:
        """Calls that are sent from now on may go elsewhere."""
        replica = event.replica
        replica.figures, replica.max_models, replica.load_s = event.figures, event.max_models, event.load_s
        if event.models is not None:
            replica.models = event.models
        if event.evicted != NOTHING_EVICTED and isinstance(replica.backend.preferences, Preferences):
            replica.backend.preferences.prefixes.evicted(replica, event.evicted)
        replica.backend.changed(replica)
        if replica.backend.delays.is_any:
            self._sender.pump_queue(replica.backend, step, replica)

    def drain_announced(self, event: DrainAnnounced, step: Step) -> None:
        """The replica gets no more runs."""
        replica = event.replica
        replica.draining = True
        self._topology.changed(replica, step)
        self._replace(replica, step)
        _look_up_at(replica, self._intake, step)
        self._sender.pump(replica, step)

    def _replace(self, replica: RoutedReplica, step: Step) -> None:
        """A member of the subset cannot be used: others may have to be added."""
        if replica.is_member and replica.listed:
            self._topology.links.widen(replica.backend, step)


def _look_up_at(replica: RoutedReplica, intake: RoutingIntake, step: Step) -> None:
    """Routes calls again that wait for a replica which drains now: with a request id they may repeat what it executes.

    It may have ended when another replica owns their partitions.
    """
    for partition in intake.topology.partitions():
        if partition.owner is replica and any(run.options.request is not None for run in partition.waiting_runs()):
            for run in sorted(partition.drain(), key=lambda run: run.age):
                step.unqueue(run)
                intake.route(run, step, admitted=True)


def _shared(outlines: tuple[MethodOutline, ...], replica: RoutedReplica) -> tuple[MethodOutline, ...]:
    """Equal outlines of another replica of the backend if there are any, to save memory: there may be a thousand."""
    others = (it.outlines for it in replica.backend.replicas.values() if it.outlines == outlines)
    return next(others, outlines)


class TableChanges:
    """Applies each new table, and finds a new place for every waiting call that lost its own."""

    def __init__(self, intake: RoutingIntake, features: Features) -> None:
        self._intake = intake
        self._features = features

    def received(self, event: TableReceived, step: Step) -> None:
        """Applies the table, unless it is older than the current one."""
        intake, topology, sender = self._intake, self._intake.topology, self._intake.sender
        if not event.table.supersedes(topology.table):
            return
        topology.links.own_address = event.own_address
        change = topology.apply(event.table, step)
        for hook in self._features.table_changed:
            hook(step)
        for run in change.homeless:
            step.unqueue(run)
            intake.route(run, step, admitted=True)
        for replica in change.drained:
            _look_up_at(replica, intake, step)
        for run in change.recharged:
            if run.account is not None:
                run.account.waits(step.now)
            intake.watch(run)
        for endpoint in change.reassigned:
            for partition in endpoint.partitions.values():
                sender.list(partition, step)
        for replica in list(topology.replicas.values()):
            if sender.has_ready(replica):
                sender.pump(replica, step)
        for backend in topology.backends.values():
            sender.pump_queue(backend, step)
