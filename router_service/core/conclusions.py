"""What follows from an event, until nothing follows any more; then the commands are handed over.

Purpose: an outcome may end other calls (those behind it in a lane that stops), let some begin (those behind a payload
that is not awaited any more), or make room (where slices were withdrawn).
Invariants: commands are handed over once, in the order in which they were decided.
Owner: the scheduler: each of its events ends here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router_service.core import cancellation

if TYPE_CHECKING:
    from router_service.core.cancellation import Withdrawn
    from router_service.core.commands import Command
    from router_service.core.outcomes import Outcomes
    from router_service.core.replicas.answers import Answers
    from router_service.core.replicas.sender import Sender
    from router_service.core.routing.intake import Intake
    from router_service.core.routing.topology import Topology
    from router_service.core.slots.operations import SlotOperations
    from router_service.core.submissions import Submissions
    from router_service.core.uploads.uploads import Uploads


class Conclusions:
    """Takes the commands out of `out`, the scheduler's list of them."""

    def __init__(
        self,
        out: list[Command],
        *,
        topology: Topology,
        outcomes: Outcomes,
        sender: Sender,
        intake: Intake,
        answers: Answers,
        operations: SlotOperations,
        uploads: Uploads,
        submissions: Submissions,
    ) -> None:
        self._out = out
        self._topology = topology
        self._outcomes = outcomes
        self._sender = sender
        self._intake = intake
        self._answers = answers
        self._operations = operations
        self._uploads = uploads
        self._submissions = submissions

    def commands(self, now: float) -> list[Command]:
        """What was decided, once all that follows from it was."""
        while self._outcomes.stopped:
            caller, key = self._outcomes.stopped.pop()
            self.withdrawn(cancellation.stop_after(caller, key, self._outcomes), now)
        if self._outcomes.unbrought:
            ended = self._outcomes.unbrought.copy()
            self._outcomes.unbrought.clear()
            for run in self._uploads.release_ended(ended):
                self._submissions.begin(run, now)
            return self.commands(now)
        out = self._out.copy()
        self._out.clear()
        return self._operations.told(out, now) if self._operations.requests.pending else out

    def withdrawn(self, withdrawn: Withdrawn, now: float) -> None:
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
            self._answers.settle_partition(sent, now)
            replica.backend.balancer.changed(replica)
        for replica in dict.fromkeys(replicas):
            self._sender.pump(replica, now)
