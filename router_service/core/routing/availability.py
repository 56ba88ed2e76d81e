"""What waits follows the backends that can serve.

Purpose: a backend whose last replica is lost, drains or leaves gets no calls while another one of the policy can serve;
it has its share again when a replica takes calls. Where none can serve, calls wait as long as replicas are on their
way, and fail at once when none is.
Invariants: after each event no call waits for a backend that cannot serve while another one of its policy can, but for
reservations that only certain replicas will do for; nor does any wait where nothing is on its way.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core import cancellation
from router_service.core.queueing.reservations import constraint_of
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.replicas.sender import Sender
from router_service.core.routing.intake import RoutingIntake
from router_service.core.routing.topology import Topology


class Availability:
    """Moves what waits when backends can serve from now on, or cannot any more."""

    def __init__(self, topology: Topology, intake: RoutingIntake, sender: Sender) -> None:
        self._topology = topology
        self._intake = intake
        self._sender = sender
        self.flipped = topology.flipped
        """Backends that have changed in this; looked at after each event."""

    def joined(self, replicas: Sequence[RoutedReplica], now: float) -> None:
        """These replicas take calls from now on, as far as they are linked: what is older and waits elsewhere, too."""
        self.follow(now)
        self._sender.joined(replicas, now)

    def follow(self, now: float) -> None:
        """What waits finds its place anew, oldest first, if a backend has flipped."""
        if not self.flipped:
            return
        moved = self._topology.assess()
        for run in moved:
            cancellation.uncharge(run)
            self._intake.route(run, now, admitted=True)
        if any(constraint_of(run) is not None for run in moved):
            # Those that wait for certain replicas are placed in turn.
            for backend in self._topology.backends.values():
                self._sender.pump_queue(backend, now)
