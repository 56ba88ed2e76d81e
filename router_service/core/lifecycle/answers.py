"""What replicas' answers, and the loss of a replica, mean for the calls that it had.

Purpose: decides which outcome each call gets, and which call is queued again; passes yielded values and counts of taken
requests on to callers. `handlers/tables_and_links` has the calls that a replica refuses.
Invariants: a call that a replica hands back untouched, or that is lost and `idempotent`, waits again by its age; any
other call of a lost link may have been executed. A partition's new owner is served when the earlier one has no
unanswered call of it. A value settles nothing: its call ends later. Values of one call keep their order; values of
calls that have their outcome are dropped, as their handlers are being stopped; values of shadows count as taken on
arrival, so that shadows run to their end.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from router_service.core import balancers, failures
from router_service.core.calls import Failures, FirstAttempt, Results
from router_service.core.commands import DeliverTaken, DeliverValues, RouterCommand, TakeValues
from router_service.core.counters import RouterCounters
from router_service.core.events import LanesStopped, RequestsTaken, RunsCompleted
from router_service.core.lifecycle import cancellation
from router_service.core.lifecycle.cancellation import Withdrawn
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.lifecycle.sender import Sender
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.topology import Topology
from router_service.core.runs import OPEN, CallerBook, RouterRun, Sent
from slotmesh.calls.payload_block import PayloadBlock
from slotmesh.errors import Executed, Failure, Reason


class RequestsAtReplicas:
    """Calls whose requests arrive one by one: passes the number of requests that a handler has taken to their caller.

    Replicas identify calls by run id, callers by call id. Nothing is passed on for calls that have their outcome.
    """

    def __init__(self, out: list[RouterCommand]) -> None:
        """Writes into `out`, the scheduler's list of commands."""
        self._out = out

    def taken(self, event: RequestsTaken, _now: float) -> None:
        """Handlers have begun, or have taken requests."""
        replica = event.replica
        for run_id, count in event.taken:
            sent = replica.inflight.get(run_id) or replica.inflight.covering(run_id)
            if sent is None or not sent.run.options.takes_requests:
                continue
            if sent.states is None or sent.states[run_id - sent.first] == OPEN:
                self._out.append(DeliverTaken(sent.run.caller, replica, run_id, count, replica.links))


def pass_on(
    replica: RoutedReplica, values: Iterable[Results], outcomes: CallerOutcomes, out: list[RouterCommand]
) -> None:
    """Hands values to their callers. A run id appears once for each value. A value that is too large ends its call."""
    for ids, payloads, content_type in values:
        deliveries: dict[CallerBook, DeliverValues] = {}
        at, end = 0, len(ids)
        while at < end:
            run_id, begin = ids[at], at
            while at < end and ids[at] == run_id:
                at += 1
            sent = replica.inflight.get(run_id) or replica.inflight.covering(run_id)
            if sent is None:
                continue
            run, offset, caller = sent.run, run_id - sent.first, sent.run.caller
            if run.shadow_of is not None or run.options.no_reply or not run.options.streaming:
                out.append(TakeValues(replica, run_id, at - begin))
                continue
            if sent.states is not None and sent.states[offset] != OPEN:
                continue
            if run.options.idempotent:
                sent.note_value(offset)
            given = payloads[begin:at]
            limit = caller.max_value_bytes
            fit = next((place for place, payload in enumerate(given) if len(payload) > limit), len(given))
            if fit:
                delivery = deliveries.get(caller)
                if delivery is None:
                    delivery = DeliverValues(caller, [], [], content_type, replica, [], replica.links)
                    deliveries[caller] = delivery
                    out.append(delivery)
                delivery.ids += [run.ids[sent.lo + offset]] * fit
                delivery.run_ids += [run_id] * fit
                delivery.payloads += given[:fit]
            if fit < len(given):
                failure = failures.value_too_large(len(given[fit]), limit, replica)
                outcomes.abandon(sent, failure, offset, 1)


MAX_BLOCK_SLICES = 4
"""Into more slices a block of results is cut payload by payload: a slice costs as much as some 30 payloads do."""


class Answers:
    """Handles results, failures, values and losses of replicas."""

    def __init__(
        self,
        out: list[RouterCommand],
        counters: RouterCounters,
        outcomes: CallerOutcomes,
        sender: Sender,
        intake: RoutingIntake,
    ) -> None:
        """Writes into `out`, the scheduler's list of commands."""
        self._out = out
        self._counters = counters
        self._outcomes = outcomes
        self._sender = sender
        self._intake = intake

    def completed(self, event: RunsCompleted, now: float) -> None:
        """Calls have their outcomes, and what waits for their room starts."""
        replica, backend = event.replica, event.replica.backend
        outcomes, observe = self._outcomes, backend.counts.replica_time.observe
        ended_well = backend.counts.ended.well
        is_heard = backend.hooks is not None
        if event.values:
            pass_on(replica, event.values, outcomes, self._out)
        service_time = backend.account.service_time
        for ids, received, content_type in event.results:
            payloads = received
            backend.retries.answered(len(ids), now)
            for sent, offset, at, count in replica.inflight.slices(ids):
                observe(now - sent.sent_at, count)
                service_time.observe(now - sent.sent_at)
                if count < len(payloads) // MAX_BLOCK_SLICES and type(payloads) is PayloadBlock:
                    payloads = payloads.cut()
                if count == sent.count and sent.states is None:
                    replica.answer_whole(sent)
                    ended_well(sent.run, count, now)
                    if is_heard:
                        balancers.answered(backend.hooks, replica, sent, count, now)
                    part = payloads if count == len(payloads) else payloads[at : at + count]
                    outcomes.results(sent, 0, count, part, content_type, replica)
                else:
                    for lo, fresh in self._answer(replica, sent, offset, count, now):
                        begin = at + lo - offset
                        ended_well(sent.run, fresh, now)
                        outcomes.results(sent, lo, fresh, payloads[begin : begin + fresh], content_type, replica)
                if sent.run.partition is not None:
                    self.settle(sent, now, offset, count, is_last=not sent.remaining)
        if event.failed:
            self._failed(replica, event.failed, now)
        for sent, offset, _, count in replica.inflight.slices(event.done) if event.done else ():
            backend.retries.answered(count, now)
            observe(now - sent.sent_at, count)
            service_time.observe(now - sent.sent_at)
            for lo, fresh in self._answer(replica, sent, offset, count, now):
                outcomes.done(sent, lo, fresh)
                ended_well(sent.run, fresh, now)
            if sent.run.partition is not None:
                self.settle(sent, now, offset, count, is_last=not sent.remaining)
        self.learn(replica, event.capacity)
        self._sender.pump(replica, now)

    def stopped(self, event: LanesStopped, _now: float) -> None:
        """Fails calls of lanes that stop which were cancelled or overdue, now that the replica has confirmed it."""
        cancellation.stop_asking(event.replica, event.ranges, self._outcomes)

    def lost(self, replica: RoutedReplica, why: str, now: float) -> None:
        """The connection broke: what a frame has carried and is not answered may have been executed."""
        backend = replica.backend
        unsent = replica.take_back()
        returned: list[RouterRun] = []
        for each in unsent:
            if not each.takes_room and replica.listed:
                unreachable = failures.replica_unreachable(replica.replica_id, "could not be reached any more")
                self._outcomes.failed(each, 0, 1, unreachable)
            elif not each.takes_room:
                self._outcomes.gone(each.run, replica.replica_id, "is gone")
            elif not each.run.recovers:
                returned += self.hand_back(each, each.open_parts())
        failure = failures.replica_lost(replica, why)
        amid_values = failures.replica_lost(replica, why, sent_values=True)
        lost = replica.lose()
        for sent in lost:
            sent.run.sents.remove(sent)
        # What was to be recovered has been executed there, or was about to be.
        for sent in (*lost, *(each for each in unsent if each.run.recovers)):
            for offset in sorted(sent.valued or ()):
                # Its caller has values: to execute it again would bring them twice.
                for lo, count in sent.open_parts(offset, 1):
                    self._outcomes.failed(sent, lo, count, amid_values)
                    sent.abandon(lo, count)
            for lo, count in sent.open_parts():
                if sent.run.was_answered:
                    self._outcomes.failed(sent, lo, count, failures.result_evicted(replica))
                    continue
                if sent.run.reserves:
                    # It has executed nothing. Was a slot granted, it is leased, and no more than that.
                    returned += self.hand_back(sent, [(lo, count)])
                    continue
                returned += self._retry_or_fail(replica.backend, sent, lo, count, failure, now)
        backend.changed(replica)
        if not replica.draining:
            self._counters.link_failures[backend.name,] += 1
        self._intake.put_back(returned, backend, now)
        for sent in (*lost, *unsent):
            self.settle(sent, now, 0, sent.count, is_last=True)

    def learn(self, replica: RoutedReplica, capacity: ReportedCapacity | None) -> None:
        """The load that the replica has reported; None before its first report."""
        if capacity is None or capacity == replica.capacity:
            replica.backend.balancer.changed(replica)
        else:
            replica.capacity = capacity
            replica.draining = replica.draining or capacity.draining
            replica.backend.changed(replica)

    def settle(self, sent: Sent, now: float, offset: int, count: int, *, is_last: bool) -> None:
        """These calls of the slice are at its replica no more, and what came back is queued: a new owner may be served.

        `is_last`: no call of the slice is there any more.
        """
        order = sent.run.partition
        if order is not None:
            for number in order.answered(sent.owner_epoch, offset, count, is_last=is_last):
                self._sender.resume(sent, number, now)

    def _answer(
        self, replica: RoutedReplica, sent: Sent, offset: int, count: int, now: float, *, is_used: bool = True
    ) -> list[tuple[int, int]]:
        """The replica has answered these calls of the slice; returns those that still wait for an outcome."""
        before = sent.remaining
        fresh = replica.answer(sent, offset, count)
        if replica.backend.hooks is not None:
            balancers.answered(replica.backend.hooks, replica, sent, before - sent.remaining, now, is_used=is_used)
        return fresh

    def _failed(self, replica: RoutedReplica, failed: Iterable[Failures], now: float) -> None:
        """Calls whose outcome has no receiver, executed or not."""
        outcomes, observe = self._outcomes, replica.backend.counts.replica_time.observe
        for ids, failure in failed:
            if failure.reason is Reason.DRAINING and failure.executed is Executed.UNKNOWN:
                self._cut_off(replica, ids, now)
                continue
            located = failures.located(failure, replica)
            for sent, offset, _, count in replica.inflight.slices(ids):
                observe(now - sent.sent_at, count)
                reported = located
                if sent.run.recovers and failure.reason is Reason.CANCELLED and sent.run.deadline < inf:
                    # No caller of this router has cancelled it: an earlier router did when its deadline passed.
                    reported = replace(failures.deadline_running(sent.run, replica), executed=failure.executed)
                for lo, fresh in self._answer(
                    replica, sent, offset, count, now, is_used=failure.executed is not Executed.NO
                ):
                    outcomes.answered_with(sent, lo, fresh, reported)
                if sent.run.partition is not None:
                    self.settle(sent, now, offset, count, is_last=not sent.remaining)

    def _cut_off(self, replica: RoutedReplica, ids: Sequence[int], now: float) -> None:
        """The replica is at its end, and has cancelled these calls: as if its link were lost, but for words."""
        failure = failures.replica_ended(replica)
        returned: list[RouterRun] = []
        left: list[tuple[Sent, int, int, bool]] = []
        for sent, offset, _, count in replica.inflight.slices(ids):
            for lo, fresh in self._answer(replica, sent, offset, count, now):
                if sent.run.recovers or not (sent.valued or set()).isdisjoint(range(lo, lo + fresh)):
                    self._outcomes.answered_with(sent, lo, fresh, failure)
                    continue
                if sent.run.partition is not None:
                    sent.run.partition.refused(sent.owner_epoch, lo, fresh)
                returned += self._retry_or_fail(replica.backend, sent, lo, fresh, failure, now)
            left.append((sent, offset, count, not sent.remaining))
        self._intake.put_back(returned, replica.backend, now)
        for sent, offset, count, is_last in left:
            self.settle(sent, now, offset, count, is_last=is_last)

    def _retry_or_fail(
        self, backend: RoutedBackend[RoutedReplica], sent: Sent, lo: int, count: int, failure: Failure, now: float
    ) -> list[RouterRun]:
        """These calls of the slice may have been executed: returns what waits again, as it may be executed twice."""
        retried = 0
        returned: list[RouterRun] = []
        if sent.run.options.idempotent and sent.run.shadow_of is None and sent.takes_room:
            retried = backend.retries.take(count, now)
            self._counters.retries[backend.name,] += retried
            returned = self.hand_back(sent, [(lo, retried)] if retried else [], retry=True)
        if retried < count:
            self._outcomes.failed(sent, lo + retried, count - retried, failure)
        return returned

    def hand_back(self, sent: Sent, parts: Iterable[tuple[int, int]], *, retry: bool = False) -> list[RouterRun]:
        """Takes the slice's calls without an outcome back from the replica, as runs that wait. Shadows end."""
        runs: list[RouterRun] = []
        run = sent.run
        for lo, count in self._outcomes.end_asked(sent, parts, Executed.UNKNOWN if retry else Executed.NO):
            if run.shadow_of is not None:
                self._outcomes.failed(sent, lo, count, failures.NO_FREE_SLOT)
                continue
            first = sent.first + lo
            for part in run.handed_back(sent.lo + lo, sent.lo + lo + count, attempt=run.attempt + retry):
                size = len(part.payloads)
                if retry and run.session is None and run.origin is None:
                    part.origin = FirstAttempt(sent.replica.stream_id, range(first, first + size))
                first += size
                self._outcomes.replaced(run, size, part)
                options = run.options
                if options.stop_generation and run.caller.has_stopped(
                    options.ordering_key, options.stop_generation, part.ids[0]
                ):
                    self._outcomes.fail_waiting(part, failures.PREDECESSOR_FAILED)
                else:
                    runs.append(part)
        return runs


class WithdrawalFollowUp:
    """Follows up calls that `cancellation` took out of the outboxes of replicas, or that replicas were asked about.

    Replicas whose outboxes became shorter have room again, partitions may continue, and the rest of each run is
    watched.
    """

    def __init__(self, topology: Topology, sender: Sender, intake: RoutingIntake, answers: Answers) -> None:
        self._topology = topology
        self._sender = sender
        self._intake = intake
        self._answers = answers

    def follow_up(self, withdrawn: Withdrawn, now: float) -> None:
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
            self._answers.settle(sent, now, 0, sent.count, is_last=True)
            replica.backend.balancer.changed(replica)
        for replica in dict.fromkeys(replicas):
            self._sender.pump(replica, now)
