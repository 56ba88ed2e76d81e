"""What must hold of every run: the history checker's invariants, and those that only a simulation can see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Final

from msgspec import structs

from simulation.mesh.history import FINISHED, Recorder
from slotmesh.client.stream.abandoned_calls import STOP_SLACK_S
from tests.history.executions import check_at_most_once, check_gaps, check_one_at_a_time, check_order
from tests.history.model import Call, Execution, Lane, Outcome, Violation
from tests.history.outcomes import check_in_time, check_one_outcome, check_truth

SLACK_S: Final = 0.5
ENDING_S: Final = 0.05
"""How long a process still is there that has reported its end."""
RECALL_S: Final = 0.1
"""What word of a cancel may take to a replica, while nothing is broken."""

_NOBODY_ASKED = frozenset({"CANCELLED", "INTERNAL", "BAD_REQUEST", "WINDOW_EXCEEDED", "DUPLICATE_CALL_ID"})
"""Failures for which these callers have given no reason."""


def judge(recorder: Recorder, *, is_calm: bool) -> list[Violation]:
    """Everything that does not hold. `is_calm`: nothing was broken."""
    history = recorder.history()
    found: list[Violation] = []
    for check in (check_one_outcome, check_truth, check_order, check_one_at_a_time):
        found += check(history)
    found += [each for each in check_at_most_once(history) if recorder.attempts.keys().isdisjoint(each.tags)]
    found += _repeated(recorder)
    found += _doubled(recorder)
    found += check_in_time(replace(history, calls=[_patient(call, recorder) for call in history.calls]))
    # A call that its caller gave up may be left out, or executed, as it happens.
    found += [each for each in check_gaps(history) if not recorder.given_up.intersection(each.tags)]
    found += _stopped_lanes(recorder, is_calm=is_calm)
    found += _reasons(recorder)
    found += _stuck(recorder)
    return found


def _repeated(recorder: Recorder) -> Iterator[Violation]:
    """A call with a request id is executed once, and again only for an attempt after the end of its replica."""
    executions: dict[str, list[Execution]] = defaultdict(list)
    for execution in recorder.executions:
        if execution.tag in recorder.attempts:
            executions[execution.tag].append(execution)
    for tag, each in executions.items():
        for before, after in pairwise(sorted(each, key=lambda it: it.started_at)):
            ended_at = recorder.deaths.get(before.pid, inf) - ENDING_S
            if not any(ended_at < at <= after.started_at for at in recorder.attempts[tag]):
                text = (
                    f"{recorder.calls[tag]} was executed by pid {before.pid} at {before.started_at:.3f}, and again by"
                    f" pid {after.pid} at {after.started_at:.3f}"
                )
                yield Violation(invariant="repeated", text=text, tags=(tag,))


def _doubled(recorder: Recorder) -> Iterator[Violation]:
    """A request id of a reservation holds at most one slot."""
    for tag, replicas in recorder.doubled.items():
        text = f"{recorder.calls[tag]} held slots at {' and '.join(replicas)} under one request id"
        yield Violation(invariant="one slot", text=text, tags=(tag,))


def _stuck(recorder: Recorder) -> Iterator[Violation]:
    """Keys work again when nothing is broken any more."""
    for outcome in recorder.outcomes:
        if outcome.tag in recorder.must_succeed and not outcome.is_result:
            text = f"{recorder.calls[outcome.tag]} got {outcome} at {outcome.at:.3f}, and nothing kept it from a result"
            yield Violation(invariant="stuck", text=text, tags=(outcome.tag,))


def _patient(call: Call, recorder: Recorder) -> Call:
    """The client itself gives a call up a second after its deadline, and later in a lane that stops."""
    if call.deadline is None:
        return call
    slack_s = SLACK_S + (STOP_SLACK_S if call.tag in recorder.stop_lanes else 0.0)
    return structs.replace(call, deadline=call.deadline + slack_s)


def _stopped_lanes(recorder: Recorder, *, is_calm: bool) -> Iterator[Violation]:
    """In a lane that stops, nothing is executed after a call that failed, up to the next reset."""
    executions = {it.tag: number for number, it in enumerate(recorder.executions)}
    outcomes = {it.tag: it for it in recorder.outcomes}
    lanes: dict[tuple[Lane, int], list[Call]] = defaultdict(list)
    for tag, generation in recorder.stop_lanes.items():
        lanes[recorder.calls[tag].lane, generation].append(recorder.calls[tag])
    for calls in lanes.values():
        failed: Call | None = None
        for call in sorted(calls, key=lambda it: it.sequence):
            if failed is not None and (number := executions.get(call.tag)) is not None:
                at = recorder.executions[number].started_at
                text = f"{call} was executed at {at:.3f} after {failed} got {outcomes[failed.tag]}"
                yield Violation(invariant="stopped lane", text=text, tags=(failed.tag, call.tag))
                break
            outcome = outcomes.get(call.tag)
            if failed is None and outcome is not None and not outcome.is_result:
                number = executions.get(call.tag)
                if number is None or not _went_well(recorder, number, call, outcome, is_calm=is_calm):
                    failed = call


def _went_well(recorder: Recorder, number: int, call: Call, outcome: Outcome, *, is_calm: bool) -> bool:
    """Where the call ran it went well, and in time; only its caller could not know.

    What came after it was right then. While nothing is broken there is nothing that a caller could not know, but for
    how a call ended that it has cancelled in this very moment. A timeout counts from the arrival at a router, which may
    hang before it reads, and what is left of it from the arrival at the replica.
    """
    ended_at = recorder.executions[number].ended_at
    if recorder.endings[number] != FINISHED or outcome.executed != "UNKNOWN" or ended_at is None:
        return False
    if call.tag in recorder.given_up:
        return not is_calm or ended_at <= outcome.at + RECALL_S
    return not is_calm and (call.deadline is None or ended_at <= recorder.due.get(call.tag, call.deadline) + RECALL_S)


def _reasons(recorder: Recorder) -> Iterator[Violation]:
    """Nobody hears that a call was cancelled that nobody has cancelled; nor of mistakes that nobody has made."""
    for outcome in recorder.outcomes:
        if outcome.reason in _NOBODY_ASKED and outcome.tag not in recorder.given_up:
            text = f"{recorder.calls[outcome.tag]} got {outcome} at {outcome.at:.3f}, for which it gave no reason"
            yield Violation(invariant="reason", text=text, tags=(outcome.tag,))
