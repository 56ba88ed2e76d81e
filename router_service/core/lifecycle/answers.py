"""What replicas' answers, and the loss of a replica, mean for the calls that it had.

Purpose: decides which outcome each call gets, and which call is queued again; passes yielded values and counts of taken
requests on to callers.
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
from typing import Final

from router_service.core import balancers, failures
from router_service.core.calls import Failures, FirstAttempt, Reserve
from router_service.core.commands import Step
from router_service.core.counters import RouterCounters
from router_service.core.events import RunsCompleted, RunsRefused
from router_service.core.lifecycle.deadlines_and_cancellation import EarlyEnds
from router_service.core.lifecycle.feature import Features
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.lifecycle.outcomes import by_beginning
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.look_ups import LookUp, not_looked_up
from router_service.core.replicas.backends import RoutedBackend
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.run_states import Earlier
from router_service.core.runs import RouterRun, Sent
from slotmesh.balancers import CallEnd
from slotmesh.calls.payload_block import PayloadBlock
from slotmesh.errors import Executed, Failure, Reason

MAX_BLOCK_SLICES = 4
"""Into more slices a block of results is cut payload by payload: a slice costs as much as some 30 payloads do."""


NOT_REMEMBERED: Final = frozenset({Reason.STALE_TABLE, Reason.DRAINING})
"""With which a replica refuses a call that it has looked up and does not know."""


class Answers:
    """Handles results, failures, values and losses of replicas."""

    def __init__(self, counters: RouterCounters, intake: RoutingIntake, ends: EarlyEnds, features: Features) -> None:
        self._counters = counters
        self._outcomes = intake.outcomes
        self._sender = intake.sender
        self._topology = intake.topology
        self._intake = intake
        self._ends = ends
        self._features = features

    def completed(self, event: RunsCompleted, step: Step) -> None:
        """Calls have their outcomes, and what waits for their room starts."""
        now, replica, backend = step.now, event.replica, event.replica.backend
        outcomes, observe = self._outcomes, backend.counts.replica_time.observe
        ended_well = backend.counts.ended.well
        is_heard = backend.hooks is not None
        if event.values:
            for hook in self._features.yielded:
                hook(event, step)
        service_time = backend.account.service_time
        for ids, received, content_type in event.results:
            payloads = received
            backend.retries.answered(len(ids), now)
            for sent, offset, at, count in replica.inflight.slices(ids):
                observe(now - sent.sent_at, count)
                service_time.observe(now - sent.sent_at, is_cold=sent.is_cold)
                if count < len(payloads) // MAX_BLOCK_SLICES and type(payloads) is PayloadBlock:
                    payloads = payloads.cut()
                if count == sent.count and sent.states is None:
                    replica.answer_whole(sent)
                    ended_well(sent.run, count, now)
                    if is_heard:
                        balancers.answered(backend.hooks, replica, sent, count, now)
                    part = payloads if count == len(payloads) else payloads[at : at + count]
                    outcomes.results(sent, 0, count, part, content_type, replica, step)
                else:
                    for lo, fresh in self._answer(replica, sent, offset, count, step):
                        begin = at + lo - offset
                        ended_well(sent.run, fresh, now)
                        outcomes.results(sent, lo, fresh, payloads[begin : begin + fresh], content_type, replica, step)
                if sent.run.partition is not None:
                    self._sender.settle(sent, offset, count, step, is_last=not sent.remaining)
        if event.failed:
            self._failed(replica, event.failed, step)
        for sent, offset, _, count in replica.inflight.slices(event.done) if event.done else ():
            backend.retries.answered(count, now)
            observe(now - sent.sent_at, count)
            service_time.observe(now - sent.sent_at, is_cold=sent.is_cold)
            for lo, fresh in self._answer(replica, sent, offset, count, step):
                outcomes.done(sent, lo, fresh, step)
                ended_well(sent.run, fresh, now)
            if sent.run.partition is not None:
                self._sender.settle(sent, offset, count, step, is_last=not sent.remaining)
        self.learn(replica, event.capacity, step)
        self._sender.pump(replica, step)

    def lost(self, replica: RoutedReplica, why: str, step: Step) -> None:
        """The connection broke: what a frame has carried and is not answered may have been executed."""
        backend = replica.backend
        unsent = replica.take_back()
        returned: list[RouterRun] = []
        for each in unsent:
            if not each.takes_room and replica.listed:
                unreachable = failures.replica_unreachable(replica.replica_id, "could not be reached any more")
                self._outcomes.failed(each, 0, 1, unreachable, step)
            elif not each.takes_room:
                self._outcomes.gone(each.run, replica.replica_id, "is gone", step)
            elif type(each) is not LookUp and not each.run.recovers:
                returned += self.hand_back(each, each.open_parts(), step)
        failure = failures.replica_lost(replica, why)
        amid_call = failures.replica_lost(replica, why, has_begun=True)
        lost = replica.lose()
        for sent in lost:
            sent.run.sents.remove(sent)
        # What was to be recovered has been executed there, or was about to be.
        for sent in (*lost, *(each for each in unsent if each.run.recovers)):
            for offset in sorted(sent.begun or ()):
                # Its caller has values, or its requests are gone: it cannot be executed again.
                for lo, count in sent.open_parts(offset, 1):
                    self._outcomes.failed(sent, lo, count, amid_call, step)
                    sent.abandon(lo, count)
            for lo, count in () if type(sent) is LookUp else sent.open_parts():
                if sent.run.earlier is Earlier.FETCHED:
                    self._outcomes.failed(sent, lo, count, failures.result_evicted(replica), step)
                    continue
                if isinstance(sent.run.slot, Reserve):
                    # It has executed nothing. Was a slot granted, it is leased: its replica is queried if it knows ids.
                    sent.run.slot = sent.run.slot.lost(replica.key)
                    returned += self.hand_back(sent, [(lo, count)], step)
                    continue
                returned += self._retry_or_fail(replica.backend, sent, lo, count, failure, step)
        self._topology.changed(replica, step)
        if not replica.draining:
            self._counters.link_failures[backend.name,] += 1
        self._intake.put_back(returned, backend, step)
        for sent in (*lost, *unsent):
            if type(sent) is LookUp and sent.open_parts():
                self._intake.not_found(not_looked_up(sent), step)
        for sent in (*lost, *unsent):
            self._sender.settle(sent, 0, sent.count, step, is_last=True)

    def refused(self, event: RunsRefused, step: Step) -> None:
        """Calls that the replica did not take go back into queues, or end."""
        replica, failure = event.replica, event.failure
        returned: list[RouterRun] = []
        left: list[tuple[Sent, int, int, bool]] = []
        not_found: list[Sent] = []
        look_ups = 0
        if failure.reason is Reason.DRAINING and not replica.draining:
            replica.draining = True
            self._topology.changed(replica, step)
        for sent, offset, _, count in replica.inflight.slices(event.ids):
            before = sent.remaining
            parts = replica.answer(sent, offset, count)
            if balancers.is_counted(sent):
                balancers.abandoned(replica.backend.hooks, replica, before - sent.remaining)
            if type(sent) is LookUp:
                if parts and failure.reason in NOT_REMEMBERED:
                    not_found.append(sent)
                elif parts:
                    self._outcomes.failed(sent, 0, 1, failures.may_be_remembered(replica.replica_id), step)
                look_ups += 1
            elif sent.run.recovers:
                gone = failures.result_evicted(replica) if sent.run.earlier is Earlier.FETCHED else None
                for lo, many in parts:
                    self._outcomes.failed(sent, lo, many, gone or failures.not_heard(replica.replica_id), step)
            elif failure.reason is Reason.SESSION_FENCED or not sent.takes_room:
                # The client has connected elsewhere: its next router sends these calls, if the client still wants them.
                # And an operation bound to a slot can be done nowhere else.
                for lo, many in parts:
                    self._outcomes.failed(sent, lo, many, failure, step)
            else:
                if sent.run.partition is not None and failure.reason is Reason.STALE_TABLE:
                    sent.run.partition.refused(sent.owner_epoch, offset, count)
                returned += self.hand_back(sent, parts, step)
            left.append((sent, offset, count, not sent.remaining))
        if look_ups < len(event.ids):
            self._counters.refusals[replica.backend.name, failure.reason.value] += len(event.ids) - look_ups
        self.learn(replica, event.capacity, step)
        self._intake.put_back(returned, replica.backend, step)
        for sent in not_found:
            self._intake.not_found(sent.run, step)
        for sent, offset, count, is_last in left:
            self._sender.settle(sent, offset, count, step, is_last=is_last)
        self._ends.end_overdue(step)
        self._sender.pump(replica, step)

    def learn(self, replica: RoutedReplica, capacity: ReportedCapacity | None, step: Step) -> None:
        """The load that the replica has reported; None before its first report."""
        if capacity is None or capacity == replica.capacity:
            replica.backend.load_changed(replica)
        else:
            replica.capacity = capacity
            replica.draining = replica.draining or capacity.draining
            self._topology.changed(replica, step)

    def _answer(
        self, replica: RoutedReplica, sent: Sent, offset: int, count: int, step: Step, end: CallEnd = CallEnd.WELL
    ) -> list[tuple[int, int]]:
        """The replica has answered these calls of the slice; returns those that still wait for an outcome."""
        before = sent.remaining
        fresh = replica.answer(sent, offset, count)
        if replica.backend.hooks is not None:
            balancers.answered(replica.backend.hooks, replica, sent, before - sent.remaining, step.now, end)
        return fresh

    def _failed(self, replica: RoutedReplica, failed: Iterable[Failures], step: Step) -> None:
        """Calls that failed at the replica."""
        outcomes, observe = self._outcomes, replica.backend.counts.replica_time.observe
        for ids, failure in failed:
            if failure.reason is Reason.DRAINING and failure.executed is Executed.UNKNOWN:
                self._cut_off(replica, ids, step)
                continue
            located = failures.located(failure, replica)
            for sent, offset, _, count in replica.inflight.slices(ids):
                observe(step.now - sent.sent_at, count)
                reported = located
                if sent.run.recovers and failure.reason is Reason.CANCELLED and sent.run.deadline < inf:
                    # No caller of this router has cancelled it: an earlier router did when its deadline passed.
                    reported = replace(failures.deadline_running(sent.run, replica), executed=failure.executed)
                end = CallEnd.UNUSED if failure.executed is Executed.NO else CallEnd.FAILED
                for lo, fresh in self._answer(replica, sent, offset, count, step, end):
                    outcomes.answered_with(sent, lo, fresh, reported, step)
                if sent.run.partition is not None:
                    self._sender.settle(sent, offset, count, step, is_last=not sent.remaining)

    def _cut_off(self, replica: RoutedReplica, ids: Sequence[int], step: Step) -> None:
        """The replica is at its end, and has cancelled these calls: as if its link were lost, but for words."""
        failure = failures.replica_ended(replica)
        returned: list[RouterRun] = []
        left: list[tuple[Sent, int, int, bool]] = []
        for sent, offset, _, count in replica.inflight.slices(ids):
            for lo, fresh in self._answer(replica, sent, offset, count, step, CallEnd.UNUSED):
                is_bound = sent.run.recovers or type(sent) is LookUp
                if sent.run.partition is not None and not is_bound:
                    sent.run.partition.refused(sent.owner_epoch, lo, fresh)
                for at, many, has_begun in by_beginning(sent, lo, fresh):
                    if is_bound or has_begun:
                        self._outcomes.answered_with(sent, at, many, failure, step)
                    else:
                        returned += self._retry_or_fail(replica.backend, sent, at, many, failure, step)
            left.append((sent, offset, count, not sent.remaining))
        self._intake.put_back(returned, replica.backend, step)
        for sent, offset, count, is_last in left:
            self._sender.settle(sent, offset, count, step, is_last=is_last)

    def _retry_or_fail(
        self, backend: RoutedBackend[RoutedReplica], sent: Sent, lo: int, count: int, failure: Failure, step: Step
    ) -> list[RouterRun]:
        """These calls of the slice may have been executed: returns what waits again, as it may be executed twice."""
        retried = 0
        returned: list[RouterRun] = []
        if sent.run.options.idempotent and sent.run.shadow_of is None and sent.takes_room:
            retried = backend.retries.take(count, step.now)
            self._counters.retries[backend.name,] += retried
            returned = self.hand_back(sent, [(lo, retried)] if retried else [], step, retry=True)
        if retried < count:
            self._outcomes.failed(sent, lo + retried, count - retried, failure, step)
        return returned

    def hand_back(
        self, sent: Sent, parts: Iterable[tuple[int, int]], step: Step, *, retry: bool = False
    ) -> list[RouterRun]:
        """Takes the slice's calls without an outcome back from the replica, as runs that wait. Shadows end."""
        runs: list[RouterRun] = []
        run = sent.run
        for lo, count in self._outcomes.end_asked(sent, parts, Executed.UNKNOWN if retry else Executed.NO, step):
            if run.shadow_of is not None:
                self._outcomes.failed(sent, lo, count, failures.NO_FREE_SLOT, step)
                continue
            first = sent.first + lo
            for part in run.handed_back(sent.lo + lo, sent.lo + lo + count, attempt=run.attempt + retry):
                size = len(part.payloads)
                if retry and run.session is None and run.origin is None:
                    part.origin = FirstAttempt(sent.replica.stream_id, range(first, first + size))
                first += size
                self._outcomes.replaced(run, size, part, step)
                if part.is_behind_failure:
                    self._outcomes.fail_waiting(part, failures.PREDECESSOR_FAILED, step)
                elif not any(hook(part, step) for hook in self._features.handed_back):
                    runs.append(part)
        return runs
