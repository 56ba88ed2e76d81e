"""Ends calls whose deadline has passed, or that have waited in a queue for as long as their backend allows.

Invariants: what ends here ends once: a run whose deadline has passed is not looked at for it again. What is left of a
run is watched on.
Owner: the scheduler, which follows up what was withdrawn.
"""

from __future__ import annotations

from functools import partial
from math import inf

from router_service.core import cancellation, failures
from router_service.core.cancellation import Withdrawn
from router_service.core.outcomes import CallerOutcomes
from router_service.core.routing.intake import HOLD_S, RoutingIntake
from router_service.core.routing.topology import Topology
from router_service.core.routing.waiting_causes import why, why_not_load
from router_service.core.runs import RouterRun
from router_service.core.sessions.suspension import SuspendedRuns
from router_service.core.slots.operations import RoutedSlotOperations
from slotmesh.wire.deadline_heap import DeadlineHeap


class Expiry:
    """Decides about runs that the deadline heap has returned as due."""

    def __init__(
        self,
        deadlines: DeadlineHeap[RouterRun],
        outcomes: CallerOutcomes,
        intake: RoutingIntake,
        operations: RoutedSlotOperations,
        suspended: SuspendedRuns,
        topology: Topology,
    ) -> None:
        self._deadlines = deadlines
        self._outcomes = outcomes
        self._intake = intake
        self._operations = operations
        self._suspended = suspended
        self._topology = topology

    def end_overdue(self, now: float) -> Withdrawn:
        """Fails what has no time left; returns what left the outboxes of replicas by that."""
        withdrawn = Withdrawn()
        for run in self._deadlines.pop_due(now):
            if not run.unanswered:
                continue
            if run.reserves:
                self._end_reservation(run, withdrawn, now)
            elif run.asked_until <= now:
                run.asked_until = inf
                for sent in list(run.sents):
                    self._outcomes.stop_asking(sent, list(sent.asked or ()))
            elif run.deadline <= now and not run.is_overdue:
                run.is_overdue = True
                running = partial(failures.deadline_running, run)
                unsent = failures.deadline_in_queue(run, why(run, self._topology))
                cancellation.end_run(run, self._outcomes, unsent, running, withdrawn)
            elif run.waiting and run.account is not None:
                limit_s = run.account.max_queue_time_s
                if run.arrived + limit_s <= now:
                    failure = failures.queue_timeout(run, limit_s, why(run, self._topology))
                    cancellation.drop_waiting(run, self._outcomes, failure)
                elif run.account.too_late(run) <= now:
                    failure = failures.too_late(run, run.deadline - now, why(run, self._topology))
                    cancellation.drop_waiting(run, self._outcomes, failure)
            elif run.slot is not None:
                self._operations.end_link_wait(run, withdrawn)
            elif run.session is not None and self._suspended.since(run.session) + HOLD_S <= now:
                cancellation.drop_waiting(run, self._outcomes, failures.NOT_ACKNOWLEDGED)
            if run.unanswered:
                self._intake.watch(run)
        return withdrawn

    def _end_reservation(self, run: RouterRun, withdrawn: Withdrawn, now: float) -> None:
        """The time of a reservation, or its time in the queue, may be up. For its caller both are the same."""
        limit_s = run.account.max_queue_time_s if run.account is not None and run.waiting else inf
        if min(run.deadline, run.arrived + limit_s) <= now:
            failure = failures.no_slot(run, now, why_not_load(run, run.account, self._topology))
            cancellation.end_run(run, self._outcomes, failure, lambda _: failure, withdrawn)
