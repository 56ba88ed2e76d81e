"""Calls that end early: cancelled by their callers, past their deadline, or queued longer than their backend allows.

Invariants: a run ends once: a run whose deadline has passed is not examined for it again. The rest of a run that ends
partly is still watched.
Owner: the scheduler, which follows up withdrawn calls.
"""

from __future__ import annotations

from functools import partial
from math import inf

from router_service.core import failures
from router_service.core.events import CallerLeft, CallsCancelled, RouterTimePassed
from router_service.core.features.session_connections import Acknowledgements
from router_service.core.features.session_resumption import Resumptions
from router_service.core.features.slot_operations import RoutedSlotOperations
from router_service.core.features.uploads import HeldUploads
from router_service.core.lifecycle import cancellation
from router_service.core.lifecycle.answers import WithdrawalFollowUp
from router_service.core.lifecycle.cancellation import Withdrawn
from router_service.core.lifecycle.intake import HOLD_S, Availability, RoutingIntake
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.queueing.run_queues import SuspendedRuns
from router_service.core.routing.topology import Topology
from router_service.core.routing.waiting_causes import why, why_not_load
from router_service.core.runs import RouterRun
from slotmesh.calls.deadline_heap import DeadlineHeap


class CallerCancels:
    """Ends calls that their callers have cancelled, and all open calls of callers that disconnect."""

    def __init__(
        self,
        outcomes: CallerOutcomes,
        withdrawals: WithdrawalFollowUp,
        uploads: HeldUploads,
        operations: RoutedSlotOperations,
    ) -> None:
        self._outcomes = outcomes
        self._withdrawals = withdrawals
        self._uploads = uploads
        self._operations = operations

    def cancel_calls(self, event: CallsCancelled, now: float) -> None:
        """Ends these calls, as far as they are open."""
        self._withdrawals.follow_up(cancellation.cancel_calls(event.caller, event.ranges, self._outcomes), now)

    def caller_left(self, event: CallerLeft, now: float) -> None:
        """Ends all open calls of the caller, and its reservation if no other caller waits for the same one."""
        caller = event.caller
        self._uploads.left(caller)
        withdrawn = cancellation.cancel_caller(caller, self._outcomes, is_overdue=event.is_overdue)
        self._withdrawals.follow_up(withdrawn, now)
        if caller.request_id and (alone := self._operations.left(caller)) is not None:
            self._withdrawals.follow_up(cancellation.cancel_caller(alone, self._outcomes), now)


class Expiry:
    """Ends or re-schedules runs that the deadline heap has returned as due."""

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
        """Fails calls with no time left; returns those withdrawn from the outboxes of replicas."""
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
        """The timeout of a reservation, or its queue time limit, may be over. For its caller both are the same."""
        limit_s = run.account.max_queue_time_s if run.account is not None and run.waiting else inf
        if min(run.deadline, run.arrived + limit_s) <= now:
            failure = failures.no_slot(run, now, why_not_load(run, run.account, self._topology))
            cancellation.end_run(run, self._outcomes, failure, lambda _: failure, withdrawn)


class Timers:
    """All deadlines of the router: when the next one is due, and what ends then."""

    def __init__(
        self,
        deadlines: DeadlineHeap[RouterRun],
        outcomes: CallerOutcomes,
        availability: Availability,
        withdrawals: WithdrawalFollowUp,
        expiry: Expiry,
        *,
        operations: RoutedSlotOperations,
        uploads: HeldUploads,
        resumptions: Resumptions,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._deadlines = deadlines
        self._outcomes = outcomes
        self._availability = availability
        self._withdrawals = withdrawals
        self._expiry = expiry
        self._operations = operations
        self._uploads = uploads
        self._resumptions = resumptions
        self._acknowledgements = acknowledgements

    def next_deadline(self) -> float | None:
        """The next time at which something is overdue, monotonic seconds; None if nothing can be."""
        due = self._deadlines.next_deadline() if self._deadlines.entries else None
        asked = self._resumptions.next_deadline() if self._resumptions.asking else None
        over, join = self._operations.next_deadline(), self._acknowledgements.join_by
        stalled = self._uploads.next_deadline() if self._uploads.lines else None
        if asked is None and over is None and join is None and stalled is None:
            return due
        return min(each for each in (due, asked, over, join, stalled) if each is not None)

    def expire(self, _: RouterTimePassed, now: float) -> None:
        """Fails every call whose deadline or queue time limit has passed, and ends all other waits that are over."""
        self._withdrawals.follow_up(self._expiry.end_overdue(now), now)
        for alone in self._operations.expire(now):
            self._withdrawals.follow_up(cancellation.cancel_caller(alone, self._outcomes), now)
        self._resumptions.expire(now)
        for run, failure in self._uploads.pop_stalled(now):
            self._outcomes.fail_waiting(run, failure)
        self._availability.joined(self._acknowledgements.expire(now), now)
