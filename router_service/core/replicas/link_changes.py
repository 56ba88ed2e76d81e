"""Changes of the links to replicas: opened, broken, closed, and reports of replicas about themselves.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core.commands import RetryLink, RouterCommand
from router_service.core.replicas.answers import Answers
from router_service.core.replicas.ejection import LONGEST_S
from router_service.core.replicas.events import (
    CapacityReported,
    DrainAnnounced,
    LinkFailed,
    LinkLost,
    LinkOpened,
    ServiceTimesReported,
)
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.replicas.sender import Sender
from router_service.core.routing.availability import Availability
from router_service.core.routing.sampling import Chance
from router_service.core.routing.topology import Topology
from router_service.core.sessions.resumption import Resumptions
from slotmesh.wire.outlines import MethodOutline


class LinkChanges:
    """Updates the state of each replica, and starts the calls that can start by that."""

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
        """The replica takes calls, and can be asked."""
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
        """What the replica had fails, or goes elsewhere."""
        replica = event.replica
        self._answers.lost(replica, event.why, now)
        self._resumptions.link_down(replica, now)
        self._sender.pump(replica, now)

    def failed(self, event: LinkFailed, now: float) -> None:
        """The more often a replica fails, the longer it is left alone."""
        replica, backend = event.replica, event.replica.backend
        backend.await_replica(replica, is_awaited=False)
        delay_s = LONGEST_S
        if replica.listed:
            delay_s = backend.ejections.failed(replica.key, len(backend.replicas), now, self._chance())
        self._out.append(RetryLink(replica, delay_s))

    def capacity_reported(self, event: CapacityReported, now: float) -> None:
        """There may be more room than there was, or less."""
        self._answers.learn(event.replica, event.capacity)
        self._sender.pump(event.replica, now)

    def service_times_reported(self, event: ServiceTimesReported, _now: float) -> None:
        """Slices that are sent from now on have sizes by these times."""
        event.replica.times = event.times

    def drain_announced(self, event: DrainAnnounced, now: float) -> None:
        """The replica gets nothing more."""
        replica = event.replica
        replica.draining = True
        replica.backend.changed(replica)
        self._sender.pump(replica, now)


def _shared(outlines: tuple[MethodOutline, ...], replica: RoutedReplica) -> tuple[MethodOutline, ...]:
    """Those that another replica of the backend has told already, where they are the same: there may be a thousand."""
    others = (it.outlines for it in replica.backend.replicas.values() if it.outlines == outlines)
    return next(others, outlines)
