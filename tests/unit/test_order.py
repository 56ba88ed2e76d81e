"""The order of tests for several processes."""

from __future__ import annotations

import random

import pytest

from tests.support.order import ordered

COUNTS = {"arch": 9, "contract": 40, "e2e": 20, "kube": 5, "testing": 7, "unit": 120}
"""Files of each folder."""
ITEMS = [
    (folder, f"test_{number:03}.py", test)
    for folder, count in COUNTS.items()
    for number in range(count)
    for test in range(1 + number % 7)
]


def file_of(item: tuple[str, str, int]) -> tuple[str, str]:
    return item[:2]


def parts_of(count: int) -> list[list[tuple[str, str, int]]]:
    """As worksteal of pytest-xdist divides them first."""
    items, parts = ordered(ITEMS, file_of, count), []
    for left in range(count, 0, -1):
        size = len(items) // left
        parts.append(items[:size])
        del items[:size]
    return parts


@pytest.mark.parametrize("count", range(1, 9))
def test_each_test_runs_once_and_those_of_a_file_in_their_order(count: int) -> None:
    parts = parts_of(count)
    assert sorted(item for part in parts for item in part) == sorted(ITEMS)
    for part in parts:
        for file in {file_of(item) for item in part}:
            tests = [item for item in part if file_of(item) == file]
            assert tests == sorted(tests)


@pytest.mark.parametrize("count", range(2, 9))
def test_what_starts_processes_begins_in_every_other_part_and_each_part_ends_with_units(count: int) -> None:
    parts = parts_of(count)
    assert [part[0][0] == "kube" for part in parts] == [True] + [False] * (count - 1)
    for number, part in enumerate(parts):
        folders = list(dict.fromkeys(item[0] for item in part))
        assert folders[-1] == "unit"
        assert {"kube", "e2e"}.isdisjoint(folders) == bool(number % 2)


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("folder", ["arch", "kube"])
def test_tests_that_share_what_is_costly_are_in_one_part(folder: str, count: int) -> None:
    assert sum(any(item[0] == folder for item in part) for part in parts_of(count)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_any_choice_of_tests_is_kept(seed: int) -> None:
    chance = random.Random(seed)
    some = [item for item in ITEMS if item[0] in chance.sample([*COUNTS], 2) and chance.random() < 0.5]
    for count in range(1, 9):
        assert sorted(ordered(some, file_of, count)) == some
    assert ordered([], file_of, 4) == []
