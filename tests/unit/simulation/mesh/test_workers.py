"""Many seeds in processes of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from simulation.mesh import workers
from simulation.mesh.workers import SEEDS_AT_A_TIME, run_seeds

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_each_seed_is_run_once() -> None:
    seeds = range(7, 7 + SEEDS_AT_A_TIME + 2)

    found = list(run_seeds(seeds, 1.5, "stop_lanes", 2))

    assert sorted(each.seed for each in found) == list(seeds)
    assert all(each.calls and each.digest for each in found)


def test_seeds_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def seeds() -> Iterator[int]:
        for seed in itertools.count(1):
            taken.append(seed)
            yield seed

    results = run_seeds(seeds(), 1.5, "stop_lanes", 1)
    next(results)
    results.close()

    assert len(taken) <= 2 * SEEDS_AT_A_TIME


def test_a_worker_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match="a worker ended with status 1"):
        list(run_seeds([1], 1.5, "nonsense", 1))


def test_nothing_is_started_where_there_are_no_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_Worker", None)

    assert list(run_seeds([], 1.5, "", 2)) == []
