"""The simulation of calls with affinity keys: what has to hold, holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulation.queues import affinity
from simulation.queues.affinity import (
    ALIKE,
    LARGEST_SHARE,
    LOAD,
    AffinityOutcome,
    moved,
    moves_few,
    settings,
    simulate,
    table,
)
from simulation.queues.settings import QueuesSettings


@pytest.mark.slow
def test_few_calls_are_spread_evenly_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "KEYS", 100)
    meshes = [replace(each, calls=5_000, warm_up=1.0) for each in settings(is_quick=True)]
    outcomes = simulate(meshes)
    assert [each.settings.load for each in outcomes] == [LOAD, LOAD]
    assert all(each.busiest <= LARGEST_SHARE for each in outcomes), table(outcomes, 0.0)
    alike, by_zipf = outcomes
    assert alike.agreed > 0.95, "each key has few calls here"
    assert alike.preferred > by_zipf.preferred > 0.5
    assert alike.plain_p99 <= alike.p99 < 0.3


def test_an_eleventh_replica_moves_its_share_of_the_keys() -> None:
    share = moved(keys=5_000)
    assert moves_few(share)
    assert share > 0.05, "it gets some"


@pytest.mark.parametrize(
    ("changes", "is_as_expected"),
    [
        ({}, True),
        ({"busiest": 1.3}, False),
        ({"agreed": 0.98}, False),
        ({"agreed": 0.98, "settings": QueuesSettings(load=0.9)}, True),
        ({"agreed": 0.98, "keys": "Zipf"}, True),
    ],
)
def test_what_does_not_hold_is_marked(changes: dict[str, Any], is_as_expected: bool) -> None:
    (mesh,) = settings(is_quick=True)
    good = AffinityOutcome(
        settings=mesh, keys=ALIKE, busiest=1.25, peak=1.2, preferred=0.9, agreed=0.99, p99=0.0, plain_p99=0.0
    )
    outcome = replace(good, **changes)
    assert outcome.is_as_expected is is_as_expected
    assert ("✗" in table([outcome], 0.09)) is not is_as_expected
