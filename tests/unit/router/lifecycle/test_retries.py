"""The budget of calls that are executed again."""

from __future__ import annotations

import pytest

from router_service.core.replicas.backends import FLOOR, WINDOW_S, RetryBudget


@pytest.mark.parametrize(("answered", "asked", "granted"), [(0, 10, 3), (15, 10, 3), (20, 10, 4), (1000, 1000, 200)])
def test_a_fifth_of_the_calls_and_three_at_least(answered: int, asked: int, granted: int) -> None:
    budget = RetryBudget()
    if answered:
        budget.answered(answered, 1.0)
    assert budget.take(asked, 1.0) == granted
    assert budget.take(asked, 1.0) == 0


def test_what_was_taken_is_gone_whatever_the_portions() -> None:
    budget = RetryBudget()
    budget.answered(100, 1.0)
    assert [budget.take(7, 1.0) for _ in range(4)] == [7, 7, 6, 0]


def test_calls_that_end_well_earn_retries() -> None:
    budget = RetryBudget()
    assert budget.take(FLOOR, 1.0) == FLOOR
    budget.answered(15, 1.0)
    assert budget.take(1, 1.0) == 0
    budget.answered(5, 1.0)
    assert budget.take(2, 1.0) == 1


def test_both_are_forgotten_with_time() -> None:
    budget = RetryBudget()
    budget.answered(1000, 1.0)
    assert budget.take(200, 1.0) == 200
    assert budget.take(100, 1.0 + 20 * WINDOW_S) == FLOOR
