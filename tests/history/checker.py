"""The checker: all invariants over one history. Pure.

history = read_history(folder)
assert_holds(history, Load(clients=8, outcomes_per_s=500))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from tests.history.executions import (
    check_at_most_once,
    check_gaps,
    check_no_late_start,
    check_one_at_a_time,
    check_order,
)
from tests.history.load import check_faults, check_load
from tests.history.model import Call, History, Load, Violation
from tests.history.outcomes import check_in_time, check_one_outcome, check_truth

SHOWN: Final = 8
"""Violations of each invariant that a failed assertion tells of; the others are counted."""

INVARIANTS: Final[Sequence[Callable[[History], Iterator[Violation]]]] = (
    check_one_outcome,
    check_in_time,
    check_truth,
    check_at_most_once,
    check_order,
    check_gaps,
    check_one_at_a_time,
    check_no_late_start,
)
"""What must hold whatever breaks."""


def check(history: History, load: Load | None = None) -> list[Violation]:
    """Everything that does not hold. With `load`: also whether the run counts at all."""
    violations = list(chain.from_iterable(invariant(history) for invariant in INVARIANTS))
    if load is not None:
        violations += [*check_load(history, load), *check_faults(history)]
    return violations


def assert_holds(history: History, load: Load | None = None) -> None:
    """Raises AssertionError, which tells what does not hold."""
    violations = check(history, load)
    assert not violations, told(violations)


def assert_results(history: History, of: Callable[[Call], bool] = lambda _call: True) -> None:
    """Asserts that every call (of those that are meant) got a result: nothing failed."""
    calls = {call.tag: call for call in history.calls}
    failed = [
        Violation(invariant="failed", text=f"{calls[it.tag]} got {it} at {history.since_start(it.at)}", tags=(it.tag,))
        for it in history.outcomes
        if not it.is_result and it.tag in calls and of(calls[it.tag])
    ]
    assert not failed, told(failed)


def told(violations: Sequence[Violation]) -> str:
    """Violations as lines, for a person."""
    by_invariant: dict[str, list[Violation]] = {}
    for violation in violations:
        by_invariant.setdefault(violation.invariant, []).append(violation)
    lines = [f"{len(violations)} violations:"]
    for invariant, those in by_invariant.items():
        lines += map(str, those[:SHOWN])
        if len(those) > SHOWN:
            lines.append(f"{invariant}: ... and {len(those) - SHOWN} more")
    return "\n  ".join(lines)
