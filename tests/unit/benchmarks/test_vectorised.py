"""The vectorised handler, and what its benchmark makes of what it measured."""

from __future__ import annotations

import pytest

np = pytest.importorskip("numpy")

from benchmarks import vectorised  # noqa: E402 - where numpy is
from benchmarks.nearest_handler import BATCH_CALLS, Nearest, rows  # noqa: E402
from benchmarks.vectorised import VectorisedRound, VectorisedTurn  # noqa: E402


def test_each_row_is_told_its_nearest_centroid() -> None:
    handler, points = Nearest(7), rows(20)
    results = handler.nearest(points)
    centroids = rows(7, seed=1)
    wanted = [min(range(7), key=lambda at: float(((row - centroids[at]) ** 2).sum())) for row in points]
    assert results.tolist() == wanted
    assert len(set(wanted)) > 1


def test_more_centroids_are_more_work() -> None:
    batch = rows(BATCH_CALLS)
    assert vectorised.fitting(batch) >= 1
    (_, more_s), (_, less_s) = (vectorised.looped(Nearest(centroids), batch, 0.0) for centroids in (400, 1))
    assert more_s > less_s


def test_shares_are_of_a_round() -> None:
    def turn(calls: int) -> VectorisedTurn:
        return VectorisedTurn(calls=calls, elapsed_s=2.0, cpu_s={"client": 0.1, "router": 0.2, "replica": 0.4})

    rounds = [
        VectorisedRound(batch_s=0.001, batch_cpu_s=0.0005, mesh=turn(calls))
        for calls in (BATCH_CALLS * 1000, BATCH_CALLS * 1300, 1)
    ]
    found = {each.name: each for each in vectorised.found(5, rounds[:1], rounds)}
    assert found["vectorised_share"].value == pytest.approx(0.5)
    assert found["vectorised_share"].holds is False
    assert found["vectorised_singly"].value == pytest.approx(0.5)
    assert found["vectorised_direct"].value == pytest.approx(BATCH_CALLS * 1000)
    assert found["vectorised_handler"].value == pytest.approx(0.0005 / BATCH_CALLS)
    assert found["vectorised_mesh"].value == pytest.approx(BATCH_CALLS * 500)
