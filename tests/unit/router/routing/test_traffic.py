"""Weights and shadows: what goes where, and that no draw depends on another one."""

from __future__ import annotations

from collections import Counter
from itertools import islice, repeat
from math import sqrt

import pytest

from router_service.core.routing.traffic import TrafficShares
from tests.unit.router.parts import chance

WEIGHTS = {"a": 0.9, "b": 0.09, "c": 0.01}


def sigmas(observed: int, trials: int, probability: float) -> float:
    """How far from what was to be expected."""
    return abs(observed - trials * probability) / sqrt(trials * probability * (1 - probability))


def chi_square(table: Counter[tuple[bool, bool]]) -> float:
    """Of independence, one degree of freedom."""
    total = table.total()
    rows = {row: table[row, True] + table[row, False] for row in (True, False)}
    columns = {column: table[True, column] + table[False, column] for column in (True, False)}
    return sum(
        (table[row, column] - rows[row] * columns[column] / total) ** 2 / (rows[row] * columns[column] / total)
        for row in rows
        for column in columns
    )


MOST = 10.83
"""One chi-square in a thousand is above, with one degree of freedom."""


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_every_call_of_a_run_goes_somewhere_once(count: int) -> None:
    traffic, draw = TrafficShares(WEIGHTS, {}), chance()
    for _ in range(500):
        slices = traffic.split(count, draw)
        assert sorted(at for _, span in slices for at in range(*span)) == list(range(count))


@pytest.mark.parametrize("count", [1, 10, 1000, 100_000])
def test_100_000_calls_are_split_within_four_standard_deviations(count: int) -> None:
    traffic, draw = TrafficShares(WEIGHTS, {}), chance(count)
    shares: Counter[str] = Counter()
    for _ in range(100_000 // count):
        for name, (lo, hi) in traffic.split(count, draw):
            shares[name] += hi - lo
    assert shares.total() == 100_000
    for name, weight in WEIGHTS.items():
        assert sigmas(shares[name], 100_000, weight) < 4, shares


def test_every_position_of_a_run_has_the_weights() -> None:
    traffic, draw, runs = TrafficShares({"a": 0.7, "b": 0.2, "c": 0.1}, {}), chance(), 20_000
    took: Counter[tuple[int, str]] = Counter()
    for _ in range(runs):
        for name, span in traffic.split(6, draw):
            took.update(zip(range(*span), repeat(name)))
    for position in range(6):
        for name, weight in traffic.weights.items():
            assert sigmas(took[position, name], runs, weight) < 4


@pytest.mark.parametrize("count", [1, 10])
def test_shadows_are_independent_of_the_primary_and_of_each_other(count: int) -> None:
    traffic, draw = TrafficShares({"a": 0.5, "b": 0.5}, {"x": 0.2, "y": 0.3}), chance(count)
    position, runs = count // 2, 30_000
    beside_primary: Counter[tuple[bool, bool]] = Counter()
    beside_each_other: Counter[tuple[bool, bool]] = Counter()
    for _ in range(runs):
        (primary,) = (name for name, (lo, hi) in traffic.split(count, draw) if lo <= position < hi)
        copied = {name for name, (lo, hi) in traffic.copies(count, draw) if lo <= position < hi}
        beside_primary[primary == "a", "x" in copied] += 1
        beside_each_other["x" in copied, "y" in copied] += 1
    assert chi_square(beside_primary) < MOST
    assert chi_square(beside_each_other) < MOST
    assert sigmas(sum(beside_primary[row, True] for row in (True, False)), runs, 0.2) < 4
    assert sigmas(sum(beside_each_other[row, True] for row in (True, False)), runs, 0.3) < 4


def test_a_shadow_of_all_calls_gets_each_of_them_once() -> None:
    traffic, draw = TrafficShares({"a": 1.0}, {"x": 1.0}), chance()
    for _ in range(100):
        copied = [at for _, span in traffic.copies(10, draw) for at in range(*span)]
        assert sorted(copied) == list(range(10))


def test_what_has_no_weight_gets_nothing() -> None:
    traffic, draw = TrafficShares({"a": 0.0, "b": 1.0, "c": 0.0}, {"x": 0.0}), chance()
    assert traffic.only == "b"
    for count in (1, 50):
        assert {name for name, _ in traffic.split(count, draw)} == {"b"}
    assert list(traffic.copies(50, draw)) == []
    assert {traffic.of_shard(str(key)) for key in range(100)} == {"b"}


def test_without_a_policy_nothing_goes_anywhere() -> None:
    traffic = TrafficShares({}, {})
    assert traffic.split(5, chance()) == []
    assert traffic.of_shard("key") is None
    assert traffic.only is None


@pytest.mark.parametrize("tiny", [1e-9, 1e-17, 1e-20, 5e-324])
def test_weights_too_small_to_add_up_do_no_harm(tiny: float) -> None:
    traffic, draw = TrafficShares({"a": 0.5, "b": 0.5, "c": tiny, "d": tiny}, {}), chance()
    shares = Counter(
        name for _ in range(200) for name, (lo, hi) in traffic.split(50, draw) for _ in islice(repeat(1), hi - lo)
    )
    assert set(shares) == {"a", "b"}
    assert sigmas(shares["a"], 10_000, 0.5) < 4


def test_the_last_number_below_one_is_no_call_of_nobody() -> None:
    traffic = TrafficShares({"a": 0.1, "b": 0.2, "c": 0.7}, {})
    almost_one = 1 - 2**-53
    assert traffic.split(1, lambda: almost_one) == [("c", (0, 1))]
    assert traffic.split(1, lambda: 0.0) == [("a", (0, 1))]
