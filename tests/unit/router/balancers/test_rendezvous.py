"""Shard keys: where each belongs, for ever, and which of them a change moves."""

from __future__ import annotations

from collections import Counter
from math import sqrt

import pytest

from router_service.core.routing.traffic import choose

KEYS = [f"key-{number}" for number in range(20_000)]


def placed(weights: dict[str, float]) -> dict[str, str]:
    return {key: choose(key, weights) for key in KEYS}


@pytest.mark.parametrize(
    ("key", "evenly", "nine_to_one"),
    [
        ("", "b", "blue"),
        ("a", "b", "blue"),
        ("user-1", "c", "blue"),
        ("user-18", "ключ", "green"),
        ("user-44", "b", "green"),
        ("user-56", "a", "green"),
        ("session-42", "ключ", "blue"),
        ("ключ", "c", "blue"),
        ("鍵", "ключ", "blue"),
        ("🔑", "b", "blue"),
        ("x" * 1024, "a", "green"),
    ],
)
def test_the_place_of_a_key_is_part_of_the_contract(key: str, evenly: str, nine_to_one: str) -> None:
    assert choose(key, {"a": 0.25, "b": 0.25, "c": 0.25, "ключ": 0.25}) == evenly
    assert choose(key, {"blue": 0.9, "green": 0.1}) == nine_to_one


@pytest.mark.parametrize("weights", [{"a": 0.5, "b": 0.5}, {"a": 0.9, "b": 0.09, "c": 0.01}])
def test_keys_are_spread_by_weight(weights: dict[str, float]) -> None:
    shares = Counter(placed(weights).values())
    for name, weight in weights.items():
        assert abs(shares[name] - len(KEYS) * weight) < 4 * sqrt(len(KEYS) * weight * (1 - weight))


def test_only_the_keys_that_must_move_when_one_backend_grows() -> None:
    before = placed({"a": 0.6, "b": 0.3, "c": 0.1})
    after = placed({"a": 0.45, "b": 0.225, "c": 0.325})
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"c"}
    share = 0.325 - 0.1
    assert abs(len(moved) - len(KEYS) * share) < 4 * sqrt(len(KEYS) * share * (1 - share))


def test_a_backend_that_goes_gives_away_its_own_keys_only() -> None:
    before = placed({"a": 0.5, "b": 0.3, "c": 0.2})
    after = placed({"a": 0.5, "b": 0.3})
    assert all(after[key] == before[key] for key in KEYS if before[key] != "c")


def test_the_sum_of_the_weights_and_their_order_do_not_matter() -> None:
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    assert placed(weights) == placed(dict(reversed(weights.items())))
    assert placed(weights) == placed({name: weight * 4 for name, weight in weights.items()})


def test_a_backend_without_weight_gets_no_key() -> None:
    assert set(placed({"a": 0.0, "b": 1.0}).values()) == {"b"}
    assert placed({"a": 0.5, "b": 0.5, "c": 0.0}) == placed({"a": 0.5, "b": 0.5})


@pytest.mark.parametrize("key", ["", "ключ", "鍵" * 300, "\0", "🔑"])
def test_any_text_is_a_key(key: str) -> None:
    assert choose(key, {"a": 0.5, "b": 0.5}) in {"a", "b"}


def test_the_longest_name_of_a_backend_has_its_place() -> None:
    assert choose("key", {"n" * 63: 1.0}) == "n" * 63
