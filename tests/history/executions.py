"""Invariants of executions: at most once, in order, one at a time, nothing left out without a failure, none late. Pure.

A call that is idempotent may be executed again, by the next owner; its lane then goes on from there, in order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from tests.history.model import Call, Execution, Fault, History, Lane, Outcome, Violation

STOP: Final = "SIGSTOP"
"""How faults begin in which a process stood still."""
LATE_START_S: Final = 0.5
"""How long after its outcome a call may still start: the ways of a message, and busy processors."""


def check_at_most_once(history: History) -> Iterator[Violation]:
    """A call that is not idempotent is executed once at most, and nothing is executed that nobody called."""
    calls = {call.tag: call for call in history.calls}
    by_tag: dict[str, list[Execution]] = defaultdict(list)
    for execution in history.executions:
        by_tag[execution.tag].append(execution)
    for tag, executions in by_tag.items():
        call = calls.get(tag)
        if call is None:
            text = f"{tag!r} was executed by pid {executions[0].pid}, and nobody called it"
            yield Violation(invariant="unknown call", text=text, tags=(tag,))
        elif len(executions) > 1 and not call.idempotent:
            told = " and ".join(_told(history, it) for it in executions)
            text = f"{call} was executed {len(executions)} times: {told}"
            yield Violation(invariant="executed twice", text=text, tags=(tag,))


def check_order(history: History) -> Iterator[Violation]:
    """Calls of a lane start in the order in which they were made."""
    for lane, steps in _lanes(history).items():
        yield from _check_lane_order(history, lane, steps)


def check_gaps(history: History) -> Iterator[Violation]:
    """What a lane left out ended in a failure that does not claim that it was executed."""
    outcomes = {outcome.tag: outcome for outcome in history.outcomes}
    executed = {execution.tag for execution in history.executions}
    by_lane: dict[Lane, list[Call]] = defaultdict(list)
    for call in history.calls:
        if call.key:
            by_lane[call.lane].append(call)
    for calls in by_lane.values():
        last = max((call.sequence for call in calls if call.tag in executed), default=-1)
        for call in calls:
            if call.sequence < last and call.tag not in executed and not _explains_gap(outcomes.get(call.tag)):
                got = outcomes.get(call.tag, "no outcome")
                text = f"{call} was left out and number {last} was executed, but it got {got}"
                yield Violation(invariant="gap", text=text, tags=(call.tag,))


def check_one_at_a_time(history: History) -> Iterator[Violation]:
    """Of one key never two executions at the same time, whoever called and wherever they ran."""
    endpoints = {call.tag: call.endpoint for call in history.calls}
    by_key: dict[tuple[str, str], list[Execution]] = defaultdict(list)
    for execution in history.executions:
        if execution.key:
            by_key[endpoints.get(execution.tag, ""), execution.key].append(execution)
    for (_, key), executions in by_key.items():
        longest: Execution | None = None
        for execution in sorted(executions, key=attrgetter("started_at")):
            if longest is not None and execution.started_at < _end(history, longest):
                text = (
                    f"key {key!r} was executed twice at a time: {execution.tag!r} {_told(history, execution)}, "
                    f"while {longest.tag!r} ran, {_told(history, longest)}"
                )
                yield Violation(invariant="overlap", text=text, tags=(longest.tag, execution.tag))
            if longest is None or _end(history, execution) > _end(history, longest):
                longest = execution


def check_no_late_start(history: History) -> Iterator[Violation]:
    """Nothing starts when its caller has an outcome already, as at a replica that was cut off and comes back.

    Each time that a process stands still, one call may be past the last check and before its handler's code: it starts
    when the process goes on, and its caller was told that this is unknown. So is the caller of a call that was held up
    on its way to a router or a replica: its timeout counts there from its arrival on.
    """
    spare_s = LATE_START_S * history.patience
    caught: set[tuple[int, float]] = set()
    calls = {call.tag: call for call in history.calls}
    first: dict[str, Outcome] = {}
    for outcome in history.outcomes:
        first.setdefault(outcome.tag, outcome)
    for execution in history.executions:
        answer, call = first.get(execution.tag), calls.get(execution.tag)
        if answer is not None and call is not None and execution.started_at > answer.at + spare_s:
            stop = _newest_stop(history, execution)
            if stop is not None and answer.executed == "UNKNOWN" and (execution.pid, stop.at) not in caught:
                caught.add((execution.pid, stop.at))
                continue
            if answer.executed == "UNKNOWN" and _was_held_up(history, call, execution):
                continue
            late = execution.started_at - answer.at
            text = f"{call} was executed {_told(history, execution)}, {late:.3f} s after its caller got {answer}"
            yield Violation(invariant="late start", text=text, tags=(call.tag,))


def _was_held_up(history: History, call: Call, execution: Execution) -> bool:
    """Whether the call may have come to its router, or its replica, so late that it was in time there."""
    if call.deadline is None:
        return False
    way_s = LATE_START_S * history.patience
    spare_s = call.deadline - call.sent_at + way_s
    return any(
        execution.started_at <= it.at + it.holds_calls_s + way_s
        and it.at - way_s <= call.sent_at <= it.cleared_at
        and execution.started_at <= it.cleared_at + spare_s
        for it in history.faults
    )


def _newest_stop(history: History, execution: Execution) -> Fault | None:
    """The time in which some process had stood still before the execution began; None where none had."""
    stops = (it for it in history.faults if it.what.startswith(STOP) and it.at < execution.started_at)
    return max(stops, key=attrgetter("at"), default=None)


class _Step(NamedTuple):
    call: Call
    execution: Execution


def _lanes(history: History) -> dict[Lane, list[_Step]]:
    """Executions of keyed calls by lane, by start."""
    calls = {call.tag: call for call in history.calls}
    lanes: dict[Lane, list[_Step]] = defaultdict(list)
    for execution in sorted(history.executions, key=attrgetter("started_at")):
        call = calls.get(execution.tag)
        if call is not None and call.key:
            lanes[call.lane].append(_Step(call, execution))
    return lanes


def _check_lane_order(history: History, lane: Lane, steps: Sequence[_Step]) -> Iterator[Violation]:
    """Each step goes forward, or back to an idempotent call that runs again: then all before it are done with."""
    newest = steps[0]
    seen: set[int] = set()
    passed: dict[int, _Step] = {}  # numbers that nobody may execute again, and what went by them
    for before, step in pairwise([steps[0], *steps]):
        last, number = before.call.sequence, step.call.sequence
        repeats = number in seen
        overtaken = passed.get(number) if repeats else newest if number < newest.call.sequence else None
        if overtaken is not None and (step.call.idempotent or not repeats):  # others ran twice: told elsewhere
            text = (
                f"{lane}: number {number} ({step.call.tag!r}) was executed {_told(history, step.execution)}, "
                f"after number {overtaken.call.sequence}, {_told(history, overtaken.execution)}"
            )
            yield Violation(invariant="order", text=text, tags=(overtaken.call.tag, step.call.tag))
        begin = last + 1 if number > last else 0
        for skipped in seen.intersection(range(begin, number)) - passed.keys():
            passed[skipped] = step
        if number > newest.call.sequence:
            newest = step
        seen.add(number)


def _explains_gap(outcome: Outcome | None) -> bool:
    return outcome is not None and not outcome.is_result and outcome.executed != "YES"


def _end(history: History, execution: Execution) -> float:
    """Until when it can have run. What was not ended by a known death counts as running for ever."""
    if execution.ended_at is not None:
        return execution.ended_at
    return history.deaths.get(execution.pid, math.inf)


def _told(history: History, execution: Execution) -> str:
    """When and where, for a person."""
    if execution.ended_at is not None:
        until = history.since_start(execution.ended_at)
    elif execution.pid in history.deaths:
        until = f"its process was killed at {history.since_start(history.deaths[execution.pid])}"
    else:
        until = "it never ended"
    return f"by pid {execution.pid} at {history.since_start(execution.started_at)} (until {until})"
