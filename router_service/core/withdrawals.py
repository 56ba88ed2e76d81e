"""What follows where calls were taken out of the outboxes of replicas, or replicas were asked about them.

Purpose: replicas whose outboxes became shorter have room, and partitions may go on; what is left of the runs is
watched.
Owner: the scheduler; whatever ends calls early calls it.
"""

from __future__ import annotations

from router_service.core import cancellation
from router_service.core.cancellation import Withdrawn
from router_service.core.replicas.answers import Answers
from router_service.core.replicas.sender import Sender
from router_service.core.routing.intake import RoutingIntake
from router_service.core.routing.topology import Topology


class WithdrawalFollowUp:
    """Follows up what `cancellation` has done."""

    def __init__(self, topology: Topology, sender: Sender, intake: RoutingIntake, answers: Answers) -> None:
        self._topology = topology
        self._sender = sender
        self._intake = intake
        self._answers = answers

    def follow_up(self, withdrawn: Withdrawn, now: float) -> None:
        """Slices left their outboxes: their replicas have room, and their partitions may go on."""
        for run in withdrawn.survivors:
            self._intake.watch(run)
        for run in withdrawn.asked:
            run.asked_until = min(run.asked_until, now + cancellation.PATIENCE_S)
            self._intake.watch(run)
        if not withdrawn.slices:
            return
        connected = self._topology.connected
        replicas = [connected[sent.replica] for sent in withdrawn.slices]
        for sent, replica in zip(withdrawn.slices, replicas, strict=True):
            self._answers.settle(sent, now, 0, sent.count, is_last=True)
            replica.backend.balancer.changed(replica)
        for replica in dict.fromkeys(replicas):
            self._sender.pump(replica, now)
