"""Which calls are sampled: a share of them, and no more than a rate."""

from __future__ import annotations

import random

import pytest

from slotmesh.telemetry.tracing import MAX_ALIKE, GapSampler


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
