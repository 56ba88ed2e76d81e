"""What callers cancel: calls that they take back, and all that is open when they leave.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import cancellation
from router_service.core.events import CallerLeft, CallsCancelled
from router_service.core.outcomes import CallerOutcomes
from router_service.core.slots.operations import RoutedSlotOperations
from router_service.core.uploads.uploads import HeldUploads
from router_service.core.withdrawals import WithdrawalFollowUp


class CallerCancels:
    """Ends calls that their callers have cancelled or left behind."""

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
        """Ends all open calls of the caller, and its reservation where no other caller waits for the same one."""
        caller = event.caller
        self._uploads.left(caller)
        withdrawn = cancellation.cancel_caller(caller, self._outcomes, is_overdue=event.is_overdue)
        self._withdrawals.follow_up(withdrawn, now)
        if caller.request_id and (alone := self._operations.left(caller)) is not None:
            self._withdrawals.follow_up(cancellation.cancel_caller(alone, self._outcomes), now)
