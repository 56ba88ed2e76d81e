"""Shares as people type them, and the policy they come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.cli.shifting import read_policy
from slotmesh.spec.model import InvalidSpec, TrafficPolicy


def policy(
    *weights: str, shadows: list[str] | None = None, no_shadows: bool = False, has_weights: bool = True
) -> tuple[TrafficPolicy, tuple[str, ...]]:
    return read_policy("digits", weights, shadows or [], no_shadows=no_shadows, has_weights=has_weights)


def mistakes(*weights: str, **said: object) -> list[str]:
    with pytest.raises(InvalidSpec) as caught:
        policy(*weights, **said)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def test_weights_are_all_weights_and_shadows_stay() -> None:
    assert policy("v1=0.9", "v3=0.1") == (TrafficPolicy(weights={"v1": 0.9, "v3": 0.1}), ("weights",))
    assert policy("v2=1", "v1=0")[0].weights == {"v2": 1.0, "v1": 0.0}


def test_shadows_that_are_said_are_all_shadows_and_weights_stay() -> None:
    assert policy(shadows=["v2=0.2"]) == (TrafficPolicy(weights={}, shadows={"v2": 0.2}), ("shadows",))
    said = TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.2})
    assert policy("v1=1", shadows=["v2=0.2", "v3=0"]) == (said, ("weights", "shadows"))


@pytest.mark.parametrize("said", [{"no_shadows": True}, {"shadows": ["v3=0"]}, {"shadows": ["v3=0.0", "v9=0"]}])
def test_shadows_can_be_taken_away(said: dict[str, object]) -> None:
    assert policy(**said) == (TrafficPolicy(weights={}), ("shadows",))  # type: ignore[arg-type]


def test_an_endpoint_without_a_policy_gets_its_first() -> None:
    assert policy("v1=1", has_weights=False) == (TrafficPolicy(weights={"v1": 1.0}), ("weights",))
    assert mistakes(shadows=["v2=0.1"], has_weights=False) == [
        "digits.traffic: there are no weights yet: give some, as v1=1"
    ]


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=20))
def test_what_sums_to_one_but_for_rounding_is_a_policy(parts: list[int]) -> None:
    weights = {f"v{number}": part / sum(parts) for number, part in enumerate(parts)}
    assert policy(*(f"{name}={weight}" for name, weight in weights.items()))[0].weights == weights


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (["v1=0.9", "v2=0.05"], "digits.traffic: weights sum to 0.95, must be 1: list all backends that get calls"),
        (["v1=0.999999"], "digits.traffic: weights sum to 0.999999, must be 1: list all backends that get calls"),
        (["v1=90", "v2=10"], "digits.traffic.v1: must be 0 … 1, is 90"),
        (["v1=-0.5", "v2=1.5"], "digits.traffic.v1: must be 0 … 1, is -0.5"),
        (["v1=nan"], "digits.traffic.v1: must be 0 … 1, is nan"),
        (["v1=0.5", "v1=0.5"], "digits.traffic.v1: is given twice"),
        (["v1=half"], "digits.traffic: expected BACKEND=SHARE such as v1=0.9, got 'v1=half'"),
        (["v1"], "digits.traffic: expected BACKEND=SHARE such as v1=0.9, got 'v1'"),
        (["0.5"], "digits.traffic: expected BACKEND=SHARE such as v1=0.9, got '0.5'"),
        (["=1"], "digits.traffic: expected BACKEND=SHARE such as v1=0.9, got '=1'"),
        (["v1="], "digits.traffic: expected BACKEND=SHARE such as v1=0.9, got 'v1='"),
    ],
)
def test_what_is_no_policy_is_named(weights: list[str], told: str) -> None:
    assert told in mistakes(*weights)


def test_all_mistakes_are_told_at_once() -> None:
    assert mistakes("v1", "v2=1", "v2=1", shadows=["v3=x"], no_shadows=True) == [
        "digits.shadows: --shadow and --no-shadows contradict each other",
        "digits.shadows: expected BACKEND=SHARE such as v1=0.9, got 'v3=x'",
        "digits.traffic: expected BACKEND=SHARE such as v1=0.9, got 'v1'",
        "digits.traffic.v2: is given twice",
    ]
    assert mistakes("v1=0.5", shadows=["v3=2"]) == [
        "digits.shadows.v3: must be 0 … 1, is 2",
        "digits.traffic: weights sum to 0.5, must be 1: list all backends that get calls",
    ]
