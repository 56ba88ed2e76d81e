"""What replicas hand back: calls that they did not take, of which nothing was executed.

Invariants: calls that were refused go back into the queue by their age, unless only this replica can run them. Calls
with no time left fail: a replica that refuses again and again would keep them in the queue for ever.
Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import failures
from router_service.core.counters import RouterCounters
from router_service.core.outcomes import CallerOutcomes
from router_service.core.queueing.expiry import Expiry
from router_service.core.replicas.answers import Answers
from router_service.core.replicas.events import RunsRefused
from router_service.core.replicas.sender import Sender
from router_service.core.routing import routing_hooks
from router_service.core.routing.intake import RoutingIntake
from router_service.core.runs import RouterRun, Sent
from router_service.core.withdrawals import WithdrawalFollowUp
from slotmesh.errors import Reason


class Refusals:
    """Where refused calls go."""

    def __init__(
        self,
        counters: RouterCounters,
        outcomes: CallerOutcomes,
        sender: Sender,
        intake: RoutingIntake,
        answers: Answers,
        withdrawals: WithdrawalFollowUp,
        expiry: Expiry,
    ) -> None:
        self._counters = counters
        self._outcomes = outcomes
        self._sender = sender
        self._intake = intake
        self._answers = answers
        self._withdrawals = withdrawals
        self._expiry = expiry

    def refused(self, event: RunsRefused, now: float) -> None:
        """Calls go back into queues, or end."""
        replica, failure = event.replica, event.failure
        returned: list[RouterRun] = []
        left: list[tuple[Sent, int, int, bool]] = []
        replica.draining = replica.draining or failure.reason is Reason.DRAINING
        for sent, offset, _, count in replica.inflight.slices(event.ids):
            before = sent.remaining
            parts = replica.answer(sent, offset, count)
            if routing_hooks.is_counted(sent):
                routing_hooks.abandoned(replica.backend.hooks, replica, before - sent.remaining)
            if sent.run.recovers:
                gone = failures.result_evicted(replica) if sent.run.was_answered else None
                for lo, many in parts:
                    self._outcomes.failed(sent, lo, many, gone or failures.not_heard(replica.replica_id))
            elif failure.reason is Reason.SESSION_FENCED or not sent.takes_room:
                # The client has moved on: its next router sends these calls, if the client still wants them.
                # And what is to be done in a slot can be done nowhere else.
                for lo, many in parts:
                    self._outcomes.failed(sent, lo, many, failure)
            else:
                if sent.run.partition is not None and failure.reason is Reason.STALE_TABLE:
                    sent.run.partition.refused(sent.owner_epoch, offset, count)
                returned += self._answers.hand_back(sent, parts)
            left.append((sent, offset, count, not sent.remaining))
        self._counters.refusals[replica.backend.name, failure.reason.value] += len(event.ids)
        self._answers.learn(replica, event.capacity)
        self._intake.put_back(returned, replica.backend, now)
        for sent, offset, count, is_last in left:
            self._answers.settle(sent, now, offset, count, is_last=is_last)
        self._withdrawals.follow_up(self._expiry.end_overdue(now), now)
        self._sender.pump(replica, now)
