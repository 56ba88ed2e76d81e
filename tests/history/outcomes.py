"""Invariants of outcomes: each call gets exactly one, its own, in time, and it tells the truth. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from tests.history.model import Call, Execution, History, Outcome, Violation

LATE_S: Final = 1.0
"""How long after its deadline a call's outcome may come, seconds."""


def check_one_outcome(history: History) -> Iterator[Violation]:
    """Each call gets exactly one outcome, and nobody hears of a call that was not made."""
    known = {call.tag for call in history.calls}
    by_tag: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in history.outcomes:
        by_tag[outcome.tag].append(outcome)
    for call in history.calls:
        heard = by_tag[call.tag]
        if not heard:
            text = f"{call}, sent at {history.since_start(call.sent_at)}, has no outcome"
            yield Violation(invariant="lost", text=text, tags=(call.tag,))
        elif len(heard) > 1:
            told = " and ".join(f"{it} at {history.since_start(it.at)}" for it in heard)
            yield Violation(invariant="doubled", text=f"{call} has {len(heard)} outcomes: {told}", tags=(call.tag,))
    for tag in by_tag.keys() - known:
        text = f"an outcome came for {tag!r}, which nobody called: {by_tag[tag][0]}"
        yield Violation(invariant="unknown call", text=text, tags=(tag,))
    for tag, count in Counter(call.tag for call in history.calls).items():
        if count > 1:
            yield Violation(invariant="unknown call", text=f"{count} calls have the tag {tag!r}", tags=(tag,))


def check_in_time(history: History) -> Iterator[Violation]:
    """No outcome is later than the call's deadline and a second, where the machine is not busy."""
    calls = {call.tag: call for call in history.calls}
    for outcome in history.outcomes:
        call = calls.get(outcome.tag)
        if call is not None and call.deadline is not None and outcome.at > call.deadline + LATE_S * history.patience:
            late = outcome.at - call.deadline
            text = f"{call} got {outcome} {late:.3f} s after its deadline, at {history.since_start(outcome.at)}"
            yield Violation(invariant="late", text=text, tags=(call.tag,))


def check_truth(history: History) -> Iterator[Violation]:
    """NO was not executed, YES and results were, and each result is that of its own call."""
    calls = {call.tag: call for call in history.calls}
    executions: dict[str, list[Execution]] = defaultdict(list)
    for execution in history.executions:
        executions[execution.tag].append(execution)
    for outcome in history.outcomes:
        call = calls.get(outcome.tag)
        if call is not None and (text := _lie(history, call, outcome, executions[outcome.tag])):
            yield Violation(invariant="lie", text=text, tags=(call.tag,))


def _lie(history: History, call: Call, outcome: Outcome, executions: list[Execution]) -> str:
    """What is not true of an outcome; empty where all is."""
    when = history.since_start(outcome.at)
    if outcome.is_result:
        if outcome.reply is not None and outcome.reply != call.tag:
            return f"{call} got the result of {outcome.reply!r} at {when}"
        return "" if executions else f"{call} got a result at {when}, and no handler executed it"
    if outcome.executed == "NO" and executions:
        ran = " and ".join(f"at {history.since_start(it.started_at)} by pid {it.pid}" for it in executions)
        return f"{call} ended in {outcome} at {when}, but it was executed {ran}"
    if outcome.executed == "YES" and not executions:
        return f"{call} ended in {outcome} at {when}, and no handler executed it"
    if outcome.executed not in {"NO", "UNKNOWN", "YES"}:
        return f"{call} ended in {outcome.reason} at {when}, which says {outcome.executed!r} about execution"
    return ""
