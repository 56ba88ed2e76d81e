"""Which long tests run."""

from __future__ import annotations

import pytest

from tests.support.tiers import chosen

TESTS = {f"tests/e2e/test_order.py::test_{number}[a/b c]" for number in range(300)}


def test_all_and_none() -> None:
    assert chosen("all", TESTS) == TESTS
    assert chosen("none", TESTS) == set()
    assert chosen("1/7", TESTS) == TESTS


@pytest.mark.parametrize("division", [0, 1, 70_000])
def test_as_many_seeds_as_parts_run_each_test_once(division: int) -> None:
    parts = [chosen(f"8/{8 * division + number}", TESTS) for number in range(8)]
    assert set().union(*parts) == TESTS
    assert sum(map(len, parts)) == len(TESTS)
    assert all(15 <= len(part) <= 60 for part in parts), "no part is much larger than another one"


def test_the_next_division_is_another_one_and_each_can_be_repeated() -> None:
    assert chosen("8/3", TESTS) == chosen("8/3", sorted(TESTS))
    assert len(chosen("8/3", TESTS) & chosen("8/11", TESTS)) < 20


def test_what_is_chosen_does_not_depend_on_other_tests() -> None:
    one = min(chosen("8/3", TESTS))
    assert chosen("8/3", {one}) == {one}


@pytest.mark.parametrize("choice", ["", "some", "8", "8/", "/3", "0/3", "8/-1", "8/3/1", " 8/3", "99999/1"])
def test_other_choices_are_refused_with_the_forms(choice: str) -> None:
    with pytest.raises(ValueError, match="--long is none, all, or N/SEED"):
        chosen(choice, TESTS)
