"""What the answers of replicas to slot operations mean.

Invariants: every operation ends with exactly one delivery to its caller. A slot that was granted to a caller who no
longer waits is released at once.
Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import failures
from router_service.core.counters import RouterCounters
from router_service.core.outcomes import CallerOutcomes
from router_service.core.queueing.expiry import Expiry
from router_service.core.replicas.answers import Answers
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.replicas.sender import Sender
from router_service.core.routing import routing_hooks
from router_service.core.routing.intake import RoutingIntake
from router_service.core.runs import RouterRun, Sent
from router_service.core.slots.events import SlotOperationsAnswered
from router_service.core.slots.operations import RoutedSlotOperations
from router_service.core.slots.slot import Dispatch, LeasedSlot, Release, ReleasedSlot, Renew, Reserve
from router_service.core.withdrawals import WithdrawalFollowUp
from slotmesh.errors import Failure, Reason

_ELSEWHERE = frozenset({Reason.QUEUE_FULL, Reason.DRAINING, Reason.BACKEND_UNAVAILABLE})
"""A replica that answers a reservation with one of these may not be the only one."""
_TIME_IS_UP = frozenset({Reason.NO_SLOT, Reason.DEADLINE_IN_QUEUE, Reason.QUEUE_TIMEOUT, Reason.DEADLINE_RUNNING})


class SlotAnswers:
    """Ends operations, or lets reservations go elsewhere."""

    def __init__(
        self,
        counters: RouterCounters,
        outcomes: CallerOutcomes,
        sender: Sender,
        intake: RoutingIntake,
        answers: Answers,
        operations: RoutedSlotOperations,
        *,
        withdrawals: WithdrawalFollowUp,
        expiry: Expiry,
    ) -> None:
        self._counters = counters
        self._outcomes = outcomes
        self._sender = sender
        self._intake = intake
        self._answers = answers
        self._operations = operations
        self._withdrawals = withdrawals
        self._expiry = expiry

    def answered(self, event: SlotOperationsAnswered, now: float) -> None:
        """Operations end, and what waits for their room starts."""
        replica, capacity = event.replica, event.capacity
        returned: list[RouterRun] = []
        granted = 0
        for op_id, answer in event.answers:
            sent = replica.inflight.get(op_id)
            if sent is None or sent.run.slot is None:
                continue
            run = sent.run
            if isinstance(answer, Failure):
                returned += self._failed(replica, sent, answer, now)
                continue
            is_waited_for = bool(replica.answer(sent, 0, 1))
            match run.slot, answer:
                case Reserve(), LeasedSlot():
                    granted += 1
                    self._granted(run, replica, answer, now, is_waited_for=is_waited_for)
                case Renew(), LeasedSlot():
                    self._operations.requests.renewed(answer, now)
                    if self._operations.routed.knows(answer.token):
                        self._operations.routed.lease(answer.token, replica, now + answer.ttl_s)
                    if is_waited_for:
                        self._outcomes.slot(run, answer)
                case Release(), ReleasedSlot():
                    if is_waited_for:
                        self._outcomes.slot(run, answer)
                case _:
                    if is_waited_for:
                        self._outcomes.failed(sent, 0, 1, failures.misanswered(replica))
        if capacity is None and granted:
            # Until the replica's next report: the slot that it granted takes room, and no call of this router does.
            capacity = replica.capacity._replace(others=replica.capacity.others + granted)
        self._answers.learn(replica, capacity)
        self._intake.put_back(returned, replica.backend, now)
        self._withdrawals.follow_up(self._expiry.end_overdue(now), now)
        self._sender.pump(replica, now)

    def _granted(
        self, run: RouterRun, replica: RoutedReplica, slot: LeasedSlot, now: float, *, is_waited_for: bool
    ) -> None:
        if not is_waited_for:
            routing_hooks.abandoned(replica.backend.hooks, replica, 1)
        elif replica.backend.hooks is not None:
            self._operations.routed.lease(slot.token, replica, now + slot.ttl_s)
        if is_waited_for:
            if (request := self._operations.requests.pending.get(run.caller)) is not None:
                request.replica = replica
            self._counters.granted(run, replica.backend.counts, now)
            self._outcomes.slot(run, slot)
        else:
            self._operations.release_at(replica, slot.token, now)

    def _failed(self, replica: RoutedReplica, sent: Sent, failure: Failure, now: float) -> list[RouterRun]:
        """The replica has refused. Returns the reservations that go to other replicas."""
        run = sent.run
        parts = replica.answer(sent, 0, 1)
        if sent.takes_room or isinstance(run.slot, Dispatch):
            routing_hooks.abandoned(replica.backend.hooks, replica, 1)
        has_time = failure.reason in _TIME_IS_UP and now < run.deadline
        if run.reserves and (has_time or failure.reason in _ELSEWHERE):
            self._counters.refusals[replica.backend.name, failure.reason.value] += 1
            return self._answers.hand_back(sent, parts)
        if parts:
            self._outcomes.answered_with(sent, 0, 1, failures.located(failure, replica))
        return []
