"""Which calls are sampled: a share of them, and no more than a rate."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.telemetry.tracing import MAX_ALIKE, GapSampler
from tests.support.examples import examples


@pytest.mark.parametrize("frame", [1, 7, 1000])
def test_the_share_of_calls_is_sampled_whatever_frames_they_come_in(frame: int) -> None:
    sampler = GapSampler(0.01, 1e9, random.Random(1).random)
    calls = 200_000
    taken = sum(len(sampler.take(frame, 0.0)) for _ in range(calls // frame))
    assert taken == pytest.approx(calls // frame * frame * 0.01, rel=0.1)


def test_all_none_and_places_that_ascend() -> None:
    none, every = GapSampler(0.0, 1e9, random.random), GapSampler(1.0, 1e9, random.random)
    assert [none.take(1000, 0.0) for _ in range(3)] == [()] * 3
    assert [list(every.take(1, 0.0)) for _ in range(3)] == [[0]] * 3
    assert list(every.take(1000, 0.0)) == list(range(MAX_ALIKE))
    some = GapSampler(0.3, 1e9, random.Random(2).random).take(40, 0.0)
    assert list(some) == sorted(set(some))
    assert set(some) <= set(range(40))


def test_no_more_than_the_rate() -> None:
    sampler = GapSampler(1.0, 50.0, random.random)
    taken = sum(len(sampler.take(100, step / 1000)) for step in range(10_000))
    assert taken == pytest.approx(500, abs=10)
    idle = GapSampler(1.0, 50.0, random.random)
    assert len(idle.take(100, 1e6)) == 5, "a tenth of the rate at once, however long nothing came"


@settings(max_examples=examples(60), deadline=None)
@given(
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
    st.just([1]) | st.lists(st.integers(1, MAX_ALIKE), min_size=1, max_size=8),
)
def test_the_share_is_the_ratio_in_frames_of_any_sizes(ratio: float, seed: int, frames: list[int]) -> None:
    sampler = GapSampler(ratio, 1e12, random.Random(seed).random)
    taken = calls = 0
    for frame in itertools.cycle(frames):  # none so large that `MAX_ALIKE` matters
        taken += len(sampler.take(frame, 0.0))
        calls += frame
        if calls >= 10_000:
            break
    deviation = math.sqrt(calls * ratio * (1 - ratio))
    assert abs(taken - calls * ratio) <= 6 * deviation


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_each_call_is_as_likely_as_another_after_a_frame_that_was_cut(ratio: float) -> None:
    sampler = GapSampler(ratio, 1e12, random.Random(3).random)
    rounds, first = 4_000, 0
    for _ in range(rounds):
        assert len(sampler.take(1_000, 0.0)) == MAX_ALIKE
        first += len(sampler.take(1, 0.0))
    assert abs(first - rounds * ratio) <= 6 * math.sqrt(rounds * ratio * (1 - ratio))
