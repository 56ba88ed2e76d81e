"""When something of the router is overdue, and what ends then.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import cancellation
from router_service.core.events import RouterTimePassed
from router_service.core.outcomes import CallerOutcomes
from router_service.core.queueing.expiry import Expiry
from router_service.core.routing.availability import Availability
from router_service.core.runs import RouterRun
from router_service.core.sessions.acknowledgements import Acknowledgements
from router_service.core.sessions.resumption import Resumptions
from router_service.core.slots.operations import RoutedSlotOperations
from router_service.core.uploads.uploads import HeldUploads
from router_service.core.withdrawals import WithdrawalFollowUp
from slotmesh.wire.deadline_heap import DeadlineHeap


class Timers:
    """All deadlines together."""

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
        """When something is overdue, monotonic seconds; None when nothing can be."""
        due = self._deadlines.next_deadline() if self._deadlines.entries else None
        asked = self._resumptions.next_deadline() if self._resumptions.asking else None
        over, join = self._operations.next_deadline(), self._acknowledgements.join_by
        stalled = self._uploads.next_deadline() if self._uploads.lines else None
        if asked is None and over is None and join is None and stalled is None:
            return due
        return min(each for each in (due, asked, over, join, stalled) if each is not None)

    def expire(self, _: RouterTimePassed, now: float) -> None:
        """Fails every call whose deadline or queue time has passed, and ends all other waiting that is over."""
        self._withdrawals.follow_up(self._expiry.end_overdue(now), now)
        for alone in self._operations.expire(now):
            self._withdrawals.follow_up(cancellation.cancel_caller(alone, self._outcomes), now)
        self._resumptions.expire(now)
        for run, failure in self._uploads.pop_stalled(now):
            self._outcomes.fail_waiting(run, failure)
        self._availability.joined(self._acknowledgements.expire(now), now)
