"""Links beside the subset, as time passes, and what waits for them.

Owner: the scheduler. `SubsetLinks` decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from router_service.core import failures
from router_service.core.commands import Step
from router_service.core.lifecycle.feature import Feature
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.look_ups import LINK_WAIT_S, LookUp, not_looked_up
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import RouterRun, Sent


class LinksInTime(Feature):
    """Ends links, memberships, and look-ups whose replica could not be reached in time."""

    def __init__(self, intake: RoutingIntake) -> None:
        self._intake = intake
        self._topology = intake.topology
        self._links = intake.topology.links
        self._links.awaited_owners = self._awaited_owners

    @property
    def waits(self) -> Collection[object]:
        """Links and members that stay for a time."""
        return self._links.timed

    def next_deadline(self) -> float | None:
        """See `Feature`."""
        return self._links.next_deadline()

    def expire(self, step: Step) -> None:
        """See `Feature`."""
        self._links.expire(step)

    def overdue(self, run: RouterRun, step: Step) -> Sequence[Sent]:
        """Fails a look-up at a replica that still cannot be reached."""
        ended: list[Sent] = []
        for sent in run.sents:
            if type(sent) is LookUp and not sent.first and not sent.replica.linked:
                if sent.sent_at + LINK_WAIT_S > step.now:
                    self._intake.deadlines.watch(sent.sent_at + LINK_WAIT_S, run)
                    continue
                ended.append(sent)
                unreachable = failures.may_be_remembered(sent.replica.replica_id)
                self._intake.outcomes.failed(sent, 0, 1, unreachable, step)
        return ended

    def table_changed(self, step: Step) -> None:
        """Calls that were to be looked up at a replica that has ended go on."""
        for replica in [each for each in self._topology.connected.values() if not (each.listed or each.linked)]:
            for sent in [each for each in replica.outbox if type(each) is LookUp]:
                replica.withdraw(sent)
                self._intake.not_found(not_looked_up(sent), step)
                self._intake.sender.settle(sent, 0, 1, step, is_last=True)
            self._topology.retire(replica, step)

    def _awaited_owners(self) -> set[RoutedReplica]:
        """Replicas that own partitions with waiting calls."""
        return {each.owner for each in self._topology.partitions() if each.queue and each.owner is not None}
