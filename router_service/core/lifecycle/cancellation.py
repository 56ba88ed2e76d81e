"""Calls that end before they are answered: their deadline passed, or their caller cancelled them.

Invariants: a call that no frame has carried is withdrawn and was never executed; a call at a replica is abandoned: the
caller gets its failure immediately, the replica gets a cancel, and its answer is dropped. In a lane that stops at
failures, however, only the replica knows whether a call has failed: it is asked, and the caller gets the replica's
answer (`CallerOutcomes.ask`).
Owner: the scheduler.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from router_service.core import failures
from router_service.core.lifecycle.outcomes import CallerOutcomes
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.runs import CallerBook, RouterRun, Sent, SliceHolder
from slotmesh.calls.id_ranges import Range, holds, merged
from slotmesh.errors import Failure

Span = tuple[int, int]
"""Indices of a run or a slice, from the first up to the second: as slices of lists have them."""

PATIENCE_S = 0.25
"""How long the router waits for a replica that it has asked what became of calls."""


@dataclass(slots=True)
class Withdrawn:
    """What left the outboxes of replicas, and must be followed up."""

    slices: list[Sent] = field(default_factory=list)
    """Their replicas have room again."""
    survivors: list[RouterRun] = field(default_factory=list)
    """Calls of these slices that go on, as runs of their own, whose deadlines must be watched."""
    asked: list[RouterRun] = field(default_factory=list)
    """Runs whose replicas were asked; the wait for their answers is bounded."""


def end_run(
    run: RouterRun,
    outcomes: CallerOutcomes,
    unsent: Failure,
    sent: Callable[[SliceHolder], Failure],
    withdrawn: Withdrawn,
) -> None:
    """Ends every open call of the run: `unsent` for what never left, `sent` for what is at a replica."""
    drop_waiting(run, outcomes, unsent)
    for each in list(run.sents):
        if each.first and _is_asked_first(run):
            _ask(each, outcomes, sent(each.replica), withdrawn)
        elif each.first:
            # A reservation runs nothing: for its caller it makes no difference where it was.
            outcomes.abandon(each, unsent if run.reserves else sent(each.replica))
        else:
            for lo, count in each.open_parts():
                outcomes.failed(each, lo, count, unsent)
            each.replica.withdraw(each)
            withdrawn.slices.append(each)


def cancel_caller(caller: CallerBook, outcomes: CallerOutcomes, *, is_overdue: bool = False) -> Withdrawn:
    """Ends all calls of the caller that have no outcome; `is_overdue`: since the deadline of its rpc has passed."""
    withdrawn = Withdrawn()
    for run in list(caller.runs):
        if is_overdue and not run.reserves:
            running = partial(failures.deadline_running, run)
            end_run(run, outcomes, failures.deadline_in_queue(run), running, withdrawn)
        else:
            end_run(run, outcomes, failures.CANCELLED, _cancelled_at, withdrawn)
    return withdrawn


def leave(caller: CallerBook, outcomes: CallerOutcomes) -> Withdrawn:
    """The connection of a session has ended. Calls at replicas go on; the client will send the others again.

    Calls that stream their values end with the connection.
    """
    withdrawn = Withdrawn()
    for run in list(caller.runs):
        if run.options.streaming:
            run.has_left = True
            end_run(run, outcomes, failures.CANCELLED, _cancelled_at, withdrawn)
            continue
        uncharge(run)
        run.ids, run.payloads = run.ids[: run.cursor], run.payloads[: run.cursor]
        for each in list(run.sents):
            if each.first:
                each.abandon(0, each.count)
            else:
                each.replica.withdraw(each)
                withdrawn.slices.append(each)
        outcomes.forget(run)
    return withdrawn


def cancel_calls(caller: CallerBook, ranges: Iterable[Range], outcomes: CallerOutcomes) -> Withdrawn:
    """Ends the calls whose ids are in one of the ranges, both ends included; unknown and ended ones are left alone."""
    wanted = merged(ranges)
    withdrawn = Withdrawn()
    if not wanted:
        return withdrawn
    first, last = wanted[0][0], wanted[-1][1]
    for run in list(caller.runs):
        ids = run.ids
        if not ids or ids[0] > last or ids[-1] < first:
            continue
        spans = _spans(ids, wanted)
        if spans == [(0, len(ids))]:
            end_run(run, outcomes, failures.CANCELLED, _cancelled_at, withdrawn)
        elif spans:
            _end_some(run, spans, outcomes, withdrawn, failures.CANCELLED, failures.CANCELLED_AT_REPLICA)
    return withdrawn


def stop_after(caller: CallerBook, key: str, outcomes: CallerOutcomes) -> Withdrawn:
    """Fails later calls of the key and generation that no frame has carried; the replica fails the others."""
    withdrawn = Withdrawn()
    failed = caller.stops[key]
    for run in list(caller.runs):
        options, ids = run.options, run.ids
        first = failed.get(options.stop_generation)
        if options.ordering_key != key or first is None:
            continue
        if ids and ids[-1] > first:
            spans = [(bisect_right(ids, first), len(ids))]
            _end_some(run, spans, outcomes, withdrawn, failures.PREDECESSOR_FAILED)
    return withdrawn


def drop_waiting(run: RouterRun, outcomes: CallerOutcomes, failure: Failure) -> None:
    """Fails all that waits."""
    uncharge(run)
    outcomes.fail_waiting(run, failure)


def uncharge(run: RouterRun) -> None:
    """The run's waiting calls no longer wait where they were charged."""
    if run.account is not None:
        if run.waiting:
            run.account.release(run, run.waiting)
        run.account = None


def stop_asking(replica: RoutedReplica, ranges: Iterable[Range], outcomes: CallerOutcomes) -> None:
    """The replica starts nothing behind these calls (by run id) of lanes that stop: their callers get the failures."""
    wanted = merged(ranges)
    for sent in list(replica.inflight.values()):
        if sent.asked:
            outcomes.stop_asking(sent, [at for at in sent.asked if holds(wanted, sent.first + at)])


def _is_asked_first(run: RouterRun) -> bool:
    """Whether the replica is asked what became of the run's calls before their caller gets a failure."""
    return run.options.stop_generation > 0 and run.session is not None and run.shadow_of is None and not run.has_left


def _ask(
    sent: Sent, outcomes: CallerOutcomes, failure: Failure, withdrawn: Withdrawn, lo: int = 0, count: int | None = None
) -> None:
    if outcomes.ask(sent, failure, lo, count):
        withdrawn.asked.append(sent.run)


def _cancelled_at(_: SliceHolder) -> Failure:
    return failures.CANCELLED_AT_REPLICA


def _end_some(
    run: RouterRun,
    spans: Sequence[Span],
    outcomes: CallerOutcomes,
    withdrawn: Withdrawn,
    unsent: Failure,
    sent: Failure | None = None,
) -> None:
    """Ends the open calls at these indices of the run; the others continue.

    `unsent` is the failure of calls that never left, `sent` of those at a replica; without it, the latter continue.
    """
    for each in list(run.sents):
        inside = [(lo - each.lo, hi - each.lo) for lo, hi in _within(spans, each.lo, each.lo + each.count)]
        if not each.first:
            if inside:
                _take_out(each, inside, outcomes, withdrawn, unsent)
        elif sent is not None:
            for lo, hi in inside:
                if _is_asked_first(run):
                    _ask(each, outcomes, sent, withdrawn, lo, hi - lo)
                else:
                    outcomes.abandon(each, sent, lo, hi - lo)
    waiting = _within(spans, run.cursor, len(run.ids))
    if waiting:
        account = run.account
        uncharge(run)
        outcomes.fail_some_waiting(run, waiting, unsent)
        if account is not None and run.waiting:
            account.charge_all(run)


def _take_out(
    sent: Sent, spans: Sequence[Span], outcomes: CallerOutcomes, withdrawn: Withdrawn, failure: Failure
) -> None:
    """Takes these calls, by offset, out of a slice that no frame has carried; the rest keeps its place."""
    run = sent.run
    parts: list[Sent] = []
    kept = 0
    for lo, hi in [*spans, (sent.count, sent.count)]:
        if kept < lo:
            part = run.slice(sent.lo + kept, sent.lo + lo)
            outcomes.replaced(run, lo - kept, part)
            withdrawn.survivors.append(part)
            parts.append(sent.replica.part_of(sent, part))
        if lo < hi:
            outcomes.failed(sent, lo, hi - lo, failure)
        kept = hi
    sent.replica.withdraw(sent, parts)
    withdrawn.slices.append(sent)


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
