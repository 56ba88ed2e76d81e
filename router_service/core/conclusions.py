"""Consequences of an event, carried out until there are none left; then the commands are handed over.

Purpose: an outcome may end other calls (those behind it in a lane that stops), or let some begin (those behind a
payload that is not awaited any more); and calls go elsewhere when a backend cannot serve any more, or can again.
Invariants: commands are handed over once, in the order in which they were decided.
Owner: the scheduler: each of its events ends here.
"""

from __future__ import annotations

from router_service.core import cancellation
from router_service.core.commands import RouterCommand
from router_service.core.outcomes import CallerOutcomes
from router_service.core.routing.availability import Availability
from router_service.core.slots.operations import RoutedSlotOperations
from router_service.core.submissions import Submissions
from router_service.core.uploads.uploads import HeldUploads
from router_service.core.withdrawals import WithdrawalFollowUp


class Conclusions:
    """Takes the commands out of `out`, the scheduler's list of them."""

    def __init__(
        self,
        out: list[RouterCommand],
        outcomes: CallerOutcomes,
        withdrawals: WithdrawalFollowUp,
        operations: RoutedSlotOperations,
        uploads: HeldUploads,
        submissions: Submissions,
        *,
        availability: Availability,
    ) -> None:
        self._out = out
        self._outcomes = outcomes
        self._withdrawals = withdrawals
        self._operations = operations
        self._uploads = uploads
        self._submissions = submissions
        self._availability = availability
        # Looked at after each event. Their owners clear these lists, and never replace them.
        self._flipped, self._stopped, self._unbrought = availability.flipped, outcomes.stopped, outcomes.unbrought
        self._pending = operations.requests.pending

    def commands(self, now: float) -> list[RouterCommand]:
        """What was decided, once all that follows from it was."""
        if self._flipped:
            self._availability.follow(now)
        while self._stopped:
            caller, key = self._stopped.pop()
            self._withdrawals.follow_up(cancellation.stop_after(caller, key, self._outcomes), now)
        if self._unbrought:
            ended = self._unbrought.copy()
            self._unbrought.clear()
            for run in self._uploads.release_ended(ended):
                self._submissions.begin(run, now)
            return self.commands(now)
        out = self._out.copy()
        self._out.clear()
        return self._operations.told(out, now) if self._pending else out
