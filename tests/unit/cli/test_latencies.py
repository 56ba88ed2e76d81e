"""Summaries of calls: quantiles within 2 %, whatever the times were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.cli.latencies import GROWTH, SMALLEST_S, CallTally, LatencyHistogram
from tests.support.examples import examples


def histogram(times: list[float]) -> LatencyHistogram:
    made = LatencyHistogram()
    for time_s in times:
        made.add(time_s)
    return made


@settings(max_examples=examples(200))
@given(st.lists(st.floats(SMALLEST_S, 1_000.0), min_size=1, max_size=200), st.floats(0.001, 1.0))
def test_a_quantile_is_hardly_above_the_true_one(times: list[float], share: float) -> None:
    found = histogram(times).quantile(share)
    exact = next(time_s for rank, time_s in enumerate(sorted(times), 1) if rank >= share * len(times))
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * GROWTH * (1 + 1e-9)


def test_nothing_has_no_quantiles() -> None:
    assert histogram([]).quantile(0.5) is None
    assert list(CallTally().lines(1.0)) == ["0 calls in 1.00 s, 0.0 a second"]
    assert histogram([0.0]).quantile(1.0) == 0.0


def test_failures_are_told_apart_and_are_no_times() -> None:
    tally = CallTally()
    for _ in range(3):
        tally.add(0.1)
    tally.add(9.0, "QUEUE_FULL")
    said = tally.document(2.0)
    assert (said["calls"], said["failed"], said["calls_per_s"], said["max_ms"]) == (4, {"QUEUE_FULL": 1}, 2.0, 100.0)
    assert said["p99_ms"] == pytest.approx(100.0, rel=0.02)
    assert json.loads(json.dumps(said)) == said
    assert "failed: 1 (QUEUE_FULL 1)" in list(tally.lines(2.0))
