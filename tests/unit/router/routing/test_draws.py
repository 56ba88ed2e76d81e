"""Random draws: how many of a run, and which."""

from __future__ import annotations

from collections import Counter
from math import comb, sqrt

import pytest

from router_service.core.sampling import binomial, contiguous
from tests.unit.router.parts import chance

DRAWS = 20_000


@pytest.mark.parametrize(
    ("count", "probability"),
    [
        pytest.param(10, 0.3, id="one draw a trial"),
        pytest.param(16, 0.9, id="one draw a trial, mirrored"),
        pytest.param(100, 0.05, id="waiting times"),
        pytest.param(100_000, 0.00002, id="waiting times, rare"),
        pytest.param(100, 0.97, id="waiting times, mirrored"),
        pytest.param(20, 0.5, id="rejection, where it begins"),
        pytest.param(1000, 0.01, id="rejection, small mean"),
        pytest.param(1000, 0.3, id="rejection"),
        pytest.param(1000, 0.7, id="rejection, mirrored"),
    ],
)
def test_counts_are_distributed_as_independent_trials(count: int, probability: float) -> None:
    draw = chance()
    seen = Counter(binomial(count, probability, draw) for _ in range(DRAWS))
    statistic, degrees, expected, observed = 0.0, -1, 0.0, 0
    for successes in range(count + 1):
        if successes > count * probability + 60 * sqrt(count * probability):
            break
        expected += DRAWS * comb(count, successes) * probability**successes * (1 - probability) ** (count - successes)
        observed += seen[successes]
        if expected >= 20:
            statistic += (observed - expected) ** 2 / expected
            degrees, expected, observed = degrees + 1, 0.0, 0
    assert degrees >= 2
    assert statistic < degrees + 4 * sqrt(2 * degrees)


@pytest.mark.parametrize(("count", "probability"), [(10**6, 0.25), (10**9, 0.5), (10**9, 1e-6), (10**12, 0.999)])
def test_large_counts_have_the_mean_and_the_variance(count: int, probability: float) -> None:
    draw = chance()
    drawn = [binomial(count, probability, draw) for _ in range(DRAWS)]
    mean, variance = count * probability, count * probability * (1 - probability)
    assert abs(sum(drawn) / DRAWS - mean) < 4 * sqrt(variance / DRAWS)
    assert abs(sum((each - mean) ** 2 for each in drawn) / DRAWS / variance - 1) < 4 * sqrt(2 / DRAWS)


@pytest.mark.parametrize("count", [0, 1, 16, 17, 10**9])
@pytest.mark.parametrize(("probability", "share"), [(0.0, 0), (-1e-18, 0), (1.0, 1), (1.0 + 1e-15, 1)])
def test_certain_outcomes_draw_nothing(count: int, probability: float, share: int) -> None:
    def never() -> float:
        raise AssertionError

    assert binomial(count, probability, never) == count * share


@pytest.mark.parametrize(("count", "probability"), [(1000, 0.009), (10**4, 0.5), (10**12, 0.5), (10**12, 1e-9)])
def test_a_draw_does_not_cost_more_for_more_calls(count: int, probability: float) -> None:
    draw, asked = chance(), 0

    def counted() -> float:
        nonlocal asked
        asked += 1
        return draw()

    for _ in range(1000):
        assert 0 <= binomial(count, probability, counted) <= count
    assert asked < 12_000


@pytest.mark.parametrize("counts", [(3,), (1, 1), (3, 0, 2), (0, 5), (5, 0), (2, 3, 4, 1)])
def test_slices_cover_the_run_once_and_each_position_is_equally_likely(counts: tuple[int, ...]) -> None:
    total = sum(counts)
    took = [Counter[int]() for _ in range(total)]
    for start in range(total):
        slices = list(contiguous(counts, start))
        assert all(lo < hi for _, (lo, hi) in slices)
        covered = [at for _, span in slices for at in range(*span)]
        assert sorted(covered) == list(range(total))
        for index, count in enumerate(counts):
            mine = [span for each, span in slices if each == index]
            assert sum(hi - lo for lo, hi in mine) == count
            assert len(mine) <= 2
            for lo, hi in mine:
                for at in range(lo, hi):
                    took[at][index] += 1
    for position in took:
        assert [position[index] for index in range(len(counts))] == list(counts)


def test_nothing_is_cut_out_of_nothing() -> None:
    assert list(contiguous((0, 0), 0)) == []
