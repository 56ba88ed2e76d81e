"""Calls that end before they are answered: cancelled by their callers, overdue, or queued longer than is allowed.

Invariants: a call that no frame has carried is withdrawn and was never executed; a call at a replica is abandoned: the
caller gets its failure immediately, the replica gets a cancel, and its answer is dropped. In a lane that stops at
failures, however, only the replica knows whether a call has failed: it is asked, and the caller gets the replica's
answer (`CallerOutcomes.ask`). A run whose deadline has passed is not examined for it again. The rest of a run that ends
partly is still watched. Replicas whose outboxes became shorter have room again, and partitions may continue.
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from router_service.core import failures
from router_service.core.commands import Step
from router_service.core.events import CallerLeft, CallsCancelled, SessionDisconnected
from router_service.core.lifecycle.feature import Features
from router_service.core.lifecycle.intake import RoutingIntake
from router_service.core.limits.capacity import KnownReplica
from router_service.core.look_ups import LookUp
from router_service.core.routing.waiting_causes import why, why_not_load
from router_service.core.run_states import RunEvent, RunState
from router_service.core.runs import Caller, RouterRun, Sent
from slotmesh.calls.id_ranges import Range, merged
from slotmesh.errors import Failure

Span = tuple[int, int]
"""Indices of a run or a slice, from the first up to the second: as slices of lists have them."""

PATIENCE_S = 0.25
"""How long the router waits for a replica that it has asked what became of calls."""


class Withdrawn:
    """What must leave the outboxes of replicas since calls have ended early, and what follows from that."""

    __slots__ = ("asked", "look_ups", "slices", "step", "survivors")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.slices: list[tuple[Sent, Sequence[Sent]]] = []
        """Slices, and the parts that frames carry in the place of each. Their replicas have room again."""
        self.survivors: list[RouterRun] = []
        """Calls of these slices that go on, as runs of their own, whose deadlines must be watched."""
        self.look_ups: list[LookUp] = []
        """Those of calls that have ended: calls of the same keys may continue."""
        self.asked: list[RouterRun] = []
        """Runs whose replicas were asked; the wait for their answers is bounded."""


class EarlyEnds:
    """Ends calls early."""

    def __init__(self, intake: RoutingIntake, features: Features) -> None:
        self._intake = intake
        self._outcomes = intake.outcomes
        self._topology = intake.topology
        self._features = features

    # -- by their callers --------------------------------------------------------------------------------------------

    def cancel_calls(self, event: CallsCancelled, step: Step) -> None:
        """Ends the calls whose ids are in one of the ranges; unknown and ended ones are left alone."""
        wanted = merged(event.ranges)
        if not wanted:
            return
        withdrawn = Withdrawn(step)
        first, last = wanted[0][0], wanted[-1][1]
        for run in list(event.caller.runs):
            ids = run.ids
            if not ids or ids[0] > last or ids[-1] < first:
                continue
            spans = _spans(ids, wanted)
            if spans == [(0, len(ids))]:
                self._end(run, failures.CANCELLED, _cancelled_at, withdrawn)
            elif spans:
                self._end_some(run, spans, withdrawn, failures.CANCELLED, failures.CANCELLED_AT_REPLICA)
        self._follow_up(withdrawn)

    def caller_left(self, event: CallerLeft, step: Step) -> None:
        """Ends all open calls of the caller."""
        for hook in self._features.left:
            hook(event.caller, step)
        self.cancel_caller(event.caller, step, is_overdue=event.is_overdue)

    def cancel_caller(self, caller: Caller, step: Step, *, is_overdue: bool = False) -> None:
        """Ends all calls of the caller that have no outcome; `is_overdue`: since the deadline of its rpc has passed."""
        withdrawn = Withdrawn(step)
        for run in list(caller.runs):
            if is_overdue and not run.reserves:
                running = partial(failures.deadline_running, run)
                self._end(run, failures.deadline_in_queue(run), running, withdrawn)
            else:
                self._end(run, failures.CANCELLED, _cancelled_at, withdrawn)
        self._follow_up(withdrawn)

    def session_left(self, event: SessionDisconnected, step: Step) -> None:
        """The connection of a session has ended. Calls at replicas go on; the client will send the others again.

        Calls that stream their values end with the connection.
        """
        caller, withdrawn = event.caller, Withdrawn(step)
        for hook in self._features.left:
            hook(caller, step)
        for run in list(caller.runs):
            if run.options.streaming:
                step.unqueue(run)
                step.advance(run, RunEvent.LEFT)
                self._end(run, failures.CANCELLED, _cancelled_at, withdrawn)
                continue
            step.unqueue(run)
            run.ids, run.payloads = run.ids[: run.cursor], run.payloads[: run.cursor]
            for each in list(run.sents):
                if each.first:
                    each.abandon(0, each.count)
                else:
                    withdrawn.slices.append((each, ()))
            self._outcomes.forget(run, step)
        self._follow_up(withdrawn)

    # -- by time, and by other calls ---------------------------------------------------------------------------------

    def end_overdue(self, step: Step) -> None:
        """Fails calls with no time left."""
        withdrawn = Withdrawn(step)
        for run in self._intake.deadlines.pop_due(step.now):
            if not run.unanswered:
                continue
            if run.reserves:
                self._end_reservation(run, withdrawn)
            elif run.asked_until <= step.now:
                run.asked_until = inf
                for sent in list(run.sents):
                    self._outcomes.stop_asking(sent, list(sent.asked or ()), step)
            elif run.deadline <= step.now and run.state is not RunState.OVERDUE:
                running = partial(failures.deadline_running, run)
                unsent = failures.deadline_in_queue(run, why(run, self._topology))
                self._end(run, unsent, running, withdrawn)
                if run.unanswered:
                    step.advance(run, RunEvent.DEADLINE)
            elif run.waiting and run.account is not None:
                self._end_waiting(run, run.account.max_queue_time_s, step)
            else:
                for hook in self._features.overdue:
                    withdrawn.slices += [(sent, ()) for sent in hook(run, step)]
            if run.unanswered:
                self._intake.watch(run)
        self._follow_up(withdrawn)

    def end_after_failure(self, caller: Caller, key: str, step: Step) -> None:
        """Fails later calls of the key and generation that no frame has carried; the replica fails the others."""
        withdrawn = Withdrawn(step)
        failed = caller.stops.of(key)
        for run in list(caller.runs):
            options, ids = run.options, run.ids
            first = failed.get(options.stop_generation)
            if options.ordering_key != key or first is None:
                continue
            if ids and ids[-1] > first:
                self._end_some(run, [(bisect_right(ids, first), len(ids))], withdrawn, failures.PREDECESSOR_FAILED)
        self._follow_up(withdrawn)

    # -- in here -----------------------------------------------------------------------------------------------------

    def _end_waiting(self, run: RouterRun, limit_s: float, step: Step) -> None:
        failure: Failure | None = None
        if run.arrived + limit_s <= step.now:
            failure = failures.queue_timeout(run, limit_s, why(run, self._topology))
        elif run.useless_at <= step.now:
            failure = failures.too_late(run, run.deadline - step.now, why(run, self._topology))
        if failure is not None:
            step.unqueue(run)
            self._outcomes.fail_waiting(run, failure, step)

    def _end_reservation(self, run: RouterRun, withdrawn: Withdrawn) -> None:
        """The timeout of a reservation, or its queue time limit, may be over. For its caller both are the same."""
        now = withdrawn.step.now
        limit_s = run.account.max_queue_time_s if run.account is not None and run.waiting else inf
        if min(run.deadline, run.arrived + limit_s) <= now:
            failure = failures.no_slot(run, now, why_not_load(run, run.account, self._topology))
            self._end(run, failure, lambda _: failure, withdrawn)

    def _end(
        self, run: RouterRun, unsent: Failure, sent: Callable[[KnownReplica], Failure], withdrawn: Withdrawn
    ) -> None:
        """Ends every open call of the run: `unsent` for what never left, `sent` for what is at a replica."""
        outcomes, step = self._outcomes, withdrawn.step
        step.unqueue(run)
        outcomes.fail_waiting(run, unsent, step)
        for each in list(run.sents):
            if each.first and _is_asked_first(run):
                self._ask(each, sent(each.replica), withdrawn)
            elif each.first:
                # A reservation runs nothing: for its caller it makes no difference where it was.
                outcomes.abandon(each, unsent if run.reserves else sent(each.replica), step)
                if type(each) is LookUp:
                    withdrawn.look_ups.append(each)
            else:
                # This call was not executed, but an earlier one with its request id may have been.
                unknown = failures.may_be_remembered(each.replica.replica_id)
                if unsent is failures.CANCELLED:
                    unknown = failures.CANCELLED_AT_REPLICA
                failure = unknown if type(each) is LookUp else unsent
                for lo, count in each.open_parts():
                    outcomes.failed(each, lo, count, failure, step)
                withdrawn.slices.append((each, ()))

    def _end_some(
        self, run: RouterRun, spans: Sequence[Span], withdrawn: Withdrawn, unsent: Failure, sent: Failure | None = None
    ) -> None:
        """Ends the open calls at these indices of the run; the others continue.

        `unsent` is the failure of calls that never left, `sent` of those at a replica; without it, the latter continue.
        """
        step = withdrawn.step
        for each in list(run.sents):
            inside = [(lo - each.lo, hi - each.lo) for lo, hi in _within(spans, each.lo, each.lo + each.count)]
            if not each.first:
                if inside:
                    self._take_out(each, inside, withdrawn, unsent)
            elif sent is not None:
                for lo, hi in inside:
                    if _is_asked_first(run):
                        self._ask(each, sent, withdrawn, lo, hi - lo)
                    else:
                        self._outcomes.abandon(each, sent, step, lo, hi - lo)
        waiting = _within(spans, run.cursor, len(run.ids))
        if waiting:
            account = run.account if run.state is RunState.QUEUED else None
            step.unqueue(run)
            self._outcomes.fail_some_waiting(run, waiting, unsent, step)
            if account is not None and run.waiting:
                run.charge_all(account)
                step.advance(run, RunEvent.QUEUED)

    def _take_out(self, sent: Sent, spans: Sequence[Span], withdrawn: Withdrawn, failure: Failure) -> None:
        """Takes these calls, by offset, out of a slice that no frame has carried; the rest keeps its place."""
        run = sent.run
        parts: list[Sent] = []
        kept = 0
        for lo, hi in [*spans, (sent.count, sent.count)]:
            if kept < lo:
                part = run.slice(sent.lo + kept, sent.lo + lo)
                self._outcomes.replaced(run, lo - kept, part, withdrawn.step)
                withdrawn.survivors.append(part)
                parts.append(sent.part(part))
                withdrawn.step.advance(part, RunEvent.SENT)
            if lo < hi:
                self._outcomes.failed(sent, lo, hi - lo, failure, withdrawn.step)
            kept = hi
        withdrawn.slices.append((sent, parts))

    def _ask(self, sent: Sent, failure: Failure, withdrawn: Withdrawn, lo: int = 0, count: int | None = None) -> None:
        if self._outcomes.ask(sent, failure, withdrawn.step, lo, count):
            withdrawn.asked.append(sent.run)

    def _follow_up(self, withdrawn: Withdrawn) -> None:
        """Takes slices out of their outboxes: their replicas have room, and their partitions may go on."""
        step, sender = withdrawn.step, self._intake.sender
        for run in withdrawn.survivors:
            self._intake.watch(run)
        for run in withdrawn.asked:
            run.asked_until = min(run.asked_until, step.now + PATIENCE_S)
            self._intake.watch(run)
        connected = self._topology.connected
        for sent, parts in withdrawn.slices:
            connected[sent.replica].withdraw(sent, parts)
        for sent, _ in withdrawn.slices:
            sender.settle(sent, 0, sent.count, step, is_last=True)
            replica = connected[sent.replica]
            replica.backend.load_changed(replica)
        for sent in withdrawn.look_ups:
            sender.settle(sent, 0, 1, step, is_last=True)
        for replica in dict.fromkeys(connected[sent.replica] for sent, _ in withdrawn.slices):
            sender.pump(replica, step)


def _is_asked_first(run: RouterRun) -> bool:
    """Whether the replica is asked what became of the run's calls before their caller gets a failure."""
    is_of_session = run.session is not None and run.shadow_of is None and run.state is not RunState.LEFT
    return run.options.stop_generation > 0 and is_of_session


def _cancelled_at(_: KnownReplica) -> Failure:
    return failures.CANCELLED_AT_REPLICA


def _within(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """The parts of the disjoint, ascending spans between two indices."""
    found: list[Span] = []
    for at in range(bisect_right(spans, start, key=_end), len(spans)):
        lo, hi = spans[at]
        if lo >= end:
            break
        found.append((max(lo, start), min(hi, end)))
    return found


def _spans(ids: Sequence[int], ranges: Sequence[Range]) -> list[Span]:
    """Indices (from, to) of the ascending ids that are in one of the merged ranges; disjoint, ascending.

    Costs nothing for ranges that are not between the first id and the last: a caller may have thousands of both.
    """
    spans: list[Span] = []
    for at in range(bisect_left(ranges, ids[0], key=_end), len(ranges)):
        first, last = ranges[at]
        if first > ids[-1]:
            break
        lo, hi = bisect_left(ids, first), bisect_right(ids, last)
        if lo == hi:
            continue
        if spans and spans[-1][1] == lo:
            spans[-1] = spans[-1][0], hi
        else:
            spans.append((lo, hi))
    return spans


def _end(span: Span) -> int:
    return span[1]
