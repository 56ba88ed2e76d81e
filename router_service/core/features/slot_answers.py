"""Operations on slots: how submitted ones begin, and what the answers of replicas mean.

Invariants: every operation ends with exactly one delivery to its caller. A slot that was granted to a caller that no
longer waits is released immediately.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator

from router_service.core import balancers, failures
from router_service.core.calls import (
    NO_OPTIONS,
    Dispatch,
    LeasedSlot,
    LookUpSlot,
    Release,
    ReleasedSlot,
    Renew,
    Reserve,
    RouterCallOptions,
    SlotWork,
)
from router_service.core.commands import Step
from router_service.core.counters import RouterCounters
from router_service.core.events import CallDispatched, SlotOperationRequested, SlotOperationsAnswered, SlotRequested
from router_service.core.features.slot_operations import RoutedSlotOperations
from router_service.core.features.slot_requests import ONE_CALL, RequestedSlot
from router_service.core.lifecycle.answers import Answers
from router_service.core.lifecycle.deadlines_and_cancellation import EarlyEnds
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.waiting_causes import why_not_load
from router_service.core.runs import Caller, RouterRun, Sent
from router_service.core.tenants import TenantBook
from slotmesh.errors import Failure, Reason
from slotmesh.streams.chunks import Payload

_ELSEWHERE = frozenset({Reason.QUEUE_FULL, Reason.DRAINING, Reason.BACKEND_UNAVAILABLE})
"""Refusals of a reservation for which another replica may be tried."""
_TIME_IS_UP = frozenset({Reason.NO_SLOT, Reason.DEADLINE_IN_QUEUE, Reason.QUEUE_TIMEOUT, Reason.DEADLINE_RUNNING})


GRANT_S = 0.25
"""How long a replica that has room may take to grant a slot to a reservation that does not wait (timeout 0)."""


class SlotAnswers:
    """Ends operations, or routes refused reservations to other replicas."""

    def __init__(
        self,
        counters: RouterCounters,
        intake: RoutingIntake,
        answers: Answers,
        operations: RoutedSlotOperations,
        ends: EarlyEnds,
    ) -> None:
        self._counters = counters
        self._outcomes = intake.outcomes
        self._sender = intake.sender
        self._intake = intake
        self._answers = answers
        self._operations = operations
        self._ends = ends

    def answered(self, event: SlotOperationsAnswered, step: Step) -> None:
        """Ends operations, and starts the runs that wait for their room."""
        replica, capacity = event.replica, event.capacity
        returned: list[RouterRun] = []
        granted = 0
        for op_id, answer in event.answers:
            sent = replica.inflight.get(op_id)
            if sent is None or sent.run.slot is None:
                continue
            run = sent.run
            if isinstance(run.slot, LookUpSlot):
                found = self._operations.look_ups.answered(sent, replica, answer, step)
                if found is not None:
                    self._counters.granted(found, replica.backend.counts, step.now)
                continue
            if isinstance(answer, Failure):
                returned += self._failed(replica, sent, answer, step)
                continue
            is_waited_for = bool(replica.answer(sent, 0, 1))
            match run.slot, answer:
                case Reserve(), LeasedSlot():
                    granted += 1
                    self._granted(run, replica, answer, step, is_waited_for=is_waited_for)
                case Renew(), LeasedSlot():
                    self._operations.requests.renewed(answer, step.now)
                    if self._operations.routed.knows(answer.token):
                        self._operations.routed.lease(answer.token, replica, step.now + answer.ttl_s)
                    if is_waited_for:
                        self._outcomes.slot(run, answer, step)
                case Release(), ReleasedSlot():
                    if is_waited_for:
                        self._outcomes.slot(run, answer, step)
                case _:
                    if is_waited_for:
                        self._outcomes.failed(sent, 0, 1, failures.misanswered(replica), step)
        if capacity is None and granted:
            # Until the replica's next report: the slot that it granted takes room, and no call of this router does.
            capacity = replica.capacity._replace(others=replica.capacity.others + granted)
        self._answers.learn(replica, capacity, step)
        self._intake.put_back(returned, replica.backend, step)
        self._ends.end_overdue(step)
        self._sender.pump(replica, step)

    def _granted(
        self, run: RouterRun, replica: RoutedReplica, slot: LeasedSlot, step: Step, *, is_waited_for: bool
    ) -> None:
        if not is_waited_for:
            balancers.abandoned(replica.backend.hooks, replica, 1)
        elif replica.backend.hooks is not None:
            self._operations.routed.lease(slot.token, replica, step.now + slot.ttl_s)
        if is_waited_for:
            if (request := self._operations.requests.pending.get(run.caller)) is not None:
                request.replica = replica
            self._counters.granted(run, replica.backend.counts, step.now)
            self._outcomes.slot(run, slot, step)
        else:
            identity = run.slot.request if isinstance(run.slot, Reserve) else None
            self._operations.release_at(replica, slot.token, identity, step)

    def _failed(self, replica: RoutedReplica, sent: Sent, failure: Failure, step: Step) -> list[RouterRun]:
        """The replica has refused. Returns the reservations that go to other replicas."""
        run = sent.run
        parts = replica.answer(sent, 0, 1)
        if sent.takes_room or isinstance(run.slot, Dispatch):
            balancers.abandoned(replica.backend.hooks, replica, 1)
        has_time = failure.reason in _TIME_IS_UP and step.now < run.deadline
        if run.reserves and (has_time or failure.reason in _ELSEWHERE):
            self._counters.refusals[replica.backend.name, failure.reason.value] += 1
            return self._answers.hand_back(sent, parts, step)
        if parts and run.reserves and failure.reason is Reason.CANCELLED:
            handed_back = self._answers.hand_back(sent, parts, step)
            for each in handed_back:
                if not self._operations.look_ups.superseded(each, step):
                    self._outcomes.fail_waiting(each, failures.located(failure, replica), step)
        elif parts:
            self._outcomes.answered_with(sent, 0, 1, failures.located(failure, replica), step)
        return []


class SlotSubmissions:
    """Makes a run of each operation: reservations are routed, all others bound to their replica."""

    def __init__(
        self,
        numbers: Iterator[int],
        counters: RouterCounters,
        intake: RoutingIntake,
        operations: RoutedSlotOperations,
        tenants: TenantBook,
    ) -> None:
        """`numbers` are the ages of runs."""
        self._numbers = numbers
        self._counters = counters
        self._outcomes = intake.outcomes
        self._intake = intake
        self._operations = operations
        self._topology = intake.topology
        self._tenants = tenants

    def requested(self, event: SlotRequested, step: Step) -> None:
        """Begins a reservation, unless there is one of this request id."""
        caller, endpoint, options, wanted = event.caller, event.endpoint, event.options, event.wanted
        owner: Caller | None = caller
        if (request := wanted.request) is not None:
            wish = RequestedSlot.of(endpoint, options, wanted)
            wait_s = GRANT_S if not options.timeout_s and not request.attempt else options.timeout_s
            owner = self._operations.find(caller, request, wish, wait_s, step)
        if owner is not None:
            run = self._run(owner, endpoint, options, b"", wanted, step.now)
            if (failure := self._over_limit(run, step.now)) is not None:
                self._outcomes.fail_waiting(run, failure, step)
            elif request is not None and request.attempt:
                self._operations.look_ups.begin(run, step)
            elif options.timeout_s:
                self._intake.route(run, step)
            else:
                self._take_free(run, step)

    def _take_free(self, run: RouterRun, step: Step) -> None:
        """Sends the reservation to a replica that has room now, or fails it: it does not wait in a queue."""
        run.deadline = step.now + GRANT_S
        self._intake.route(run, step)
        if run.waiting:
            step.unqueue(run)
            failure = failures.no_slot(run, step.now, why_not_load(run, run.account, self._topology))
            self._outcomes.fail_waiting(run, failure, step)

    def dispatched(self, event: CallDispatched, step: Step) -> None:
        """A call goes to the replica that has given the slot."""
        endpoint = event.into.endpoint
        self._counters.calls[self._counters.label(endpoint),] += 1
        run = self._run(event.caller, endpoint, event.options, event.payload, event.into, step.now)
        if run.options.tenant:  # limits were for the reservation: a dispatch frees what it holds
            self._tenants.attach(run, step.now)
        if run.deadline <= step.now:
            self._outcomes.fail_waiting(run, failures.deadline_in_queue(run), step)
        else:
            self._operations.bind(run, event.key, step)

    def operation_requested(self, event: SlotOperationRequested, step: Step) -> None:
        """A renewal or a release goes to the replica that has given the slot."""
        self._operations.bind(self._run(event.caller, "", NO_OPTIONS, b"", event.op, step.now), event.key, step)

    def _over_limit(self, run: RouterRun, now: float) -> Failure | None:
        """The failure of a reservation that passes a limit of its tenant."""
        if not run.options.tenant:
            return None
        endpoint = self._topology.endpoint(run.endpoint)
        return self._tenants.enter(run, None if endpoint is None else endpoint.route.tenants, now)[1]

    def _run(
        self, caller: Caller, endpoint: str, options: RouterCallOptions, payload: Payload, work: SlotWork, now: float
    ) -> RouterRun:
        run = RouterRun(next(self._numbers), caller, endpoint, options, ONE_CALL, [payload], now, slot=work)
        caller.runs[run] = None
        return run
